"""What an engine on a GPU is made of: modules by Triton kernels, decode steps as graphs, and a KV cache as large as fits."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from batchpaged.attention.backend import StaticBackend
from batchpaged.engine.decode_steps import DecodeSteps, MakeReplay
from batchpaged.engine.gpu_memory import kv_cache_share, measure_gpu_memory, worst_steps
from batchpaged.engine.model_runner import ModelRunner, compute_logits
from batchpaged.errors import ModelError
from batchpaged.models.lora import AdapterRows

if TYPE_CHECKING:
    from batchpaged.config import EngineConfig

MakeBackend = Callable[[int], StaticBackend]  # of the number of blocks


def exchange_modules(model: PreTrainedModel) -> None:
    """Where triton is there; torch for GPUs comes with it on Linux."""
    if find_spec("triton") is not None:
        from batchpaged.models.fused_triton import fuse_triton

        fuse_triton(model)


def exchange_for_batch_invariance(model: PreTrainedModel) -> None:
    """Triton must be there. Raises ModelError where a product of the model cannot be exchanged."""
    from batchpaged.models.fused_triton import make_batch_invariant

    make_batch_invariant(model)


def graph_runner(
    model: PreTrainedModel, backend: StaticBackend, block_size: int, max_sequences: int, make_replay: MakeReplay
) -> ModelRunner:
    """`backend` has one block more than the pool, its last: the padding of decode steps writes there."""

    def compute(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return compute_logits(model, backend, token_ids, positions)

    steps = DecodeSteps(compute, backend, backend.num_blocks - 1, block_size, max_sequences, model.device, make_replay)
    return ModelRunner(model, backend, steps)


def measured_kv_bytes(
    model: PreTrainedModel,
    config: "EngineConfig",
    max_model_len: int,
    make_backend: MakeBackend,
    block_bytes: int,
    adapter_rows: AdapterRows | None = None,
) -> int:
    """What worst-case steps leave for the KV cache under `engine.gpu_memory_fraction`. Raises ModelError."""
    worst = worst_steps(config.max_batch_tokens, config.max_sequences, max_model_len, config.block_size)

    def run_steps() -> None:
        runner = ModelRunner(model, make_backend(worst.num_blocks), adapter_rows=adapter_rows)
        for plan in worst.plans:
            runner.start(plan)()

    try:
        memory = measure_gpu_memory(run_steps, str(model.device))
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ModelError(
            f"a step of engine.max_batch_tokens = {config.max_batch_tokens} tokens does not fit into the memory of "
            f"{model.device} beside the model; lower it"
        ) from error
    own_cache = worst.num_blocks * block_bytes  # in these steps' memory, but not in that of others
    return kv_cache_share(replace(memory, step=max(0, memory.step - own_cache)), config.gpu_memory_fraction)
