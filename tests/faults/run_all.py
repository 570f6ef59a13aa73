"""Kills runs at many points and compares what they come to: python tests/faults/run_all.py

Each of the chosen runs is killed in every stage, goes on each time, and at last has to hold what an undisturbed run holds. Its
finished units have to be those that were finished before. Figures of a full run are in docs/reliability.md.
"""

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.faulty_runs import FaultyRun, Sitting, Starter, make_pipeline
from faults.points import Fault, choose_chains, stage_of
from tiny_models import save_tiny


def main() -> int:
    options = parse_options()
    with ExitStack() as stack:
        holder = stack.enter_context(tempfile.TemporaryDirectory(prefix="batchpaged-faults-"))
        folder = Path(holder)
        (folder / "data").mkdir()
        pipeline = make_pipeline(folder / "data", save_tiny(folder / "model"))
        starter = stack.enter_context(Starter())
        undisturbed = FaultyRun(folder / "undisturbed", pipeline, starter)
        sitting = undisturbed.sit()
        if sitting.exit_code != 0:
            sys.exit(sitting.text)
        chains = choose_chains(sitting.counts, options.chains, options.seed)
        first, end = options.part or (0, len(chains))
        results = []
        for i, chain in enumerate(chains[first:end], first):
            results += run_chain(folder / f"chain-{i}", pipeline, chain, undisturbed)
            if options.results:
                options.results.write_text("".join(json.dumps(result) + "\n" for result in results))
    return tell(results)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=9, help="runs, each with seven faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=int, nargs=2, metavar=("FIRST", "END"), help="only these of the runs")
    parser.add_argument("--results", type=Path, help="file that gets a line of JSON for each fault")
    return parser.parse_args()


def run_chain(folder: Path, pipeline: dict, chain: list[Fault], undisturbed: FaultyRun) -> list[dict]:
    """One entry per fault. A worker that is killed alone is replaced and the run ends: the next fault gets a new run."""
    results, waiting, num_runs = [], list(chain), 0
    while waiting:
        run, pending, is_done = FaultyRun(folder / str(num_runs), pipeline, undisturbed.starter), [], False
        num_runs += 1
        while not is_done:
            fault = waiting.pop(0) if waiting else None
            before, started = run.unit_times(), time.perf_counter()
            sitting = run.sit(fault)
            kept = before.items() <= run.unit_times().items()
            if fault:
                pending.append(entry(fault, sitting, kept, time.perf_counter() - started))
            is_done = sitting.exit_code >= 0
        problems = judge(run, sitting, undisturbed)
        results += [{**result, "problems": result["problems"] + problems} for result in pending]
        for result in results[-len(pending) :]:
            print(f"{'ok ' if not result['problems'] else 'BAD'} {result['fault']}  {result['problems'] or ''}", flush=True)
    return results


def entry(fault: Fault, sitting: Sitting, are_units_kept: bool, seconds: float) -> dict:
    problems = [] if sitting.is_reached else ["the point was not reached"]
    problems += [] if are_units_kept else ["finished units were computed again"]
    return {
        "fault": str(fault),
        "point": fault.point,
        "stage": stage_of(fault.point),
        "action": fault.action,
        "exit_code": sitting.exit_code,
        "seconds": round(seconds, 1),
        "problems": problems,
    }


def judge(run: FaultyRun, last: Sitting, undisturbed: FaultyRun) -> list[str]:
    """What is wrong with a run that has come to its end."""
    if last.exit_code != 0:
        return [f"exit code {last.exit_code}: {last.text[-300:]}"]
    problems = [] if run.content() == undisturbed.content() else ["the output differs"]
    problems += ["a traceback was shown"] if "Traceback" in last.text else []
    return problems + [f"left behind: {name}" for name in run.leftovers()]


def tell(results: list[dict]) -> int:
    num_bad = sum(bool(result["problems"]) for result in results)
    num_points = len({result["point"] for result in results})
    print(f"{len(results)} faults at {num_points} points, {len(results) - num_bad} without harm, {num_bad} with")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
