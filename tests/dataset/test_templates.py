import datetime
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpaged.dataset.template_sizes import MAX_TEXT_CHARS
from batchpaged.dataset.templates import TextTemplate, wrap_nulls
from batchpaged.errors import ConfigError, RowError

SECRET = "a-secret-that-stands-in-a-row"


def render(source, **values):
    return TextTemplate(source, "prompt.user").render({name: wrap_nulls(value, name) for name, value in values.items()})


def failure(source, **values):
    with pytest.raises(RowError) as caught:
        render(source, **values)
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ x }} {{ y[0] }} {{ z | join }}", {"x"}),
        ("{% for y in x %}{{ y }}{% endfor %}", set()),
        ("{% if x is string %}{{ x }}{% endif %}", set()),
        ("{% set x = x[0] %}{{ x }}", set()),
        ("{{ range }}{{ x }}{{ x }}", {"x"}),
    ],
)
def test_what_is_printed_as_it_is_in_every_row(source, expected):
    assert TextTemplate(source, "prompt.user").printed == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ x }}\n", "v"),
        ("{{ x }}\n\n", "v\n"),
        ("\n {{ x }} \n", "\n v "),
        ("<b>{{ x }}</b> & {{ '<' }}", "<b>v</b> & <"),
        ("{% for i in range(3) %}{{ i }}{% endfor %}", "012"),
        ("{{ 2 ** 10 * 3 }} {{ 0.5 * 2 }} {{ 'ab' * 2 }}", "3072 1.0 abab"),
        ("{% if y is defined %}a{% else %}b{% endif %}", "b"),
    ],
)
def test_text_is_what_jinja_makes_of_it_and_nothing_more(source, expected):
    assert render(source, x="v") == expected


def test_values_are_printed_unchanged():
    text = "  <b>&amp; {{ not a template }} \r\n\t\x07 \U0001f600  "
    assert render("{{ x }}", x=text) == text
    assert render("{{ x | join('\n\n') }}", x=[text, "b"]) == f"{text}\n\nb"


def test_variables_are_the_free_names():
    template = TextTemplate(
        "{% set s = a %}{% for b in c %}{{ loop.index }}{{ b.x }}{% endfor %}{{ range(2) }}{{ s }}", "k"
    )
    assert template.variables == {"a", "c"}


@pytest.mark.parametrize(
    "source", ["{{ x }}", "{{ x | join }}", "{{ x | trim }}", "{{ x ~ '!' }}", "{{ x | upper }}", "{{ x * 2 }}"]
)
def test_a_null_that_is_used_fails_and_names_its_column(source):
    assert failure(source, x=None) == "prompt.user, line 1: x is null"


@pytest.mark.parametrize(
    ("source", "value", "place"),
    [
        ("{{ x | join }}", ["a", None], "x[1]"),
        ("{{ x.a }}", {"a": None}, "x.a"),
        ("{% for d in x %}{{ d.t }}{% endfor %}", [{"t": "a"}, {"t": None}], "x[1].t"),
        ("{{ x | string }}", [None], "x[0]"),
    ],
)
def test_a_null_inside_a_value_names_its_place(source, value, place):
    assert failure(source, x=value).endswith(f"{place} is null")


def test_a_missing_number_is_not_printed():
    assert failure("{{ x }}", x=float("nan")).endswith("x is NaN")
    assert failure("{{ x | join }}", x=[1.5, float("nan")]).endswith("x[1] is NaN")
    assert render("{{ x }}", x=float("inf")) == "inf"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if x %}yes{% else %}no{% endif %}", "no"),
        ("{{ x or 'other' }}", "other"),
        ("{{ x | default('other') }}", "other"),
        (
            "{{ x is none }} {{ x is not none }} {{ x == none }} {{ x != none }} {{ x == 'a' }}",
            "True False True False False",
        ),
        ("{{ x is defined }}", "False"),
    ],
)
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_template_can_handle_nulls(source, missing, expected):
    assert render(source, x=missing) == expected


def test_a_template_can_skip_nulls_in_lists():
    assert render("{{ x | reject('none') | join('+') }}", x=["a", None, "b"]) == "a+b"


