"""What the places where a model may lie have in common."""

from collections.abc import Callable

Note = Callable[[str], None]  # shows the user one line


class Unavailable(Exception):
    """This place does not have the model; the next one may. Never leaves `resolve_model`."""
