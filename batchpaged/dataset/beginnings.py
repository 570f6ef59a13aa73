"""Prompts as far as they are known before the run: up to where a template first uses what an earlier stage will say.

A template is rendered with something in place of such a column that raises at any use, be it printing, a condition, a loop
or a filter. The text before the first use is the same whatever the stage will say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from batchpaged.dataset.prompt_sources import compile_templates
from batchpaged.dataset.prompts import PROMPT_SCHEMA, PromptBuilder
from batchpaged.dataset.templates import TextTemplate
from batchpaged.errors import RowError

if TYPE_CHECKING:
    from batchpaged.config import PromptConfig

NOTHING_KNOWN = "nothing of the prompt is known yet"
_MARK = "\ufffcbatchpaged-unknown\ufffc"  # stands where the known text ends


class _NotKnownYet(Exception):
    """A template has used what is not there yet."""


class _Unknown:
    """The value of a column that an earlier stage will have; any use of it raises."""

    def _use(self, *arguments: object) -> NoReturn:
        raise _NotKnownYet

    __str__ = __repr__ = __bool__ = __len__ = __iter__ = __getitem__ = __getattr__ = __contains__ = __hash__ = _use
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __index__ = _use
    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __mod__ = __rmod__ = _use
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = __neg__ = __pos__ = _use


class _Beginning:
    """In place of a template: its text up to the first use of an unknown column, and then the mark."""

    def __init__(self, template: TextTemplate, unknown: Collection[str]) -> None:
        self._template = template
        self._values = dict.fromkeys(unknown, _Unknown())

    def render(self, values: Mapping[str, Any]) -> str:
        text, is_whole = self._template.render_until(values | self._values, _NotKnownYet)
        return text if is_whole else text + _MARK


class BeginningBuilder:
    """Builds what is known of a stage's prompts, in the form of PromptBuilder's results. For prompts from templates.

    The last token before the first use is left out, since it might go on. A row of which nothing is known counts as failed,
    with the reason NOTHING_KNOWN; one that fails whatever the earlier stage says, with its own.
    """

    def __init__(self, config: PromptConfig, builder: PromptBuilder, unknown: Collection[str]) -> None:
        """`unknown`: the columns of earlier stages."""
        templates = compile_templates(config)
        self._unknown = [name for name in builder.columns if name in unknown]
        beginnings = {role: _Beginning(template, self._unknown) for role, template in templates.items()}
        self._builder = builder.with_templates(beginnings)

    def build(self, table: pa.Table) -> pa.Table:
        for name in self._unknown:
            table = table.append_column(name, pa.nulls(table.num_rows))
        rows = [_prompt_row(ids) for ids in self._builder.token_ids_before(table, _MARK)]
        return pa.Table.from_pylist(rows, schema=PROMPT_SCHEMA)


def _prompt_row(ids: list[int] | RowError) -> dict[str, Any]:
    if ids and not isinstance(ids, RowError):
        return {"token_ids": ids, "num_truncated": 0, "status": "ok", "error": None}
    return {"token_ids": None, "num_truncated": None, "status": "failed", "error": str(ids) if ids else NOTHING_KNOWN}
