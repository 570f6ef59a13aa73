"""Templates taken apart: what they print, without some of it, and some of it alone."""

import pytest

from batchpaged.dataset.template_parts import TemplateParts
from batchpaged.dataset.templates import TextTemplate, wrap_nulls
from batchpaged.errors import RowError

TEMPLATE = """\
Date: {{ date }}
{% set loud = name | upper %}{% macro tag(x) %}<{{ x }}>{% endmacro -%}
{% for d in docs %}{{ loop.index }}. {{ d.title }}{% if d.score %} ({{ d.score }}){% elif d.page %} p. {{ d.page }}{% else %} -{% endif %}
{% endfor %}{% raw %}{{ raw }}{% endraw %}{{ tag(loud) }} {{- question }}{% filter upper %}{{ date }}{% endfilter %}"""
VALUES = {
    "date": "today", "name": "n", "question": "why",
    "docs": [{"title": "A", "score": 1, "page": 0}, {"title": "B", "score": 0, "page": 5}, {"title": "C"}],
}  # fmt: skip
VALUES["docs"][2] |= {"score": 0, "page": 0}
PRINTED = ("{{ date }}", "{{ loop.index }}", "{{ d.title }}", "{{ d.page }}", "{{ d.score }}", "{{ tag(loud) }}", "{{ question }}")
ALONE = ("today", "123", "ABC", "5", "1", "<N>", "why")


@pytest.fixture(scope="module")
def parts():
    return TemplateParts(TEMPLATE, "prompt.user")


def test_what_is_printed_in_the_words_of_the_template(parts):
    assert sorted(parts.printed) == sorted(PRINTED)
    assert parts.printed[:3] == PRINTED[:3] and parts.printed[-2:] == PRINTED[-2:]


def test_each_alone(parts):
    alone = {text: parts.only(i).render(VALUES) for i, text in enumerate(parts.printed)}
    assert alone == dict(zip(PRINTED, ALONE, strict=True))


def test_without_some(parts):
    plain = TextTemplate(TEMPLATE, "prompt.user").render(VALUES)
    assert parts.without(set()).render(VALUES) == plain
    missing = {parts.printed.index(text) for text in ("{{ date }}", "{{ d.score }}", "{{ question }}")}
    expected = plain.replace("Date: today", "Date: ").replace("(1)", "()").replace("why", "")
    assert parts.without(missing).render(VALUES) == expected
    assert parts.without(range(len(PRINTED))).render(VALUES).count("{{ raw }}") == 1


def test_a_long_expression_is_shortened():
    [text] = TemplateParts("{{ a ~ 'a literal that goes on and on and on' }}", "prompt.user").printed
    assert text == "{{ a ~ 'a literal that goes on and on a ... }}"


def test_no_expression_at_all():
    assert TemplateParts("always the same", "prompt.user").printed == ()


def test_errors_still_name_the_line(parts):
    with pytest.raises(RowError, match="prompt.user, line 3: docs is null"):
        parts.without({0}).render(VALUES | {"docs": wrap_nulls(None, "docs")})
