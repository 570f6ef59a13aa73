"""Blocks of every backend's cache come back as they were, through host memory and disk, whatever order things take."""

import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from batchpaged.attention.backend import AttentionBackend
from batchpaged.attention.cpu import CpuAttention
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.reference import TorchAttention
from batchpaged.attention.triton import TritonAttention
from batchpaged.engine.step import BlockMove, MoveKind
from batchpaged.tiers import store as tiers_store
from batchpaged.tiers.costs import TierCosts
from batchpaged.tiers.disk import DiskSlots, LostBlockError
from batchpaged.tiers.frames import HostFrames
from batchpaged.tiers.store import TierStore

NUM_BLOCKS, BLOCK_SIZE = 6, 4
LAYERS = (LayerShape(2, 8, 8), LayerShape(1, 16, 8))
BACKENDS: dict[str, Callable[[], AttentionBackend]] = {
    "cpu": lambda: CpuAttention(LAYERS, NUM_BLOCKS, BLOCK_SIZE),
    "torch": lambda: TorchAttention(LAYERS, NUM_BLOCKS, BLOCK_SIZE, torch.bfloat16),
    "torch int8": lambda: TorchAttention(LAYERS, NUM_BLOCKS, BLOCK_SIZE, torch.float32, kv_dtype="int8"),
    "torch fp8": lambda: TorchAttention(LAYERS, NUM_BLOCKS, BLOCK_SIZE, torch.float32, kv_dtype="fp8"),
    "triton": lambda: TritonAttention(LAYERS, NUM_BLOCKS, BLOCK_SIZE, torch.float16, "cpu"),
    "triton int8": lambda: TritonAttention(LAYERS, NUM_BLOCKS, BLOCK_SIZE, torch.float16, "cpu", kv_dtype="int8"),
}


def filled(backend: AttentionBackend) -> AttentionBackend:
    generator = torch.Generator().manual_seed(0)
    for part in backend.parts():
        noise = torch.randint(0, 100, part.tensor.shape, generator=generator)
        part.tensor.copy_(noise.to(part.tensor.dtype))
    return backend


def content(backend: AttentionBackend, block: int) -> list[torch.Tensor]:
    return [part.tensor.view(torch.uint8).select(part.axis, block).clone() for part in backend.parts()]


def is_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def make_store(backend: AttentionBackend, folder: Path, costs: TierCosts | None = None) -> TierStore:
    frames = HostFrames(backend.parts(), 3)
    return TierStore(frames, DiskSlots(folder, 5, frames.block_bytes), costs or TierCosts(1.0, 0.0, 0.0, 0.0))


def move(kind: MoveKind, source: int, target: int) -> BlockMove:
    return BlockMove(kind, source, target)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_block_comes_back_in_another_one_with_all_that_belongs_to_it(name: str, tmp_path: Path) -> None:
    backend = filled(BACKENDS[name]())
    before = [content(backend, block) for block in range(NUM_BLOCKS)]
    num_bytes, is_quantised = 4 if name == "cpu" else 2, name.endswith("8")
    in_all = BLOCK_SIZE * sum(layer.num_bytes(num_bytes, is_quantised) for layer in LAYERS)  # scales among them
    assert in_all == sum(part.block_bytes for part in backend.parts()) == sum(tensor.numel() for tensor in before[0])
    store = make_store(backend, tmp_path)
    store.move([move(MoveKind.SAVE, 1, 2), move(MoveKind.SAVE, 4, 0), move(MoveKind.WRITE, 0, 3)])
    store.load([move(MoveKind.LOAD, 2, 5), move(MoveKind.LOAD_FROM_DISK, 3, 0)])
    assert is_same(content(backend, 5), before[1]) and is_same(content(backend, 0), before[4])
    assert all(is_same(content(backend, block), before[block]) for block in (1, 2, 3, 4)), "others are as they were"


