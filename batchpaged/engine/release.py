"""Memory goes back to the system once an engine has gone: its process may live on, and others want the GPU."""

import gc
import sys


def release_memory() -> None:
    """Give back what nobody holds any more, reference cycles included; `gc.freeze` had hidden those of the engine."""
    gc.unfreeze()
    gc.collect()
    torch = sys.modules.get("torch")  # not imported for an engine that never came to be
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
