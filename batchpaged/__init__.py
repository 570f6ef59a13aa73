"""Offline batch inference for RAG data sets: every prompt is planned by shared prefix, no prefix is computed twice.

>>> import batchpaged
>>> result = batchpaged.run("pipelines/rag_eval.yaml")
>>> result.report["prefix_cache_hit_rate"]
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchpaged.api import PlanReport, RunResult, RunStatus, Validation, plan, status, validate
    from batchpaged.errors import BatchpagedError, RefusedError, UnfinishedError
    from batchpaged.generation import Generation, generate
    from batchpaged.sizing.size import kv_cache_bytes

# Where each public name lives; imported on first use, because torch and transformers take seconds.
_HOMES = {
    "BatchpagedError": "batchpaged.errors",
    "Generation": "batchpaged.generation",
    "PlanReport": "batchpaged.api",
    "RefusedError": "batchpaged.errors",
    "RunResult": "batchpaged.api",
    "RunStatus": "batchpaged.api",
    "UnfinishedError": "batchpaged.errors",
    "Validation": "batchpaged.api",
    "generate": "batchpaged.generation",
    "kv_cache_bytes": "batchpaged.sizing.size",
    "plan": "batchpaged.api",
    "status": "batchpaged.api",
    "validate": "batchpaged.api",
}
__all__ = sorted([*_HOMES, "run"])


def __getattr__(name: str) -> Any:
    if name == "run":  # a package that is called like a function: whichever is imported first, both work
        return importlib.import_module("batchpaged.run")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