def test_moves_keep_their_order_though_the_disk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random moves against a model of what lies where; a place is taken again at once."""
    slowed = DiskSlots.write
    monkeypatch.setattr(DiskSlots, "write", lambda *given: (time.sleep(0.002), slowed(*given)))
    backend, rng = filled(BACKENDS["cpu"]()), random.Random(0)
    store = make_store(backend, tmp_path)
    blocks = {block: content(backend, block) for block in range(NUM_BLOCKS)}
    places = {"block": blocks, "frame": {}, "slot": {}}
    sizes = {"block": NUM_BLOCKS, "frame": 3, "slot": 5}
    for _ in range(60):
        kind, source, target = rng.choice(
            [
                (MoveKind.SAVE, "block", "frame"),
                (MoveKind.LOAD, "frame", "block"),
                (MoveKind.WRITE, "frame", "slot"),
                (MoveKind.READ, "slot", "frame"),
                (MoveKind.LOAD_FROM_DISK, "slot", "block"),
            ]
        )
        if not places[source]:
            continue
        made = move(kind, rng.choice(sorted(places[source])), rng.randrange(sizes[target]))
        places[target][made.target] = places[source][made.source]
        (store.load if target == "block" else store.move)([made])
    assert all(is_same(content(backend, block), expected) for block, expected in blocks.items())


def test_a_block_read_ahead_in_vain_is_missed_when_it_is_loaded(tmp_path: Path) -> None:
    backend, costs = filled(BACKENDS["cpu"]()), TierCosts(1.0, 0.0, 0.0, 0.0)
    before = [content(backend, block) for block in range(NUM_BLOCKS)]
    store = make_store(backend, tmp_path, costs)
    store.move([move(MoveKind.SAVE, 1, 0), move(MoveKind.SAVE, 2, 1), move(MoveKind.READ, 4, 2)])  # nothing lies in 4
    with pytest.raises(LostBlockError):
        store.load([move(MoveKind.LOAD, 0, 5), move(MoveKind.LOAD, 2, 4)])
    assert is_same(content(backend, 5), before[5]), "nothing was loaded"
    assert costs.has_disk_failed and not costs.disk_pays(BLOCK_SIZE)
    store.move([move(MoveKind.SAVE, 3, 2)])  # its place is as good as any
    store.load([move(MoveKind.LOAD, 2, 0)])
    assert is_same(content(backend, 0), before[3])


def test_what_could_not_be_read_ahead_is_not_written_again_as_if_it_were_good(tmp_path: Path) -> None:
    """Two moves that were planned before anybody knew."""
    backend = filled(BACKENDS["cpu"]())
    before = [content(backend, block) for block in range(NUM_BLOCKS)]
    store = make_store(backend, tmp_path)
    store.move([move(MoveKind.READ, 4, 2), move(MoveKind.WRITE, 2, 1), move(MoveKind.SAVE, 1, 2), move(MoveKind.WRITE, 2, 0)])
    with pytest.raises(LostBlockError):
        store.load([move(MoveKind.LOAD_FROM_DISK, 1, 5)])
    store.load([move(MoveKind.LOAD_FROM_DISK, 0, 5)])  # what was saved in between is as it was
    assert is_same(content(backend, 5), before[1])
    store.move([move(MoveKind.READ, 4, 2), move(MoveKind.SAVE, 3, 2)])  # nor does it matter to what comes in its place
    store.load([move(MoveKind.LOAD, 2, 5)])
    assert is_same(content(backend, 5), before[3])


def test_a_full_disk_gets_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: DiskSlots, slot: int, row: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DiskSlots, "write", full)
    costs = TierCosts(1.0, 0.0, 0.0, 0.0)
    store = make_store(filled(BACKENDS["cpu"]()), tmp_path, costs)
    store.move([move(MoveKind.SAVE, 1, 0), move(MoveKind.WRITE, 0, 3), move(MoveKind.SAVE, 2, 0)])  # which waits for the write
    assert costs.has_disk_failed
    with pytest.raises(LostBlockError):
        store.load([move(MoveKind.LOAD_FROM_DISK, 3, 5)])


def test_waiting_for_a_slow_disk_counts_against_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskSlots, "write", lambda *given: time.sleep(0.05))
    costs = TierCosts(1.0, 0.0, 0.0, 0.0)
    store = make_store(filled(BACKENDS["cpu"]()), tmp_path, costs)
    store.move([move(MoveKind.SAVE, 1, 0), move(MoveKind.WRITE, 0, 3), move(MoveKind.SAVE, 2, 0)])
    assert costs.wait > 0
    waited = costs.wait
    store.move([move(MoveKind.SAVE, 1, 1)])
    assert costs.wait < waited, "and is forgotten where nobody waits"


def test_costs_are_means_of_a_block_and_follow_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 2)
    monkeypatch.setattr(tiers_store, "time", SimpleNamespace(perf_counter=clock.__next__))  # everything takes 2 s
    costs = TierCosts(1.0, 0.0, 0.0, read=7.0)
    store = make_store(filled(BACKENDS["cpu"]()), tmp_path, costs)
    store.move([move(MoveKind.SAVE, 1, 0), move(MoveKind.SAVE, 2, 1)])
    assert costs.wait == pytest.approx(0.2 * 1.0), "a fifth of what each of the two took"
    store.move([move(MoveKind.WRITE, 0, 3)])
    store.load([move(MoveKind.LOAD_FROM_DISK, 3, 5)])
    assert costs.read == pytest.approx(0.8 * 7.0 + 0.2 * 2.0)
