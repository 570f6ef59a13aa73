"""Keeps transformers and the hub client from drawing bars and warnings of their own over ours."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no log lines below errors while the block runs; afterwards everything is as it was."""
    from transformers.utils import logging

    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
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
