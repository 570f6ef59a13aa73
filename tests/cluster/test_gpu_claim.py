"""Each worker process of a machine has a GPU of its own, as long as there are enough."""

from pathlib import Path

import pytest

from batchpaged.cluster import gpu_claim
from batchpaged.cluster.gpu_claim import GpuClaims


def claims(folder: Path, *wanted: tuple[str, int]) -> list[str]:
    """Processes come one after another, each with the GPUs that it sees and its number. -> the GPUs that they get"""
    processes = [GpuClaims(folder) for _ in wanted]  # kept: a claim ends with its process
    return [visible[process.claim(visible, first)] for process, (visible, first) in zip(processes, wanted, strict=True)]


def test_numbered_workers_have_the_gpus_of_their_numbers(tmp_path: Path) -> None:
    assert claims(tmp_path / "a", ("abc", 0), ("abc", 1), ("abc", 2)) == ["a", "b", "c"]
    assert claims(tmp_path / "b", ("abc", 2), ("abc", 0), ("abc", 1)) == ["c", "a", "b"]


def test_workers_without_a_number_share_no_gpu(tmp_path: Path) -> None:
    assert claims(tmp_path / "locks", ("abc", 0), ("abc", 0), ("abc", 0)) == ["a", "b", "c"]


def test_workers_that_see_gpus_in_an_order_of_their_own_share_none(tmp_path: Path) -> None:
    assert claims(tmp_path / "a", ("ab", 0), ("ba", 0)) == ["a", "b"]  # as dask-cuda starts them
    assert claims(tmp_path / "b", ("ab", 0), ("ba", 1)) == ["a", "b"]  # number 1 would be the other's
    assert claims(tmp_path / "c", ("a", 0), ("b", 3)) == ["a", "b"]


def test_more_workers_than_gpus_share_them(tmp_path: Path) -> None:
    assert claims(tmp_path / "locks", ("ab", 0), ("ab", 1), ("ab", 2), ("ab", 3)) == ["a", "b", "a", "b"]


def test_a_process_keeps_its_gpu_and_gives_it_back_when_it_ends(tmp_path: Path) -> None:
    process = GpuClaims(tmp_path / "locks")
    assert [process.claim("ab", first) for first in (1, 0, 1)] == [1, 1, 1]
    process._lock.close()  # as the system does
    assert GpuClaims(tmp_path / "locks").claim("ab", 1) == 1


def test_without_file_locks_numbers_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_claim, "fcntl", None)
    assert claims(tmp_path / "locks", ("ab", 1), ("ab", 1)) == ["b", "b"]
