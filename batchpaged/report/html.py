"""report.html: one self-contained page, without scripts and without anything loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from batchpaged.report import formatting as fmt
from batchpaged.atomic import write_text
from batchpaged.report.earlier_stages import lost_cache
from batchpaged.report.facts import RunFacts
from batchpaged.report.page import build_page

_FILTERS = ("count", "compact", "rate", "percent", "seconds", "gate_result", "plural", "moment", "milliseconds")


def write_html(report: dict[str, Any], facts: RunFacts, path: Path | str) -> Path:
    """Writes the page atomically and returns its path. `report` is build_report(facts)."""
    path = Path(path)
    write_text(path, to_html(report, facts))
    return path


def write_stages_html(report: dict[str, Any], path: Path) -> Path:
    """The overview of a run of several stages; each stage's own page lies in its folder."""
    write_text(path, page_environment().get_template("stages.html.jinja").render(report=report))
    return path


def to_html(report: dict[str, Any], facts: RunFacts) -> str:
    """The page; names, ids and reasons in it are escaped wherever they come from."""
    return page_environment().get_template("report.html.jinja").render(build_page(report, facts))


def page_environment() -> jinja2.Environment:
    """Of all pages: everything is escaped, and a name that is misspelt in a template is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({name: getattr(fmt, name) for name in _FILTERS} | {"lost_cache": lost_cache})
    return environment
