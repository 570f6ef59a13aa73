"""Rows with the same documents in different orders. Without the cause, as `prompt.reorder` would have them."""

from collections import defaultdict
from collections.abc import Iterator

from batchpaged.dataset.cells import column_values
from batchpaged.dataset.reorder import Reorder, count_documents, hash_document
from batchpaged.dataset.schema import is_list
from batchpaged.errors import RowError
from batchpaged.planning.diagnosis.examination import Examination, Version
from batchpaged.planning.diagnosis.proposal import Proposal


def propose(examination: Examination, version: Version) -> Iterator[Proposal]:
    if examination.config.user is None:
        return
    for name in examination.columns:
        column = version.table[name]
        if is_list(column.type) and _has_two_orders(column_values(column, name)):
            reorder = Reorder(name, count_documents(column, name).shared())
            yield Proposal(
                cause="context_order",
                version=Version(reorder.apply(version.table), version.moved),
                what=f"rows with the same documents in {name} have them in different orders",
                subject=name,
                way_out=f"set prompt.reorder: {name}, or sort the column before the run; answers may change with it",
            )


def _has_two_orders(rows: list[list | RowError | None]) -> bool:
    orders: dict[tuple[int, ...], set[tuple[int, ...]]] = defaultdict(set)
    for documents in rows:
        if documents is not None and not isinstance(documents, RowError):
            order = tuple(map(hash_document, documents))
            orders[tuple(sorted(order))].add(order)
    return any(len(found) > 1 for found in orders.values())
