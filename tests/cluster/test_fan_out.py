"""Equal neighbours are found, and what the others of them get."""

from hypothesis import given, strategies as st

from batchpaged.cluster.fan_out import equal_runs, fanned_out
from batchpaged.engine.engine import Completion


@given(st.lists(st.lists(st.integers(0, 1), max_size=2), max_size=12))
def test_runs_are_all_equal_neighbours(prompts):
    runs = list(equal_runs(prompts))
    assert [place for run in runs for place in run] == list(range(len(prompts)))
    for run in runs:
        assert all(prompts[place] == prompts[run.start] for place in run)
    for before, after in zip(runs[:-1], runs[1:], strict=True):
        assert prompts[before.start] != prompts[after.start]


def test_a_row_that_was_not_computed_has_all_of_its_prompt_from_the_cache():
    computed = Completion(3, "text", (1, 2), "stop", 10, 4, 6, 5)
    copied = fanned_out(computed)
    assert (copied.text, copied.token_ids, copied.finish_reason) == ("text", (1, 2), "stop")
    assert (copied.num_cached_tokens, copied.num_prefilled_tokens, copied.num_recomputed_tokens) == (10, 0, 0)
    assert fanned_out("too long") == "too long"
