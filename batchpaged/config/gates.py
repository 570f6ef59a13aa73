"""How a gate is written. Which figures there are is the report's to know: batchpaged.report.gates."""

import re

GATE_PATTERN = (
    r"^\s*[A-Za-z_][A-Za-z0-9_.-]*"  # a figure of report.json
    r"\s*(>=|<=|==|!=|>|<)"
    r"\s*([-+]?([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?"
    r"|previous(\s*[-+*]\s*([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?)?)\s*$"
)


_OPERATOR = re.compile(r"[><=!]\s*=|=\s*[><]|[><=]")
_MEANT = {"=>": ">=", "=<": "<=", "=": "=="}
_OPERATORS = (">=", "<=", "==", "!=", ">", "<")
FORM = "`figure operator number`, like `f1 >= 0.6` or `f1 >= previous - 0.02`"


def check_gate(gate: str) -> str:
    """The gate as it is; raises ValueError that says what is wrong with it, and how one is written."""
    if re.search(GATE_PATTERN, gate) is None:
        raise ValueError(f"{_fault(gate)}; a gate is {FORM}")
    return gate


def _fault(gate: str) -> str:
    found = _OPERATOR.search(gate)
    if found is None:
        return f"has none of the operators {' '.join(_OPERATORS)}"
    if found[0] not in _OPERATORS:
        joined = re.sub(r"\s", "", found[0])
        return f"write {_MEANT.get(joined, joined)} for {found[0]!r}"
    figure, bound = gate[: found.start()].strip(), gate[found.end() :].strip()
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", figure) is None:
        return f"{figure!r} is not the name of a figure" if figure else "the figure is missing"
    return f"{bound!r} is not a number" if bound else "the number is missing"
