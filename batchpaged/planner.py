"""The dry run behind `batchpaged plan`: tokenises and orders everything, computes and writes nothing."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from batchpaged.cluster.count_tasks import count_here
from batchpaged.cluster.prompt_tasks import build_prompts
from batchpaged.config import EngineConfig
from batchpaged.planning.estimate import ModelCost, estimate
from batchpaged.planning.plan_file import plan_table
from batchpaged.planning.summary import PlanSummary
from batchpaged.prepare import Prepared
from batchpaged.run.progress import Progress, ProgressReporter

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NUM_FAILED_SHOWN = 10
# Share of the matrix-product peak that a whole run reaches on a CPU, as measured (docs/benchmarks.md).
EFFICIENCY = 0.5


@dataclass(frozen=True)
class PlanReport:
    summary: PlanSummary
    num_failed_rows: int
    failed_rows: tuple[tuple[str, str], ...]  # (row id, reason), the first few
    kv_bytes_needed: int  # for a full batch
    kv_bytes_available: int
    estimated_seconds: float | None
    estimate_note: str


def plan_prepared(prepared: Prepared, reporter: ProgressReporter) -> PlanReport:
    table = tokenise(prepared, reporter)
    summary, _, _ = plan_table(table, prepared.pipeline.sampling.max_tokens, num_workers=1)
    failed = table.filter(pa.compute.equal(table["status"], "failed"))
    cost, device = _model_cost(prepared)
    engine = prepared.pipeline.engine
    needs = estimate(summary, cost, prepared.pipeline.sampling.max_tokens, engine.max_sequences)
    seconds, note = _seconds(needs.flops, device)
    return PlanReport(
        summary=summary,
        num_failed_rows=failed.num_rows,
        failed_rows=tuple((row["row_id"], row["error"]) for row in failed.slice(0, NUM_FAILED_SHOWN).to_pylist()),
        kv_bytes_needed=needs.kv_bytes_needed,
        kv_bytes_available=_kv_bytes_available(engine, cost.kv_bytes_per_token, device),
        estimated_seconds=seconds,
        estimate_note=note,
    )


def tokenise(prepared: Prepared, reporter: ProgressReporter) -> pa.Table:
    parts = prepared.source.parts
    reorder = count_here(prepared.pipeline, prepared.source, reporter)
    tables = []
    for part in parts:
        reporter.update(Progress("read", len(tables), len(parts), "parts"))
        tables.append(build_prompts(prepared.pipeline, prepared.source, part, prepared.model, reorder)[0])
    reporter.update(Progress("plan", 0, prepared.source.num_rows, "rows"))
    return pa.concat_tables(tables)


def _model_cost(prepared: Prepared) -> tuple[ModelCost, str]:
    from batchpaged.engine.build import choose_device
    from batchpaged.models.kv_shape import layer_shapes
    from batchpaged.models.load import resolve_dtype

    pipeline, config = prepared.pipeline, prepared.config
    device = choose_device(pipeline.engine.device, 0)
    dtype = resolve_dtype(getattr(config, "dtype", None), pipeline.model.dtype, device)
    num_layer_parameters, num_head_parameters = count_parameters(config)
    values = sum(shape.num_values for shape in layer_shapes(config))
    layers = 2.0 * num_layer_parameters
    return ModelCost(layers, layers + 2.0 * num_head_parameters, values * dtype.itemsize), device


def count_parameters(config: "PreTrainedConfig") -> tuple[int, int]:
    """(parameters multiplied with every token, parameters of the output head), counted without allocating them.

    Mixture-of-experts layers count whole, which is more than a token uses.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings()
    num_head = head.weight.numel() if head is not None else 0
    embeddings = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    skipped = embeddings | ({id(head.weight)} if head is not None else set())
    return sum(p.numel() for p in model.parameters() if id(p) not in skipped), num_head


def _kv_bytes_available(engine: EngineConfig, bytes_per_token: int, device: str) -> int:
    from batchpaged.engine.build import kv_cache_bytes

    if isinstance(engine.kv_cache, int):
        return engine.kv_cache * engine.block_size * bytes_per_token
    return kv_cache_bytes(engine.kv_cache, device)


def _seconds(flops: float, device: str) -> tuple[float | None, str]:
    if device != "cpu":
        return None, "no estimate for a GPU yet"
    from batchpaged.bench import measure_matmul_flops

    rate = measure_matmul_flops()
    return flops / (rate * EFFICIENCY), f"if every completion takes max_tokens; {rate / 1e9:.0f} GFLOP/s measured here"
