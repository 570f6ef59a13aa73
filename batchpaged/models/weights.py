"""A model whose weights do not all come from its files would run, and answer nonsense: it is refused."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from batchpaged.errors import ModelError

# Tables that old checkpoints carry and today's classes compute themselves.
_TABLES = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias)$")


def check_weights_complete(name: str, loading_info: Mapping[str, Any]) -> None:
    """`loading_info` is what from_pretrained(output_loading_info=True) returns. Raises ModelError."""
    missing = list(loading_info.get("missing_keys", ()))
    mismatched = [str(key[0] if isinstance(key, tuple) else key) for key in loading_info.get("mismatched_keys", ())]
    unexpected = [key for key in loading_info.get("unexpected_keys", ()) if not _TABLES.search(key)]
    for keys, problem in (
        (missing, "are missing in its files and would be random numbers"),
        (mismatched, "have another shape in its files than its config.json says"),
        (unexpected, "in its files have no place in the model that its config.json describes"),
    ):
        if keys:
            raise ModelError(f"model {name}: {_some(keys)} {problem}; the checkpoint is damaged or of another kind")


def _some(keys: Collection[str]) -> str:
    first = ", ".join(sorted(keys)[:3])
    return f"weights {first}" if len(keys) <= 3 else f"{len(keys)} weights ({first}, ...)"
