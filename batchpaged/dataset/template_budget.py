"""What all of a row's template may use together: steps, characters printed, items of range()."""

from typing import Any

from jinja2.runtime import Context

from batchpaged.dataset.template_sizes import MAX_TEXT_CHARS
from batchpaged.errors import RowError

MAX_STEPS = 1_000_000
MAX_RANGE_ITEMS = 1_000_000  # over all uses of range() in one row
_CHARS_PER_STEP = 1000
_BUDGET = "the row's budget"  # no template can have a variable of this name


class Budget:
    """Of one row."""

    def __init__(self) -> None:
        self._num_steps = self._num_chars = self._num_range_items = 0

    def take_steps(self, number: int, num_chars: int = 0) -> None:
        self._num_steps += number + num_chars // _CHARS_PER_STEP
        if self._num_steps > MAX_STEPS:
            raise RowError(f"its loops and calls take more than {MAX_STEPS} steps")

    def take_chars(self, number: int) -> None:
        self._num_chars += number
        if self._num_chars > MAX_TEXT_CHARS:
            raise RowError(f"the text is longer than {MAX_TEXT_CHARS} characters")

    def range(self, *arguments: int) -> range:
        """Python's, for what is left of the row's items."""
        items = range(*arguments)
        self._num_range_items += len(items)
        if self._num_range_items > MAX_RANGE_ITEMS:
            raise RowError(f"its loops over range() pass {MAX_RANGE_ITEMS} items")
        return items


def with_budget(values: dict[str, Any]) -> dict[str, Any]:
    """The row's values, as a template of `BoundedEnvironment` is rendered with."""
    budget = Budget()
    return {**values, "range": budget.range, _BUDGET: budget}


def budget_of(context: Context) -> Budget:
    return context.parent[_BUDGET]
