"""What `batchpaged size` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from batchpaged.config.sizes import format_bytes
from batchpaged.report import formatting as fmt
from batchpaged.sizing.size import GpuFit, ModelSize


def size_facts(size: ModelSize) -> Iterator[tuple[str, str]]:
    """(label, value) of each line."""
    yield "Model type", size.model_type
    yield "Parameters", fmt.count(size.num_parameters)
    yield "Weights", f"{format_bytes(size.weights)} in {size.dtype}"
    yield "KV per token", f"{format_bytes(size.bytes_per_token)}: {_layers(size)}, {_stored_as(size)}"
    if size.bytes_per_token != size.bytes_per_token_ungrouped:
        times = size.bytes_per_token_ungrouped / size.bytes_per_token
        yield "Grouped heads", f"{size.num_query_heads} query heads; keys and values for each would take {times:g} times as much"
    yield "Block", f"{format_bytes(size.block)} for {fmt.plural(size.block_size, 'token')}"
    yield "Sequence", f"{format_bytes(size.sequence)} for {fmt.plural(size.seq_len, 'token')}{_too_long(size)}"
    if any(size.windows):
        yield "Sliding windows", _windows(size)
    if size.fit is not None:
        yield from _fit_facts(size, size.fit)


def _layers(size: ModelSize) -> str:
    """Layers of one shape together: `32 layers x 8 K/V heads x (128 + 128)`."""
    return " + ".join(
        f"{fmt.plural(count, 'layer')} x {fmt.plural(shape.num_kv_heads, 'K/V head')} x ({shape.head_dim} + {shape.value_dim})"
        for shape, count in Counter(size.layers).items()
    )


def _stored_as(size: ModelSize) -> str:
    return f"in {size.dtype}" if size.stored_as == "auto" else f"in {size.stored_as} with two float32 scales per head"


def _too_long(size: ModelSize) -> str:
    if size.num_positions is None or size.seq_len <= size.num_positions:
        return ""
    return f"; but this model has {fmt.count(size.num_positions)} positions, and longer rows are refused"


def _windows(size: ModelSize) -> str:
    counts = Counter(window for window in size.windows if window is not None)
    layers = ", ".join(f"{fmt.plural(n, 'layer')} of {fmt.count(window)} tokens" for window, n in counts.items())
    if size.windowed_sequence == size.sequence:
        return f"{layers}; a sequence is no longer than that"
    return f"{layers}; but all tokens are kept; only those in the window would be {format_bytes(size.windowed_sequence)}"


def _fit_facts(size: ModelSize, fit: GpuFit) -> Iterator[tuple[str, str]]:
    usable = int(fit.memory * fit.fraction)
    yield "GPU memory", f"{format_bytes(fit.memory)}, of which {fit.fraction:g} may be used: {format_bytes(usable)}"
    if not fit.num_blocks:
        missing = size.weights + fit.step + size.block - usable
        yield "KV cache", f"none: weights, a step and one block need {format_bytes(missing)} more than there are"
        yield "Way out", _way_out(size, fit)
        return
    num_tokens = fit.num_blocks * size.block_size
    yield (
        "KV cache",
        f"{format_bytes(fit.kv_bytes)} beside weights and {format_bytes(fit.step)} for a step: "
        f"{fmt.count(fit.num_blocks)} blocks, {fmt.count(num_tokens)} tokens",
    )
    yield "Fits", f"{fmt.plural(fit.num_sequences, 'sequence')} of {fmt.plural(size.seq_len, 'token')} that share nothing"


def _way_out(size: ModelSize, fit: GpuFit) -> str:
    """What would make room: the GPU, or the weights."""
    enough = (size.weights + fit.step + size.block) / fit.fraction
    smaller = "" if size.dtype != "float32" else "; or weights in half the bytes: --dtype bfloat16"
    return f"a GPU of {format_bytes(enough)} or more, or a smaller model{smaller}; a model is not spread over several GPUs"


def size_json(size: ModelSize) -> dict[str, Any]:
    """Of `--json`: bytes and counts as they are."""
    fit = size.fit
    return {
        "model_type": size.model_type,
        "parameters": size.num_parameters,
        "dtype": size.dtype,
        "weights_bytes": size.weights,
        "kv_dtype": size.stored_as,
        "kv_bytes_per_token": size.bytes_per_token,
        "block_size": size.block_size,
        "block_bytes": size.block,
        "seq_len": size.seq_len,
        "blocks_per_sequence": size.blocks_per_sequence,
        "sequence_bytes": size.sequence,
        "windowed_layers": sum(window is not None for window in size.windows),
        "windowed_sequence_bytes": size.windowed_sequence,
        "fit": fit and {
            "gpu_memory_bytes": fit.memory,
            "gpu_memory_fraction": fit.fraction,
            "step_bytes": fit.step,
            "kv_cache_bytes": fit.kv_bytes,
            "blocks": fit.num_blocks,
            "sequences": fit.num_sequences,
        },
    }
