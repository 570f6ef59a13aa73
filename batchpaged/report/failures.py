"""Failed rows grouped by reason.

Reasons name lengths and types, so a thousand rows that are too long give a thousand different messages. Messages that
differ only in their numbers are one reason, shown with N in place of the numbers that differ.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchpaged.report.rows import batches

NO_REASON = "no reason recorded"
OTHER_REASONS = "other reasons"
MOST_GROUPS = 20
_NUMBER = re.compile(r"\b\d[\d,_]*(\.\d+)?\b")


@dataclass(frozen=True)
class FailureGroup:
    """Rows that failed for one reason; `first_ids` are the first ones in input order."""

    reason: str
    num_rows: int
    first_ids: tuple[str, ...]


def count_failures(rows: pa.Table) -> dict[str, int]:
    """Reason -> rows, most frequent first; at most MOST_GROUPS reasons, then the rest as one."""
    return {group.reason: group.num_rows for group in group_failures(rows, num_ids=0)}


def group_failures(rows: pa.Table, num_ids: int = 20) -> tuple[FailureGroup, ...]:
    """Failed rows by reason, most frequent first, each with its first `num_ids` row ids."""
    messages = _count_messages(rows)
    reasons = _name_reasons(messages)
    counts = _count_reasons(messages, reasons)
    first_ids = _first_ids(rows, reasons, num_ids) if num_ids else {}
    return tuple(FailureGroup(reason, count, tuple(first_ids.get(reason, ()))) for reason, count in counts.items())


def _failed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(batch["status"], "failed"))


def _messages(batch: pa.RecordBatch) -> pa.Array:
    return pc.fill_null(batch["error"].cast(pa.string()), NO_REASON)


def _count_messages(rows: pa.Table) -> Counter[str]:
    counts: Counter[str] = Counter()
    for batch in batches(rows):
        for entry in pc.value_counts(_messages(_failed(batch))).to_pylist():
            counts[entry["values"]] += entry["counts"]
    return counts


def _name_reasons(messages: Counter[str]) -> dict[str, str]:
    """Message -> reason; beyond MOST_GROUPS patterns, the rarest share one name."""
    siblings: dict[str, list[str]] = defaultdict(list)
    for message in messages:
        siblings[_NUMBER.sub("N", message)].append(message)
    weights = {pattern: sum(messages[m] for m in group) for pattern, group in siblings.items()}
    kept = sorted(weights, key=lambda pattern: (-weights[pattern], pattern))[:MOST_GROUPS]
    names = {pattern: _common_form(siblings[pattern]) for pattern in kept}
    return {m: names.get(pattern, OTHER_REASONS) for pattern, group in siblings.items() for m in group}


def _common_form(messages: list[str]) -> str:
    """What messages of one pattern have in common: numbers that are the same in all of them stay."""
    columns = zip(*([match.group() for match in _NUMBER.finditer(message)] for message in messages))
    numbers = iter([column[0] if len(set(column)) == 1 else "N" for column in columns])
    return _NUMBER.sub(lambda _: next(numbers), messages[0])


def _count_reasons(messages: Counter[str], reasons: dict[str, str]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for message, count in messages.items():
        counts[reasons[message]] += count
    return dict(sorted(counts.items(), key=lambda item: (item[0] == OTHER_REASONS, -item[1], item[0])))


def _first_ids(rows: pa.Table, reasons: dict[str, str], num_ids: int) -> dict[str, list[str]]:
    """Stops reading as soon as every reason has its ids."""
    names = list(dict.fromkeys(reasons.values()))
    messages = pa.array(list(reasons), pa.string())
    group_of_message = np.array([names.index(reason) for reason in reasons.values()], dtype=np.int64)
    found: dict[str, list[str]] = {name: [] for name in names}
    for batch in map(_failed, batches(rows)):
        groups = group_of_message[pc.index_in(_messages(batch), value_set=messages).to_numpy(zero_copy_only=False)]
        for group, name in enumerate(names):
            wanted = np.flatnonzero(groups == group)[: num_ids - len(found[name])]
            found[name] += [str(row_id) for row_id in batch["row_id"].take(pa.array(wanted)).to_pylist()]
        if all(len(ids) == num_ids for ids in found.values()):
            break
    return found
