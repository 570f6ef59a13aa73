"""From configuration to a running engine."""

import threading
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from engine.real_engine import Reference, completions
from tiny_models import save_tiny, tiny_tokenizer
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from batchpaged.attention.cpu import CpuAttention
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.reference import TorchAttention
from batchpaged.config import EngineConfig, ModelConfig
from batchpaged.engine import build, tier_build
from batchpaged.engine.build import (
    build_engine,
    choose_device,
    default_num_threads,
    free_kv_bytes,
    num_kv_blocks,
    steps_ahead,
)
from batchpaged.engine.engine import Engine
from batchpaged.engine.release import release_memory
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import BlockMove, MoveKind
from batchpaged.errors import ModelError, RefusedError
from batchpaged.models.layers import attention_layers
from batchpaged.models.resolve import ResolvedModel
from batchpaged.tiers.disk import DiskSlots

LAYERS = (LayerShape(2, 16, 16), LayerShape(4, 24, 8))  # 64 and 128 numbers per token
F32 = torch.float32


def build_from(folder: Path, run_id: str = "run", dtype: str = "auto", **engine: object) -> Engine:
    resolved = ResolvedModel("tiny", folder, "folder", "identity")
    model = ModelConfig(id=str(folder), max_model_len=256, dtype=dtype)
    config = EngineConfig(**({"kv_cache": 64, "block_size": 16} | engine))
    return build_engine(resolved, model, config, "cpu", run_id, num_threads=1)


def test_an_engine_of_a_model_folder_generates_what_generate_does(tmp_path: Path) -> None:
    prompts = [[1, *range(10, 40), last] for last in (50, 60, 70)]
    engine = build_from(save_tiny(tmp_path / "model"))
    outputs = completions(engine, prompts, SamplingParams(max_tokens=6, ignore_eos=True))
    Reference("llama", prompts, 6).check([output.token_ids for output in outputs])
    assert outputs[0].text == tiny_tokenizer().decode(list(outputs[0].token_ids), skip_special_tokens=True)


@pytest.mark.parametrize("options", [{"attention": "torch"}, {"fused_modules": False}, {"async_scheduling": True}], ids=str)
def test_tokens_do_not_depend_on_how_they_are_computed(tmp_path: Path, options: dict[str, object]) -> None:
    prompts = [[1, *range(10, 40), last] for last in (50, 60, 70)]
    engine = build_from(save_tiny(tmp_path / "model"), **options)
    outputs = completions(engine, prompts, SamplingParams(max_tokens=6, ignore_eos=True))
    Reference("llama", prompts, 6).check([output.token_ids for output in outputs])


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_a_cache_of_8_bits_gives_the_same_tokens_where_it_is_shared(tmp_path: Path, kv_dtype: str) -> None:
    """What a prompt's neighbours left in the cache is what it would have stored itself, bit for bit."""
    prompts = [[1, *range(10, 40), last] for last in (50, 60, 70)]
    folder, params = save_tiny(tmp_path / "model"), SamplingParams(max_tokens=6, ignore_eos=True)
    shared, alone = (build_from(folder, kv_dtype=kv_dtype, prefix_cache=shares) for shares in (True, False))
    outputs, expected = completions(shared, prompts, params), completions(alone, prompts, params)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]


@pytest.mark.parametrize(
    ("options", "dtype", "kind"),
    [
        ({}, "float32", CpuAttention),
        ({"attention": "torch"}, "float32", TorchAttention),
        ({}, "bfloat16", TorchAttention),
        ({"kv_dtype": "int8"}, "float32", TorchAttention),
    ],
)
def test_attention_is_compiled_for_float32_on_a_cpu(tmp_path: Path, options: dict, dtype: str, kind: type) -> None:
    engine = build_from(save_tiny(tmp_path / "model"), dtype=dtype, **options)
    assert type(engine._runner._backend) is kind


def test_limits_come_from_the_configuration(tmp_path: Path) -> None:
    engine = build_from(save_tiny(tmp_path / "model"), block_size=32, prefix_cache=False)
    assert (engine.pool.num_blocks, engine.pool.block_size) == (64, 32)
    assert engine.scheduler.cache is None


