"""How a gate is written. Which figures there are is the report's to know: batchpaged.report.gates."""

import re

GATE_PATTERN = (
    r"^\s*[A-Za-z_][A-Za-z0-9_.-]*"  # a figure of report.json
    r"\s*(>=|<=|==|!=|>|<)"
    r"\s*([-+]?([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?"
    r"|previous(\s*[-+*]\s*([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?)?)\s*$"
)


def check_gate(gate: str) -> str:
    """The gate as it is; raises ValueError that says how one is written."""
    if re.search(GATE_PATTERN, gate) is None:
        raise ValueError(
            "must be `figure operator number` with one of >= <= == != > <, like `prefix_cache_hit_rate >= 0.8`; "
            "the number may be the previous run's, like `f1 >= previous - 0.02` or `time.total <= previous * 1.5`"
        )
    return gate
