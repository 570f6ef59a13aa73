"""Keeps transformers and the hub client from drawing bars and warnings of their own over ours."""

import contextlib
import threading
from collections.abc import Iterator


_lock = threading.Lock()
_num_quiet = 0  # threads inside quiet_transformers; the settings are the process's
_before: tuple[int, bool] = (0, True)  # verbosity and whether there were bars, before the first of them


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no log lines below errors while any thread is in the block; then everything is as it was."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _num_quiet, _before
    from transformers.utils import logging

    with _lock:
        _num_quiet += 1
        if _num_quiet == 1:
            _before = logging.get_verbosity(), logging.is_progress_bar_enabled()
            logging.set_verbosity_error()
            logging.disable_progress_bar()


def _leave() -> None:
    global _num_quiet
    from transformers.utils import logging

    with _lock:
        _num_quiet -= 1
        if _num_quiet == 0:
            verbosity, had_bars = _before
            logging.set_verbosity(verbosity)
            if had_bars:
                logging.enable_progress_bar()


@contextlib.contextmanager
def quiet_hub() -> Iterator[None]:
    """No progress bars of the hub client while the block runs."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