def test_hashes_are_seeded_by_run_model_and_dtype(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model")
    assert build_from(folder, run_id="a").scheduler.cache._root == b"a|identity|torch.float32|auto"


def test_a_model_that_asks_for_more_than_can_be_honoured_is_refused(tmp_path: Path) -> None:
    """Though its configuration gives no reason: what a model does is seen once it is there."""
    config = CONFIG_MAPPING["diffllama"](
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="make 4 attention calls"):
        build_from(tmp_path)


@pytest.mark.parametrize(
    ("kv_cache", "num_blocks"),
    [(77, 77), ("1MiB", 2**20 // (768 * 16)), ("auto", 2**24 // (768 * 16))],
)
def test_number_of_blocks(monkeypatch: pytest.MonkeyPatch, kv_cache: str | int, num_blocks: int) -> None:
    monkeypatch.setattr(build.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**25}))
    assert num_kv_blocks(EngineConfig(kv_cache=kv_cache), LAYERS, F32, lambda: free_kv_bytes("cpu")) == num_blocks


def test_a_cache_of_8_bits_holds_more_blocks() -> None:
    quantised = num_kv_blocks(EngineConfig(kv_cache="1MiB", kv_dtype="fp8"), LAYERS, F32, lambda: 0)
    assert quantised == 2**20 // (240 * 16)


def test_a_cache_that_holds_no_block_is_refused() -> None:
    with pytest.raises(ModelError, match="does not hold one block .*raise it"):
        num_kv_blocks(EngineConfig(kv_cache="1KiB"), LAYERS, F32, lambda: 0)


@pytest.mark.parametrize(
    ("given", "device", "expected"),
    [("auto", "cpu", 0), ("auto", "cuda:1", 1), (True, "cpu", 1), (False, "cuda:0", 0)],
)
def test_steps_are_planned_ahead_on_a_gpu(given: str | bool, device: str, expected: int) -> None:
    assert steps_ahead(given, device) == expected


@pytest.mark.parametrize(
    ("requested", "num_gpus", "device"),
    [("auto", 0, "cpu"), ("cpu", 2, "cpu"), ("auto", 2, "cuda:1"), ("cuda", 1, "cuda:0")],
)
def test_device(monkeypatch: pytest.MonkeyPatch, requested: str, num_gpus: int, device: str) -> None:
    _set_gpus(monkeypatch, num_gpus)
    assert choose_device(requested, lambda num_gpus: num_gpus - 1) == device


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_gpus(monkeypatch, 0)
    with pytest.raises(ModelError, match="sees no GPU"):
        choose_device("cuda")


def _set_gpus(monkeypatch: pytest.MonkeyPatch, num_gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)


def test_threads_are_shared_between_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert [default_num_threads(num_workers) for num_workers in (1, 2, 4, 9)] == [6, 3, 1, 1]


def test_lower_tiers_are_as_large_as_the_pipeline_says_and_measured(tmp_path: Path) -> None:
    prompts = [[1, *range(10, 40), last] for last in (50, 60, 70)]
    engine = build_from(save_tiny(tmp_path / "model"), host_cache="1MiB", disk_cache=50, disk_cache_path=str(tmp_path))
    tiers = engine.scheduler.tiers
    block_bytes = 4 * 16 * sum(layer.num_values for layer in tiny_layers(tmp_path / "model"))
    assert (tiers.host.num_places, tiers.disk.num_places) == (2**20 // block_bytes, 50)
    costs = tiers.costs
    assert all(0 < cost < 60 for cost in (costs.token, costs.save, costs.load, costs.read))
    outputs = completions(engine, prompts, SamplingParams(max_tokens=6, ignore_eos=True))
    Reference("llama", prompts, 6).check([output.token_ids for output in outputs])


def test_costs_are_measured_with_what_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_build, "_seconds", lambda do: (do(), 6.0)[1])
    folder = save_tiny(tmp_path / "model")
    few = build_from(folder, host_cache=2, disk_cache=1, max_batch_tokens=50).scheduler.tiers.costs
    assert (few.token, few.save, few.load, few.read) == (6 / 50, 3, 3, 6)
    many = build_from(folder, host_cache=100, kv_cache=4, block_size=8).scheduler.tiers.costs
    assert (many.token, many.save, many.load) == (6 / 32, 6 / 4, 6 / 4), "of a KV cache of 4 blocks"


def test_costs_are_measured_where_no_prompt_fills_a_block(tmp_path: Path) -> None:
    resolved = ResolvedModel("tiny", save_tiny(tmp_path / "model"), "folder", "identity")
    model, config = ModelConfig(id="tiny", max_model_len=9), EngineConfig(kv_cache=3, host_cache=2)
    tiers = build_engine(resolved, model, config, "cpu", "run", num_threads=1).scheduler.tiers
    assert tiers.costs.token > 0 and tiers.costs.save > 0


def test_a_closed_engine_leaves_no_open_file_and_no_thread(tmp_path: Path) -> None:
    folder, threads = save_tiny(tmp_path / "model"), set(threading.enumerate())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = build_from(folder, kv_cache=16, host_cache=1, disk_cache=50)
        store = engine._runner.tiers
        store.move([BlockMove(MoveKind.SAVE, 3, 0), BlockMove(MoveKind.WRITE, 0, 7)])
        assert set(threading.enumerate()) > threads
        disk = weakref.ref(store._disk)
        engine.close()
        del engine, store
        release_memory()
        assert disk() is None
    assert not [str(w.message) for w in caught if issubclass(w.category, ResourceWarning)]
    assert set(threading.enumerate()) == threads


def test_a_disk_that_cannot_be_measured_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, close = [], DiskSlots.close
    monkeypatch.setattr(DiskSlots, "write", _fail)
    monkeypatch.setattr(DiskSlots, "close", lambda disk: closed.append(close(disk)))
    with pytest.raises(ModelError, match="disk_cache: its file cannot be written: No space left"):
        build_from(save_tiny(tmp_path / "model"), host_cache=1, disk_cache=50)
    assert len(closed) == 1


def _fail(*args: object) -> None:
    raise OSError(28, "No space left on device")


def tiny_layers(folder: Path) -> tuple[LayerShape, ...]:
    return tuple(layer.shape for layer in attention_layers(AutoModelForCausalLM.from_pretrained(folder)))


def test_host_memory_that_the_system_does_not_give_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(parts: object, num_frames: int) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(tier_build, "HostFrames", refuse)
    with pytest.raises(ModelError, match=r"engine.host_cache of .* KiB cannot be taken; lower it"):
        build_from(save_tiny(tmp_path / "model"), host_cache=9)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"host_cache": "1KiB"}, r"engine.host_cache = 1KiB: is less than one block, which takes .* KiB"),
        ({"host_cache": "900TiB"}, r"engine.host_cache = 900TiB: is more than the .* GiB of memory that are free"),
        ({"host_cache": 9, "disk_cache": "900TiB"}, r"engine.disk_cache = 900TiB: is more than the .* that are free in /"),
        ({"host_cache": 9, "disk_cache": 9, "disk_cache_path": "/no/such"}, "engine.disk_cache_path: /no/such takes no file: No such"),
    ],
)
def test_a_lower_tier_that_has_no_room_is_refused(tmp_path: Path, engine: dict[str, object], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        build_from(save_tiny(tmp_path / "model"), **engine)
