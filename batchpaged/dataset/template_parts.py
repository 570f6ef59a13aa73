"""A template taken apart into the expressions it prints, by Jinja2's own syntax tree.

What stands in a loop or a condition is an expression like any other: it is taken out, or kept alone, together with the
loops and conditions around it. Macros and blocks that collect text (`{% set %}...{% endset %}`, `{% filter %}`,
`{% call %}`) stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from jinja2 import nodes

from batchpaged.dataset.templates import TextTemplate, make_environment

_CONTAINERS = (nodes.If, nodes.For, nodes.With)
_PRINTING_BLOCKS = (nodes.FilterBlock, nodes.CallBlock)
_MAX_SHOWN = 40  # characters of an expression that are shown
_Keep = Callable[[nodes.Expr], bool]


class TemplateParts:
    """The printed expressions of one template, numbered from 0 in the order in which they stand."""

    def __init__(self, source: str, key: str) -> None:
        """`key` is where the template stands in the pipeline file. The template must compile."""
        self._source = source
        self._key = key
        tree = make_environment().parse(source)
        texts = _expression_texts(source, tree)
        self.printed = tuple(texts[id(expression)] for expression in _printed(tree))  # as `{{ timestamp }}`

    def without(self, parts: Collection[int]) -> TextTemplate:
        """The template without these expressions."""
        return self._edited(lambda number: number not in parts, keeps_text=True)

    def only(self, part: int) -> TextTemplate:
        """Nothing but this expression, once for each time the template prints it."""
        return self._edited(lambda number: number == part, keeps_text=False)

    def _edited(self, keep: Callable[[int], bool], keeps_text: bool) -> TextTemplate:
        def edit(tree: nodes.Template) -> None:
            numbers = {id(expression): i for i, expression in enumerate(_printed(tree))}
            tree.body = _filter(tree.body, lambda expression: keep(numbers[id(expression)]), keeps_text)

        return TextTemplate(self._source, self._key, edit)


def _printed(tree: nodes.Template) -> list[nodes.Expr]:
    found: list[nodes.Expr] = []
    _filter(tree.body, lambda expression: found.append(expression) is None, keeps_text=True)
    return found


def _filter(body: list[nodes.Node], keep: _Keep, keeps_text: bool) -> list[nodes.Node]:
    """The statements of `body` with only those printed expressions that are to be kept. Changes the tree."""
    kept = []
    for node in body:
        if isinstance(node, nodes.Output):
            node.nodes = [n for n in node.nodes if (keeps_text if isinstance(n, nodes.TemplateData) else keep(n))]
        elif isinstance(node, _CONTAINERS):
            for field in (name for name in ("body", "elif_", "else_") if name in node.fields):
                setattr(node, field, _filter(getattr(node, field), keep, keeps_text))
        elif isinstance(node, _PRINTING_BLOCKS) and not keeps_text:
            continue
        kept.append(node)
    return kept


def _expression_texts(source: str, tree: nodes.Template) -> dict[int, str]:
    """Each printed expression as it is written. The tree knows no columns, the lexer no tree: they meet by order."""
    printed = [n for o in tree.find_all(nodes.Output) for n in o.nodes if not isinstance(n, nodes.TemplateData)]
    written = _written(source)
    if len(written) != len(printed):  # `{% print %}` prints without braces
        written = [", ".join(sorted({name.name for name in n.find_all(nodes.Name)})) for n in printed]
    return {id(node): f"{{{{ {text} }}}}" for node, text in zip(printed, map(_shorten, written), strict=True)}


def _written(source: str) -> list[str]:
    texts, pieces = [], None
    for _, token, value in make_environment().lex(source):
        if token == "variable_begin":
            pieces = []
        elif token == "variable_end":
            texts.append(" ".join("".join(pieces).split()))
            pieces = None
        elif pieces is not None:
            pieces.append(value)
    return texts


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 4].rstrip()} ..."
