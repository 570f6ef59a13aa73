"""Whether a pipeline may ask for an attention implementation. Without torch: it is judged before anything else."""

import os
from importlib.util import find_spec

from batchpaged.errors import ConfigError


def check_attention(attention: str, device: str) -> None:
    """Whether a pipeline may ask for it on this device. Raises ConfigError."""
    if attention != "triton":
        return
    if find_spec("triton") is None:
        raise ConfigError("engine.attention: triton needs the package triton, which is not installed; use auto or torch")
    if device == "cpu" and not _is_interpreted():
        raise ConfigError(
            "engine.attention: triton needs a GPU, and engine.device is cpu; use auto or torch "
            "(TRITON_INTERPRET=1 in the environment runs its kernels on a CPU, slowly, for tests)"
        )


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
