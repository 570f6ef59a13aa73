"""Where a run is killed: named calls of named functions, in every stage, chosen by a seed."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Functions by stage: module -> names in it. Renames are points as well, without being named here.
STAGES = {
    "start": {
        "batchpaged.run.directory": ["RunDirectory.open", "RunDirectory._create", "RunDirectory._make_folders"],
    },
    "reading": {
        "batchpaged.cluster.count_tasks": ["count_part", "merge_parts"],
        "batchpaged.cluster.prompt_tasks": ["tokenise_part", "write_prompts", "_build_prompts"],
        "batchpaged.dataset.source": ["_check_unchanged"],
    },
    "planning": {
        "batchpaged.planning.sorted_runs": ["sort_files"],
        "batchpaged.planning.partitions": ["order_partition"],
        "batchpaged.planning.unit_writing": ["write_partition", "write_failed"],
        "batchpaged.planning.plan_file": ["publish_plan"],
    },
    "inference": {
        "batchpaged.engine.build": ["build_engine"],
        "batchpaged.engine.engine": ["Engine.step"],
        "batchpaged.cluster.infer_tasks": ["_begin", "_finish"],
        "batchpaged.run.unit_file": ["write_unit"],
    },
    "assembling": {
        "batchpaged.dataset.windows": ["spread_units", "load_window"],
        "batchpaged.dataset.sink": ["assemble", "_write_files", "_write_success", "_publish"],
    },
    "report": {
        "batchpaged.run.collect": ["Sitting.write", "collect_facts"],
        "batchpaged.report.html": ["write_html"],
        "batchpaged.report.prometheus": ["write_prometheus"],
        "batchpaged.report.json": ["write_json"],
    },
}
# What renames belong to; `before` one of them is between temporary file and rename.
RENAME_STAGES = {
    "owner.json": "start",
    "run.json": "start",
    "documents": "reading",
    "documents.parquet": "reading",
    "prompts": "reading",
    "plan work": "planning",
    "plan": "planning",
    "plan.json": "planning",
    "units": "inference",
    "output": "assembling",
}
CHAIN = ("start", "reading", "planning", "inference", "inference", "assembling", "report")
ACTIONS = ("kill all", "kill all", "kill self")  # all processes more often: they leave most undone
MOST_CALLS = 24
TARGETS = {module: names for stage in STAGES.values() for module, names in stage.items()}


def stage_of(point: str) -> str:
    if point.startswith("rename "):
        return RENAME_STAGES.get(point.removeprefix("rename "), "report")
    return next(stage for stage, modules in STAGES.items() if any(point in names for names in modules.values()))


@dataclass(frozen=True)
class Fault:
    point: str  # a function, or "rename ..."
    call: int  # of it, from 1, over all processes of the run
    is_after: bool
    action: str = "kill all"  # "kill self": the process that got there alone

    def __str__(self) -> str:
        return f"{self.action}, {'after' if self.is_after else 'before'} {self.point} {self.call}"


def choose_chains(counts: Mapping[str, int], num_chains: int, seed: int) -> list[list[Fault]]:
    """Runs that are killed again and again, each time later than before: once in every stage, twice in inference.

    `counts`: calls of each point in an undisturbed run. Every point has its turn before one is used again, and no fault
    occurs twice.
    """
    chooser = random.Random(seed)
    supplies = {stage: _supply([p for p in counts if stage_of(p) == stage], counts, chooser) for stage in STAGES}
    return [[next(supplies[stage]) for stage in CHAIN] for _ in range(num_chains)]


def _supply(points: list[str], counts: Mapping[str, int], chooser: random.Random) -> Iterator[Fault]:
    faults = {point: _faults_at(point, counts[point], chooser) for point in sorted(points)}
    for turn in range(max(map(len, faults.values()))):
        due = [faults[point][turn] for point in faults if turn < len(faults[point])]
        chooser.shuffle(due)
        yield from due


def _faults_at(point: str, count: int, chooser: random.Random) -> list[Fault]:
    """All of them, shuffled; only early calls, since a run that was killed before needs fewer. How many steps an engine takes
    varies a little: with a limit the seed means the same faults every time."""
    calls = range(1, min(MOST_CALLS, max(1, count // 3)) + 1)
    faults = [Fault(point, call, is_after, chooser.choice(ACTIONS)) for call in calls for is_after in (False, True)]
    chooser.shuffle(faults)
    return faults