def test_json_is_plain():
    value = {"a": None, "b": "<é> & 'x'", "c": datetime.date(2024, 1, 2), "d": [None, 1]}
    text = render("{{ x | tojson }}", x=value)
    assert json.loads(text) == {**value, "c": "2024-01-02"} and "<é> &" in text
    assert "bytes cannot be written as JSON" in failure("{{ x | tojson }}", x=b"x")


@pytest.mark.parametrize(
    ("source", "value", "words"),
    [
        ("{{ x }}", ["a"], "prints a list as it is; use a filter such as join"),
        ("{{ x }}", {"a": 1}, "prints a dict"),
        ("{{ x }}", b"a", "prints a bytes"),
        ("{{ x.items }}", {"items": 1}, "x['name']"),
        ("{{ x | join(',') }}", "abc", "join over a string"),
        ("{{ nosuch }}", "", "'nosuch' is undefined"),
        ("\n\n{{ x.titel }}", {"title": 1}, "line 3: 'dict object' has no attribute 'titel'"),
        ("{{ x[7] }}", ["a"], "list object has no element 7"),
        ("{{ x | first }}", [], "No first item"),
        ("{{ x + 1 }}", SECRET, "TypeError: can only concatenate str"),
        ("{{ 1 // x }}", 0, "ZeroDivisionError"),
        ("{{ {'a': 1}[x] }}", SECRET, "a name or element that the row does not have"),
        ("{{ x.__class__ }}", "", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ x.append(1) }}", [], "prompt.user, line 1: "),
        ("{{ '{0.__class__}'.format(x) }}", "", "prompt.user, line 1: "),
        ("{{ x.strftime(1) }}", datetime.date(2024, 1, 1), "TypeError"),
        ("{{ x.encode('ascii') | string }}", f"é{SECRET}", "UnicodeEncodeError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "", "RecursionError"),
    ],
)  # fmt: skip
def test_failures_say_what_and_where_and_never_quote_the_row(source, value, words):
    assert words in failure(source, x=value)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(10**3 * 10**3) %}{{ x * 100 }}{% endfor %}",
        "{{ range(10**10) | list | length }}",
        "{{ x * 10**9 }}",
        "{{ 9 ** 9 ** 9 }}",
    ],
)
def test_runaway_templates_end(source):
    failure(source, x="v" * 10)


def test_a_text_may_be_long_but_not_endless():
    assert len(render("{{ x }}", x="v" * 1_000_000)) == 1_000_000
    assert f"longer than {MAX_TEXT_CHARS}" in failure("{{ x }}{{ x }}", x="v" * (MAX_TEXT_CHARS // 2 + 1))


def test_the_range_budget_is_per_row():
    template = TextTemplate("{% for i in range(x) %}{% endfor %}ok", "k")
    assert [template.render({"x": 900_000}) for _ in range(2)] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a\n{{ x", "line 2: unexpected end of template"),
        ("{{ x | nosuch }}", "No filter named 'nosuch'"),
        ("{{ x | random }}", "No filter named 'random'"),
        ("{% if x %}", "line 1"),
        ("{% include 'file' %}", "stands alone"),
        ("{% extends x %}", "stands alone"),
        ("{% import 'x' as y %}", "stands alone"),
    ],
)
def test_what_cannot_compile_is_a_config_error(source, words):
    with pytest.raises(ConfigError) as caught:
        TextTemplate(source, "prompt.system")
    assert words in str(caught.value) and str(caught.value).startswith("prompt.system, line ")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
TEMPLATES = [
    "{{ x }}",
    "{{ x | join(', ') }}",
    "{% for d in x %}{{ d.title }}: {{ d['text'] }}\n{% endfor %}",
    "{{ x | tojson }} {{ x | length }} {{ x | first }} {{ x[0] }}",
    "{{ x | upper | trim }} {{ x | int }} {{ x + x }} {{ x | sort | unique | list | string }}",
    "{% if x and x is not none %}{{ x | default('n') }}{% endif %}",
]


@settings(deadline=None)
@given(st.sampled_from(TEMPLATES), VALUES)
def test_any_value_gives_text_or_a_row_error(source, value):
    try:
        assert isinstance(render(source, x=value), str)
    except RowError as error:
        assert str(error).startswith("prompt.user")
