"""The run directory: everything a run writes, and what makes it possible to go on after a crash.

    run.json             what the run is of (written first)
    prompts/             tokenised prompts, one file per input part
    plan/, plan.json     prompts in planned order, cut into units
    units/               finished units, one file each, published by rename: nothing else marks a unit as done
    stages/              of a run of several stages: a run directory for each; .NAME.earlier is what a stage was that begins anew
    output/              the result, `_SUCCESS` last
    previous.json        report of the previous good run, if a gate compares with it
    scores.parquet       what each row scored, in the order of the output
    report.json .html, metrics.prom
    log.jsonl            what happened, one JSON object a line
    lock, owner.json     held by the process that runs it
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import xxhash

from batchpaged.atomic import write_text
from batchpaged.clock import utc, utc_now
from batchpaged.dataset.parts import Part
from batchpaged.errors import RunDirectoryError
from batchpaged.run.fingerprint import changes, fingerprint
from batchpaged.run.lock import RunLock, refusing
from batchpaged.run.unit_file import DamagedUnit, check_unit, read_unit_facts

FORMAT = 1
OWN_NAMES = {
    "run.json", "documents", "documents.parquet", "prompts", "plan", "plan.json", "units", "output",
    ".output.tmp", ".output.old", "report.json", "report.html", "metrics.prom", "lock", "owner.json", "sittings",
    "previous.json", "log.jsonl", "scores.parquet", "stages",
}  # fmt: skip


class RunDirectory:
    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.prompts = self.path / "prompts"
        self.documents = self.path / "documents"
        self.document_counts = self.path / "documents.parquet"
        self.units = self.path / "units"
        self.output = self.path / "output"
        self.sittings = self.path / "sittings"
        self.scores = self.path / "scores.parquet"
        self.report = self.path / "report.json"
        self.log = self.path / "log.jsonl"
        self._lock = RunLock(self.path)

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").exists()

    @property
    def is_finished(self) -> bool:
        return (self.output / "_SUCCESS").exists() and self.report.exists()

    @property
    def version(self) -> tuple[int, int] | None:
        """What changes when the directory is given to another run; far cheaper than `info` where files are many."""
        try:
            stat = (self.path / "run.json").stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def info(self) -> dict[str, Any]:
        """run.json. Raises RunDirectoryError if there is none, or none that can be read."""
        try:
            info = json.loads((self.path / "run.json").read_text())
            return {**info, "identity": dict(info["identity"])}
        except FileNotFoundError as error:
            raise RunDirectoryError(f"{self.path} is not a run directory: it has no run.json") from error
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise RunDirectoryError(f"{self.path}/run.json cannot be read; use --fresh to start over") from error

    def plan_work(self, sitting: str) -> Path:
        """Where a sitting plans; it deletes the folder, and the next one does if it could not."""
        return self.path / f".plan.{sitting}.tmp"

    def of_stage(self, name: str) -> "RunDirectory":
        return RunDirectory(self.path / "stages" / name)

    @property
    def earlier(self) -> "RunDirectory":
        """Of a stage that begins anew: what it was before, until its rows are taken over."""
        return RunDirectory(self.path.with_name(f".{self.path.name}.earlier"))

    def prompt_file(self, part: Part) -> Path:
        return self.prompts / _name(part)

    def document_file(self, part: Part) -> Path:
        return self.documents / _name(part)

    def unit_file(self, unit: int) -> Path:
        return self.units / f"unit-{unit:06}.parquet"

    def retry_file(self, unit: int) -> Path:
        """A finished unit that was set aside: its failed rows are to be computed again."""
        return self.units / f"retry-{unit:06}.parquet"

    def is_unit_done(self, unit: int) -> bool:
        return self.unit_file(unit).exists()

    def finished_units(self, num_units: int) -> tuple[dict[int, dict[str, Any]], int]:
        """Facts of the finished units, all of which are read, and how many were damaged: those are deleted, so that they are
        computed anew."""
        facts, num_damaged = {}, 0
        for unit in filter(self.is_unit_done, range(num_units)):
            try:
                facts[unit] = read_unit_facts(self.unit_file(unit))
                check_unit(self.unit_file(unit))
            except DamagedUnit:
                facts.pop(unit, None)
                self.unit_file(unit).unlink()
                num_damaged += 1
        return facts, num_damaged

    def set_aside(self, units: Iterable[int]) -> None:
        """Open finished units again for the failed rows in them; whatever ends this, the run can go on."""
        self.report.unlink(missing_ok=True)
        for unit in filter(self.is_unit_done, units):
            self.unit_file(unit).rename(self.retry_file(unit))

    def set_all_aside(self) -> None:
        """Begin anew, beside what is finished; whatever ends this, the run can go on. Nobody else may hold the lock."""
        if self.earlier.exists:  # and nothing here has begun: it would have been taken over before
            self.delete()
        elif self.exists:
            shutil.rmtree(self.earlier.path, ignore_errors=True)
            self.path.rename(self.earlier.path)

    def delete(self) -> None:
        """All of it, so that half of it is no run."""
        self.clear()
        shutil.rmtree(self.path, ignore_errors=True)

    def finished_at(self) -> str:
        """When the output was published; a report that is written again keeps it."""
        return utc((self.output / "_SUCCESS").stat().st_mtime)

    def updated_at(self) -> str | None:
        """When the run last made progress that is on disk."""
        names = (self.units, self.prompts, self.path / "plan.json", self.output, self.report)
        times = [path.stat().st_mtime for path in names if path.exists()]
        return utc(max(times)) if times else None

    def owner(self) -> dict[str, Any] | None:
        """Process that runs it now ({pid, host, started_at}); None if there is none, or if we may not know."""
        return self._lock.owner()

    def lock(self) -> AbstractContextManager:
        """Held while a run goes on. Raises RunDirectoryError if another process holds it, or if nothing can be written here."""
        return self._lock.hold()

    def claim(self) -> AbstractContextManager:
        """The lock, of a directory that is there, for work on it that is no run. Raises RunDirectoryError if it is held."""
        return self._lock.claim()

    def check_free(self) -> None:
        """Raise RunDirectoryError if other files are there, or another process is at work. Writes nothing."""
        names = self._names()
        # Only a run makes the lock; without it, even files that are called like a run's are somebody else's.
        strangers = names if "lock" not in names else names - OWN_NAMES
        if strangers and not self.exists:
            shown = ", ".join(sorted(strangers)[:3])
            raise RunDirectoryError(f"{self.path} holds other files ({shown}) and no run; give an empty folder")
        self._lock.check_free()

    def check_usable(self, identity: Mapping[str, Any], fresh: bool) -> None:
        """Raise RunDirectoryError unless the directory is new, of the same run, or to be cleared. Writes nothing."""
        self.check_free()
        if not fresh and self.exists:
            self._check_same(identity)

    def _names(self) -> set[str]:
        try:
            return {path.name for path in self.path.iterdir() if not path.name.startswith(".")}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be used as a run directory ({error.strerror})") from error

    def _check_same(self, identity: Mapping[str, Any]) -> None:
        info = self.info()
        if info.get("format") == FORMAT and info["fingerprint"] == fingerprint(identity):
            return
        reasons = changes(info["identity"], identity) or ["it was written by another version of batchpaged"]
        raise RunDirectoryError(
            f"{self.path} holds run {info['run_id']} of something else:\n  - " + "\n  - ".join(reasons) + "\n"
            "Undo the change to go on, give another --run-dir, or start over with --fresh (its results are deleted)"
        )

    def open(self, name: str, identity: Mapping[str, Any], fresh: bool) -> dict[str, Any]:
        """Create or take up the run; the lock must be held. -> run.json's content."""
        with refusing(self.path):
            if fresh or not self.exists:  # without run.json, what is there is left of an interrupted clearing
                self.clear()
            if not self.exists:
                self._create(name, identity)
            self._check_same(identity)  # another process may have been quicker
            self._make_folders()
        return self.info()

    def _make_folders(self) -> None:
        for folder in (self.prompts, self.units, self.sittings):
            folder.mkdir(exist_ok=True)
        self.remove_half_files()
        for leftover in self.units.glob("retry-*.parquet"):  # of units that are done again
            if leftover.with_name(leftover.name.replace("retry-", "unit-")).exists():
                leftover.unlink(missing_ok=True)
        for leftover in self.path.glob(".plan.*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def remove_half_files(self) -> None:
        """What killed processes were writing. Nobody may be writing now."""
        for folder in (self.path, self.documents, self.prompts, self.path / "plan", self.units, self.sittings):
            for leftover in filter(Path.is_file, folder.glob(".*.tmp")):
                leftover.unlink(missing_ok=True)

    def _create(self, name: str, identity: Mapping[str, Any]) -> None:
        run_id = f"{name}-{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{xxhash.xxh3_64_hexdigest(os.urandom(8))[:6]}"
        info = {"format": FORMAT, "run_id": run_id, "name": name, "fingerprint": fingerprint(identity)}
        content = {**info, "started_at": utc_now(), "identity": identity}
        write_text(self.path / "run.json", json.dumps(content, indent=1))

    def clear(self) -> None:
        """Delete everything of the run but the lock, which must be held."""
        # run.json goes first: what is left of an interrupted clearing is no run.
        self._remove(["run.json", *sorted(OWN_NAMES - {"run.json", "lock", "owner.json"})])

    def remove_results(self) -> None:
        """Output and reports, of a run that has others."""
        self._remove(["report.json", "output", "scores.parquet", "report.html", "metrics.prom"])

    def _remove(self, names: Iterable[str]) -> None:
        for path in (self.path / name for name in names):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _name(part: Part) -> str:
    """Its rows, not its number: another version may cut the same input into other parts."""
    return f"rows-{part.first_ordinal:012}-{part.first_ordinal + part.num_rows:012}.parquet"
