"""The libraries and files that a worker's threads share, brought in by one thread at a time.

While transformers is imported it replaces modules of its own: a second thread that imports from it meanwhile may be
handed the half-made ones. A worker starts with many threads that all need it at once.
"""

import threading

from batchpaged.models.resolve import ResolvedModel

_lock = threading.Lock()
_ready: set[str] = set()  # paths of the models whose classes are imported


def import_engine() -> None:
    """What every model needs."""
    with _lock:
        import batchpaged.engine.build  # noqa: F401


def import_model(model: ResolvedModel) -> None:
    """That, and what this model's tokenizer and layers are made of. Raises ModelError."""
    import_engine()
    with _lock:
        if str(model.path) not in _ready:
            _import_classes(model)
            _ready.add(str(model.path))


def _import_classes(model: ResolvedModel) -> None:
    from batchpaged.models.load import load_config, load_tokenizer
    from batchpaged.models.refusals import causal_class

    load_tokenizer(model)
    causal_class(load_config(model))
