"""`engine`: speed and memory."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from batchpaged.config.section import AtLeastOne, Section, Text
from batchpaged.config.sizes import SIZE_PATTERN, parse_bytes


def _check_size(text: str) -> str:
    parse_bytes(text)
    return text


Size = Annotated[
    str, Field(examples=["2GiB"], json_schema_extra={"pattern": SIZE_PATTERN}), AfterValidator(_check_size)
]


class EngineConfig(Section):
    """Speed and memory. Greedy completions do not depend on it, kv_dtype apart."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs; auto: cuda if there is a GPU, else cpu"
    )
    attention: Literal["auto", "torch", "triton"] = Field(
        "auto", description="Attention implementation; auto: the best one for the device"
    )
    block_size: Literal[8, 16, 32, 64, 128] = Field(16, description="Tokens in a block of the KV cache")
    kv_cache: Literal["auto"] | Size | AtLeastOne = Field(
        "auto", description="KV cache of a worker: auto (by free memory), bytes (2GiB, 512MiB), or a number of blocks"
    )
    host_cache: Size | AtLeastOne | None = Field(
        None,
        description="Host memory of a worker for blocks that the KV cache has no room for but rows still need, and for "
        "preempted rows: bytes, or a number of blocks; null: none",
    )
    disk_cache: Size | AtLeastOne | None = Field(
        None, description="The same on disk, for what host_cache has no room for; null: none"
    )
    disk_cache_path: Text | None = Field(
        None, description="Folder of a file for disk_cache, on a fast local disk; null: the system's temporary folder"
    )
    kv_dtype: Literal["auto", "int8", "fp8"] = Field(
        "auto", description="Type of keys and values in the cache; auto: model.dtype; int8, fp8: 8 bits, with scales"
    )
    gpu_memory_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="Of a GPU's memory, what model, a worst-case step and a KV cache of auto may take together"
    )
    max_batch_tokens: AtLeastOne = Field(
        2048, description="Token budget: most tokens, prefill and decode together, in a scheduler step"
    )
    max_sequences: AtLeastOne = Field(
        256, description="Most sequences running at once; never more than max_batch_tokens"
    )
    stall_seconds: AtLeastOne | None = Field(
        1800, description="Seconds without a finished scheduler step after which a worker is given up; null: never"
    )
    async_scheduling: Literal["auto"] | bool = Field(
        "auto", description="Whether a step is planned while the one before it runs; auto: on a GPU"
    )
    cuda_graphs: bool = Field(True, description="On a GPU: whether decode steps are captured once and replayed")
    prefix_cache: bool = Field(True, description="Whether blocks of a prefix computed before are used again")
    batch_invariant: bool = Field(
        False,
        description="Whether logits have the same bits whatever else is in the batch; slower. On a CPU in float32 only",
    )
    fused_modules: bool = Field(
        True, description="The model's modules are exchanged for faster ones that give the same; on a CPU in float32 only"
    )
