"""Why prefixes miss, in lines for a terminal."""

from collections.abc import Iterator

from batchpaged.planning.diagnosis.findings import Diagnosis, Finding
from batchpaged.report import formatting as fmt

_NAMES = {
    "varying_field": "varying field",
    "context_order": "order of documents",
    "whitespace": "white space",
    "short_prefix": "short prefix",
    "template_variants": "template variants",
    "prefix_cache_off": "prefix cache off",
}


def diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Two lines for each cause, what costs most first; nothing where nothing was found."""
    if not diagnosis.findings:
        return
    note = f" (estimated from {fmt.count(diagnosis.num_rows)} of {fmt.count(diagnosis.num_rows_total)} rows)"
    yield ""
    yield f"Why prefixes miss{note if diagnosis.is_sample else ''}:"
    for finding in diagnosis.findings:
        yield f"  {_NAMES[finding.cause]}: {_cost(finding, diagnosis)}; {_rows(finding)}"
        yield f"    {finding.what}. Way out: {finding.way_out}"


def _rows(finding: Finding) -> str:
    verb = "compare rows" if len(finding.example_rows) > 1 else "such as row"
    return f"{fmt.plural(finding.num_rows, 'row')}, {verb} {' and '.join(finding.example_rows)}"


def _cost(finding: Finding, diagnosis: Diagnosis) -> str:
    if finding.hit_rate_elsewhere is not None:
        return _cost_elsewhere(finding, diagnosis)
    tokens = _tokens(finding.num_tokens, diagnosis)
    if finding.after:
        before = " and ".join(_NAMES[cause] for cause in finding.after)
        return f"{tokens} more once {before} is mended, hit rate {fmt.percent(finding.hit_rate)} then"
    now = 0.0 if finding.cause == "prefix_cache_off" else diagnosis.hit_rate
    return f"{tokens}, hit rate {fmt.percent(finding.hit_rate)} without it, {fmt.percent(now)} with it"


def _cost_elsewhere(finding: Finding, diagnosis: Diagnosis) -> str:
    here = "nothing here" if not finding.num_tokens else f"{_tokens(finding.num_tokens, diagnosis)} here"
    there = f"{_tokens(finding.num_tokens_elsewhere, diagnosis)} in a cache of whole blocks"
    rates = f"hit rate {fmt.percent(finding.hit_rate)} here, {fmt.percent(finding.hit_rate_elsewhere)} there"
    return f"{here}, {there}, {rates}"


def _tokens(num_tokens: int, diagnosis: Diagnosis) -> str:
    share = fmt.percent(num_tokens / diagnosis.num_prompt_tokens)
    return f"{fmt.count(num_tokens)} prompt tokens ({share})"
