"""The dry run behind `batchpaged plan`: tokenises and orders everything in a temporary folder, computes nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchpaged.cluster.count_tasks import count_here
from batchpaged.cluster.prompt_tasks import Builds, plan_settings, prompt_builder, write_prompts
from batchpaged.config import EngineConfig
from batchpaged.config.sizes import parse_bytes
from batchpaged.dataset.reorder import Reorder
from batchpaged.planning.cost import ModelCost
from batchpaged.planning.diagnosis.diagnose import diagnose
from batchpaged.planning.diagnosis.findings import Diagnosis
from batchpaged.planning.estimate import estimate
from batchpaged.planning.plan_file import read_unit, token_lists
from batchpaged.planning.planner import make_plan, preview_plan
from batchpaged.planning.summary import PlanSummary
from batchpaged.prepare import Prepared
from batchpaged.run.progress import Progress, ProgressReporter
from batchpaged.simulation.plan_replay import Worker, simulate_plan
from batchpaged.simulation.prompts import read_prompts
from batchpaged.simulation.request import SimulationRequest
from batchpaged.simulation.result import Simulation

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NUM_FAILED_SHOWN = 10
# Share of the matrix-product peak that a whole run reaches on a CPU, as measured (docs/benchmarks.md).
EFFICIENCY = 0.65


@dataclass(frozen=True)
class PlanReport:
    summary: PlanSummary
    num_failed_rows: int
    failed_rows: tuple[tuple[str, str], ...]  # (row id, reason), the first few
    kv_bytes_needed: int  # for a full batch
    kv_bytes_available: int
    estimated_seconds: float | None
    estimate_note: str
    diagnosis: Diagnosis  # why prefixes miss
    simulation: Simulation | None = None  # if one was asked for


def plan_prepared(
    prepared: Prepared, reporter: ProgressReporter, request: SimulationRequest | None = None
) -> PlanReport:
    pipeline, engine = prepared.pipeline, prepared.pipeline.engine
    reorder = count_here(pipeline, prepared.source, reporter)
    cost, device = model_cost(prepared)
    with TemporaryDirectory(prefix="batchpaged-plan-") as folder:
        files = tokenise(prepared, Path(folder), reorder, reporter)
        settings = plan_settings(pipeline, cost, num_workers=1)
        work, run = subfolder(folder, "work"), subfolder(folder, "run")
        summary = make_plan(files, work, run, settings) if request else preview_plan(files, work, settings)[0]
        prompts = read_prompts(run, request.num_rows) if request else ()
        failed_rows = tuple(islice(_failed_rows(files), NUM_FAILED_SHOWN))
    sampling = pipeline.sampling
    max_rows = max(1, engine.max_sequences // sampling.num_sequences)
    needs = estimate(summary, cost, sampling.max_tokens * sampling.num_sequences, max_rows)
    worker = Worker(cost, _kv_bytes_available(engine, cost.kv_bytes_per_token, device), _flops_per_second(device))
    seconds, note = _seconds(needs.flops, worker.flops_per_second)
    num_planned = summary.num_rows - summary.num_failed
    return PlanReport(
        summary=summary,
        num_failed_rows=summary.num_failed,
        failed_rows=failed_rows,
        kv_bytes_needed=needs.kv_bytes_needed,
        kv_bytes_available=worker.kv_bytes,
        estimated_seconds=seconds,
        estimate_note=note,
        diagnosis=_diagnose(prepared, reorder),
        simulation=simulate_plan(prompts, num_planned, pipeline, settings.cost, worker, request, reporter)
        if prompts
        else None,
    )


def _diagnose(prepared: Prepared, reorder: Reorder | None) -> Diagnosis:
    builder = prompt_builder(prepared.pipeline, prepared.model)
    return diagnose(prepared.pipeline, prepared.source, builder, reorder)


def tokenise(
    prepared: Prepared, folder: Path, reorder: Reorder | None, reporter: ProgressReporter, builder: Builds | None = None
) -> list[Path]:
    """Write the prompts of all parts (PROMPTS_SCHEMA) to files in `folder`, as a run does. -> the files, in order.

    `builder`: as of `write_prompts`.
    """
    parts = prepared.source.parts
    files = []
    for part in parts:
        reporter.update(Progress("read", part.index, len(parts), "parts"))
        files.append(folder / f"part-{part.index:05}.parquet")
        write_prompts(files[-1], prepared.pipeline, prepared.source, part, prepared.model, reorder, builder=builder)
    reporter.update(Progress("plan", 0, prepared.source.num_rows, "rows"))
    return files


def planned_prompts(prepared: Prepared, reporter: ProgressReporter) -> tuple[PlanSummary, list[list[int]]]:
    """The prompts of all rows that have one, in planned order, in memory."""
    reorder = count_here(prepared.pipeline, prepared.source, reporter)
    with TemporaryDirectory(prefix="batchpaged-plan-") as folder:
        files = tokenise(prepared, Path(folder), reorder, reporter)
        run, work = subfolder(folder, "run"), subfolder(folder, "work")
        summary = make_plan(files, work, run, plan_settings(prepared.pipeline, None, num_workers=1))
        units = (read_unit(run, unit) for unit in range(summary.num_units))
        return summary, [ids for unit in units for ids in token_lists(unit) if ids is not None]


def subfolder(folder: str, name: str) -> Path:
    path = Path(folder) / name
    path.mkdir()
    return path


def _failed_rows(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """(row id, reason), in input order."""
    for path in files:
        rows = pq.read_table(path, columns=["row_id", "status", "error"])
        failed = rows.filter(pc.equal(rows["status"], "failed"))
        yield from zip(failed["row_id"].to_pylist(), failed["error"].to_pylist(), strict=True)


def known_model_cost(prepared: Prepared) -> ModelCost | None:
    """For cutting units: None where the model cannot be built without weights, which must not stop a run."""
    try:
        return model_cost(prepared)[0]
    except Exception:  # model classes are transformers' own, and can raise anything
        return None


def model_cost(prepared: Prepared) -> tuple[ModelCost, str]:
    from batchpaged.engine.build import choose_device
    from batchpaged.models.kv_shape import kv_bytes_per_token, layer_shapes
    from batchpaged.models.load import resolve_dtype

    pipeline, config = prepared.pipeline, prepared.config
    device = choose_device(pipeline.engine.device)
    dtype = resolve_dtype(getattr(config, "dtype", None), pipeline.model.dtype, device)
    num_layer_parameters, num_head_parameters = count_parameters(config)
    shapes = layer_shapes(config)
    kv_bytes = kv_bytes_per_token(shapes, dtype, pipeline.engine.kv_dtype)
    layers = 2.0 * num_layer_parameters
    # A query head multiplies and adds with one key and one value.
    context = 2.0 * config.num_attention_heads * sum(shape.head_dim + shape.value_dim for shape in shapes)
    return ModelCost(layers, layers + 2.0 * num_head_parameters, kv_bytes, context), device


def count_parameters(config: "PreTrainedConfig") -> tuple[int, int]:
    """(parameters multiplied with every token, parameters of the output head), counted without allocating them.

    Mixture-of-experts layers count whole, which is more than a token uses.
    """
    import torch

    from batchpaged.models.shell import model_without_weights

    model = model_without_weights(config)
    head = model.get_output_embeddings()
    num_head = head.weight.numel() if head is not None else 0
    embeddings = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    skipped = embeddings | ({id(head.weight)} if head is not None else set())
    return sum(p.numel() for p in model.parameters() if id(p) not in skipped), num_head


def _kv_bytes_available(engine: EngineConfig, bytes_per_token: int, device: str) -> int:
    from batchpaged.engine.build import free_kv_bytes

    if isinstance(engine.kv_cache, int):
        return engine.kv_cache * engine.block_size * bytes_per_token
    return free_kv_bytes(device) if engine.kv_cache == "auto" else parse_bytes(engine.kv_cache)


def _flops_per_second(device: str) -> float | None:
    """That a whole run reaches; None where it is not known."""
    if device != "cpu":
        return None
    from batchpaged.matmul_rate import measure_matmul_rate

    return measure_matmul_rate().sustained * EFFICIENCY


def _seconds(flops: float, rate: float | None) -> tuple[float | None, str]:
    if rate is None:
        return None, "no estimate for a GPU yet"
    return flops / rate, f"if every completion takes max_tokens; {rate / EFFICIENCY / 1e9:.0f} GFLOP/s measured here"
