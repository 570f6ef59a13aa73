"""Templates that would take all memory, or all time, fail their row at once; what people write does not notice."""

import resource
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.dataset.template_budget import MAX_STEPS
from batchpaged.dataset.templates import TextTemplate
from batchpaged.errors import RowError

BOMBS = {
    "a width, by the filter": "{{ '%1000000000d' | format(1) }}",
    "a width, by the operator": "{{ '%1000000000d' % 1 }}",
    "a width, as an argument": "{{ '%*d' % (10**9, 1) }}",
    "a precision": "{{ '%.1000000000f' % 1.5 }}",
    "a width, by the method": "{{ '{:1000000000}'.format(1) }}",
    "a nested width": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "a mapping": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "many widths": "{{ ('%99999d' * 1000) % 1 }}",
    "a long argument, often": "{{ ('{0}' * 1000).format(x * 100000) }}",
    "a repetition": "{{ 'x' * 10**9 }}",
    "a repetition of a list": "{{ ([1] * 10**9) | length }}",
    "a padded text": "{{ x.ljust(10**9) }}",
    "zeros": "{{ x.zfill(10**9) }}",
    "tabs": "{{ ('\t' * 10000).expandtabs(10**6) }}",
    "bytes of a number": "{{ (1).to_bytes(10**9, 'big') | length }}",
    "replaced": "{{ ('x' * 10**5).replace('x', 'y' * 10**5) }}",
    "replaced, by the filter": "{{ ('x' * 10**5) | replace('x', 'y' * 10**5) }}",
    "joined": "{{ ([x * 10**5] * 10**5) | join }}",
    "joined by much": "{{ ('y' * 10**5).join(['x'] * 10**5) }}",
    "centred": "{{ x | center(10**9) }}",
    "indented": "{{ ('\n' * 10**5) | indent(10**5) }}",
    "a batch": "{{ [1] | batch(10**9, 0) | list | length }}",
    "slices": "{{ [1] | slice(10**9) | list | length }}",
    "rounded": "{{ 1.5 | round(10**9, 'ceil') }}",
    "JSON": "{{ [1, 2] | tojson(indent=10**9) }}",
    "JSON of much": "{{ ([x * 10**5] * 10**5) | tojson }}",
    "a range": "{{ range(10**9) | list | length }}",
    "loops": "{% for i in range(10**5) %}{% for j in range(9) %}{% for k in x %}{% endfor %}{% endfor %}{% endfor %}",
    "loops over the row": "{% for i in x * 9 %}{% for j in x * 9 %}{% for k in x * 9 %}{% for l in x %}{% endfor %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "calls": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
    "doubled text": "{% set n = namespace(s=x) %}{% for i in range(50) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "added text": "{% set n = namespace(s=x) %}{% for i in range(50) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "captured text": "{% set n = namespace(s=x) %}{% for i in range(50) %}{% set t %}{{ n.s }}{{ n.s }}{% endset %}"
    "{% set n.s = t %}{% endfor %}",
    "squares": "{% set n = namespace(s=999) %}{% for i in range(50) %}{% set n.s = n.s * n.s %}{% endfor %}",
    "lists of lists": "{% set n = namespace(s=x) %}{% for i in range(50) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
    "{{ n.s | tojson }}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_fail_their_row_before_they_go_off(name):
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(RowError) as caught:
        TextTemplate(BOMBS[name], "prompt.user").render({"x": "v" * 10})
    assert str(caught.value).startswith("prompt.user, line ") and "Error" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
    assert time.process_time() - started < 20  # of minutes, hours, ages


def test_what_is_usual_stays_far_below():
    template = TextTemplate(
        "{% for d in x %}{{ loop.index }}/{{ loop.length }}: {{ '%-20s|%5.2f' | format(d.t, loop.index) }} {{ d.t ~ '!' }}"
        "{{ d.t.ljust(30) }}{{ '{:>8}'.format(d.t) }}{{ d.t.replace('a', 'b') | indent(2) }}{{ d.t * 3 }}\n{% endfor %}",
        "prompt.user",
    )
    text = template.render({"x": [{"t": f"ab {i}" * 10} for i in range(2000)]})
    assert text.count("\n") == 2000 and text.startswith("1/2000: " + "ab 0" * 10)


def test_steps_are_of_one_row():
    template = TextTemplate("{% for i in x %}{% endfor %}ok", "prompt.user")
    assert [template.render({"x": [0] * (MAX_STEPS - 10)}) for _ in range(2)] == ["ok", "ok"]


@given(st.sampled_from(["%s", "%5s", "%-5.1f", "%(a)s", "%%", "%*d", "%", "%z", "%.3s%s"]), st.lists(st.text() | st.integers(-99, 99)))
def test_formatting_is_pythons(form, values):
    template = TextTemplate("{{ form % values }}", "prompt.user")
    try:
        expected = form % tuple(values)
    except (TypeError, ValueError):
        with pytest.raises(RowError):
            template.render({"form": form, "values": tuple(values)})
    else:
        assert template.render({"form": form, "values": tuple(values)}) == expected
