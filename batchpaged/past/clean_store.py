"""`clean` for runs on an object store: the same rules, and another way to go, as nothing can be renamed there.

A run that goes is marked first, and its run.json deleted next: whatever stops the rest, it is nobody's run then, and the
next cleaning finds the mark.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from batchpaged.errors import RunDirectoryError
from batchpaged.past.clean import DELETED_MARK, WORK, Decision, Rules, plan_cleaning
from batchpaged.past.stored_runs import drawn_files
from batchpaged.run.directory import RunDirectory
from batchpaged.run.store import Store, StoreError
from batchpaged.run.store_lock import LOCK_FILE, store_lock
from batchpaged.run.stored import working_copy


def plan_cleaning_of_store(folder: Store, rules: Rules, now: float | None = None) -> list[Decision]:
    """As plan_cleaning. A lock counts as a client at work: whether it lives is seen only when it is waited for."""
    with drawn_files(folder) as path:
        decisions = plan_cleaning(path, rules, now, lambda run: (run / LOCK_FILE).exists())
    return [replace(decision, place=folder.child(decision.path.name).name) for decision in decisions]


def delete_all_of_store(folder: Store, decisions: Sequence[Decision], rules: Rules) -> list[str]:
    """As delete_all."""
    errors = []
    for decision in decisions:
        try:
            if decision.goes:
                _carry_out(folder.child(decision.path.name), decision, rules)
        except (RunDirectoryError, StoreError, OSError) as error:
            errors.append(f"{decision.place}: not deleted: {error}")
    return errors


def _carry_out(run: Store, decision: Decision, rules: Rules) -> None:
    if decision.run is None:
        run.delete_all()
        return
    with store_lock(run, lambda line: None):
        if rules.only_work:
            for name in sorted(decision.goes, key=WORK.index):
                run.delete_tree(name)
            return
        run.write(DELETED_MARK, b"deleted by batchpaged clean")
        run.delete("run.json")
        run.delete_all()
    _delete_working_copy(run)


def _delete_working_copy(run: Store) -> None:
    """Of this machine; others have theirs."""
    path = working_copy(run.name)
    if path.exists():
        with RunDirectory(path).claim():
            shutil.rmtree(path)
