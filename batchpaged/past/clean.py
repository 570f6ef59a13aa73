"""Deleting old runs: which may go, why the others stay, and how a directory goes so that none is ever left half deleted.

A directory is touched only if it is a run's beyond doubt: run.json and lock are there, and nothing that no run writes.
Links are never followed: a run directory that is a link is passed over, a link inside one is removed as a link.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from batchpaged.errors import RunDirectoryError
from batchpaged.past.runs import PastRun, find_runs, is_run_directory
from batchpaged.run.directory import OWN_NAMES, RunDirectory

# What is needed to go on with a run, and not to read its results; plan.json first: without it the rest counts as gone.
DELETED_MARK = "~batchpaged-deleted"  # of a run on a store; sorted, so deleted, after everything else
WORK = ("plan.json", "plan", "units", "prompts", "documents", "documents.parquet", "sittings", "stages")
_TEMPORARY = re.compile(r"\..*\.(tmp|old)")
_LEFTOVER = re.compile(r"\.batchpaged-deleted-.+")


@dataclass(frozen=True)
class Rules:
    """A run goes if it is neither among the last `keep` of its name nor younger than `min_age`."""

    keep: int = 0
    min_age: float = 0.0  # seconds
    only_work: bool = False  # output and reports stay


@dataclass(frozen=True)
class Decision:
    path: Path
    run: PastRun | None  # None: what an earlier deletion left
    reason: str  # why it goes, or stays
    goes: tuple[str, ...] = ()  # names in the directory; empty: it stays
    num_bytes: int = 0  # of these
    place: str = ""  # what messages call it, where that is not its path

    def __str__(self) -> str:
        return self.place or str(self.path)


def _has_owner(run: Path) -> bool:
    return RunDirectory(run).owner() is not None


def plan_cleaning(
    folder: Path | str, rules: Rules, now: float | None = None, is_at_work: Callable[[Path], bool] = _has_owner
) -> list[Decision]:
    """What would go, and why what stays does. Deletes nothing. Raises RunDirectoryError if it is no folder of runs."""
    folder = Path(folder)
    if is_run_directory(folder):
        raise RunDirectoryError(f"{folder} is a run directory itself; give the folder in which run directories lie")
    now = time.time() if now is None else now
    runs = find_runs(folder)
    last, good = _last_of_each_name(runs, rules.keep), _last_good_of_each_name(runs)
    decisions = [_decide(run, rules, run.id in last, run.id in good, now, is_at_work(run.path)) for run in runs]
    return [*(_leftover(path) for path in _leftovers(folder)), *decisions]


def _last_of_each_name(runs: Sequence[PastRun], keep: int) -> set[str]:
    by_name: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run.id)
    return {run_id for ids in by_name.values() for run_id in ids[-keep if keep else len(ids) :]}


def _last_good_of_each_name(runs: Sequence[PastRun]) -> set[str]:
    return set({run.name: run.id for run in runs if run.is_good}.values())


def _decide(
    run: PastRun, rules: Rules, is_last: bool, is_last_good: bool, now: float, is_owned: bool
) -> Decision:
    age = now - _last_touched(run)
    reasons = [
        (is_owned, "at work"),
        (is_last_good, "the last good run of its name"),
        (is_last, f"among the last {rules.keep} of its name"),
        (age < rules.min_age, f"{describe_age(age)} old"),
        (rules.only_work and run.report is None, "not finished"),
    ]
    strangers = sorted(name for name in _names(run.path) if not is_own_name(name))
    if strangers:
        reasons.append((True, f"holds what no run writes: {', '.join(strangers[:3])}"))
    stays = next((reason for applies, reason in reasons if applies), None)
    goes = () if stays else tuple(name for name in _names(run.path) if not rules.only_work or name in WORK)
    reason = stays or (f"{describe_age(age)} old" if goes else "nothing more to delete")
    return Decision(run.path, run, reason, goes, sum(_size(run.path / name) for name in goes))


def _last_touched(run: PastRun) -> float:
    """Seconds since 1970; of an unfinished run, when it last got on."""
    moments = [run.last_seen, RunDirectory(run.path).updated_at() if run.report is None else None]
    return max(datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() for moment in moments if moment)


def is_own_name(name: str) -> bool:
    return name in OWN_NAMES or name == DELETED_MARK or _TEMPORARY.fullmatch(name) is not None


def _names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def _leftovers(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and _is_leftover(path) and all(map(is_own_name, _names(path))):
            yield path


def _is_leftover(path: Path) -> bool:
    is_marked = (path / DELETED_MARK).exists() and not (path / "run.json").exists()
    return is_marked or _LEFTOVER.fullmatch(path.name) is not None


def _leftover(path: Path) -> Decision:
    names = tuple(_names(path))
    return Decision(path, None, "left of an interrupted deletion", names or ("",), sum(_size(path / n) for n in names))


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; a link has none."""
    if path.is_symlink():
        return 0
    if path.is_dir():
        return sum(map(_size, path.iterdir()))
    return path.stat().st_size


def describe_age(seconds: float) -> str:
    size, unit = next((pair for pair in ((86400, "days"), (3600, "hours")) if seconds >= 2 * pair[0]), (60, "minutes"))
    return f"{seconds / size:.0f} {unit}"


# --- deleting ---


def delete_all(decisions: Sequence[Decision], rules: Rules) -> list[str]:
    """Deletes what goes; -> what could not be deleted, and why. The others are deleted all the same."""
    errors = []
    for decision in decisions:
        try:
            if decision.goes:
                carry_out(decision, rules)
        except (RunDirectoryError, OSError) as error:
            errors.append(f"{decision.path}: not deleted: {getattr(error, 'strerror', None) or error}")
    return errors


def carry_out(decision: Decision, rules: Rules) -> None:
    """Deletes what the decision names. Raises RunDirectoryError if somebody has begun to work there, OSError."""
    if decision.run is None:
        _remove(decision.path, decision.goes)
        decision.path.rmdir()
        return
    with RunDirectory(decision.path).claim():
        if rules.only_work:
            _remove(decision.path, sorted(decision.goes, key=WORK.index))
            return
        # Gone in one step, under its own name; what the rest takes, or stops, is then nobody's run any more.
        doomed = decision.path.with_name(f".batchpaged-deleted-{decision.path.name}")
        decision.path.rename(doomed)
        _remove(doomed, [name for name in decision.goes if name != "lock"])
    _remove(doomed, ["lock"])
    doomed.rmdir()


def _remove(folder: Path, names: Sequence[str]) -> None:
    for name in filter(None, names):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)  # removes links in it, and not what they lead to
        else:
            path.unlink(missing_ok=True)
