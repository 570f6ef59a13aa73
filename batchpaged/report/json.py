"""report.json on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from batchpaged.atomic import write_text


def to_json(report: dict[str, Any]) -> str:
    """Indented, in the report's own order. Raises ValueError on NaN and infinity, which are not JSON."""
    return json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(report: dict[str, Any], path: Path | str) -> Path:
    """Writes the report atomically and returns its path."""
    path = Path(path)
    write_text(path, to_json(report))
    return path
