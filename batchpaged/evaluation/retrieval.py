"""How good the retrieved contexts are, where a row says which would have been right. The model has no part in it.

Contexts are texts or ids, the best first. Two are the same when they are equal but for white space at the ends and its
amount in between. A context that comes twice counts where it comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

_AT_K = re.compile(r"(recall|precision)_at_([1-9][0-9]*)")

RetrievalMetric = Callable[[Sequence[str], Sequence[str]], float]  # of contexts and gold contexts, neither of them empty


def retrieval_metric(name: str) -> RetrievalMetric | None:
    """`recall_at_5`, `precision_at_5` (any number) or `mrr`; None for any other name."""
    if name == "mrr":
        return reciprocal_rank
    match = _AT_K.fullmatch(name)
    if match is None:
        return None
    return partial(recall if match[1] == "recall" else precision, k=int(match[2]))


def recall(contexts: Sequence[str], gold: Sequence[str], k: int) -> float:
    """Of the gold contexts, the share that is among the first k."""
    wanted = {_same(text) for text in gold}
    return len(wanted & set(_distinct(contexts)[:k])) / len(wanted)


def precision(contexts: Sequence[str], gold: Sequence[str], k: int) -> float:
    """Of k contexts, the share that is gold; where fewer were retrieved, the missing ones are not."""
    return len({_same(text) for text in gold} & set(_distinct(contexts)[:k])) / k


def reciprocal_rank(contexts: Sequence[str], gold: Sequence[str]) -> float:
    """1 / place of the first gold context, counted from 1; 0 if there is none. Its mean over rows is the MRR."""
    wanted = {_same(text) for text in gold}
    return next((1 / place for place, text in enumerate(_distinct(contexts), 1) if text in wanted), 0.0)


def _distinct(contexts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(map(_same, contexts)))


def _same(text: str) -> str:
    return " ".join(text.split())
