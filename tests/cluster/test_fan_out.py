"""Equal neighbours are found, and what the others of them get."""

from hypothesis import given, strategies as st

from batchpaged.cluster.fan_out import equal_rows, fanned_out
from batchpaged.engine.engine import Completion, Output


@given(st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=2), st.sampled_from([None, "g", "h"])), max_size=12))
def test_equal_rows_have_neighbouring_prompts_and_one_kind(rows):
    prompts, kinds = [row[0] for row in rows], [row[1] for row in rows]
    groups = list(equal_rows(prompts, kinds))
    assert sorted(place for group in groups for place in group) == list(range(len(rows)))
    for group in groups:
        assert group == sorted(group)
        assert all(rows[place] == rows[group[0]] for place in group)
        assert all(prompts[place] == prompts[group[0]] for place in range(group[0], group[-1]))
    for i, group in enumerate(groups):  # no two groups could be one
        for other in groups[i + 1 :]:
            same = rows[group[0]] == rows[other[0]]
            assert not same or any(prompts[place] != prompts[group[0]] for place in range(group[0], other[0]))


def test_a_row_that_was_not_computed_has_all_of_its_prompt_from_the_cache():
    computed = Completion(3, (Output("text", (1, 2), "stop"),), 10, 4, 6, 5)
    copied = fanned_out(computed)
    assert (copied.text, copied.token_ids, copied.finish_reason) == ("text", (1, 2), "stop")
    assert (copied.num_cached_tokens, copied.num_prefilled_tokens, copied.num_recomputed_tokens) == (10, 0, 0)
    assert fanned_out("too long") == "too long"
