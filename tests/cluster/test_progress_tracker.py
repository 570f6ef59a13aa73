import pytest

from batchpaged.cluster.progress_tracker import LEAST_LEFT, ProgressTracker
from batchpaged.cluster.unit_ranges import OpenRows
from batchpaged.planning.cost import DECODE_WEIGHT
from batchpaged.planning.summary import PlanSummary

SUMMARY = PlanSummary(
    num_rows=100,
    num_failed=10,
    num_truncated=0,
    num_prompt_tokens=10_000,
    num_unique_tokens=2_000,
    num_duplicates=0,
    num_prefix_groups=5,
    longest_prompt=200,
    longest_row_id="x",
    num_units=5,
)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def tracker(clock, done=()):
    return ProgressTracker(SUMMARY, max_tokens=10, done=list(done), clock=clock)


def counters(prefilled, cached, completion):
    return {"num_prefilled_tokens": prefilled, "num_cached_tokens": cached, "num_completion_tokens": completion}


def sample(rows, prefilled=0, cached=0, completion=0, worker="0", session=None, begun=0):
    named = {"worker": worker, "session": session or f"{worker}@1", "num_rows_done": rows, "num_begun": begun}
    return {**named, **counters(prefilled, cached, completion)}


def unit(rows, prefilled=0, cached=0, completion=0, session="0@1", num_steps=1, unique=0):
    named = {"session": session} if session else {}
    took = {"completions": {"num_tokens": completion}, "reuse": {"num_unique_tokens": unique, "num_prefilled_tokens": prefilled}}
    return {**named, **took, "num_rows": rows, "num_steps": num_steps, **counters(prefilled, cached, completion)}


def test_nothing_is_known_at_first(clock):
    progress = tracker(clock).progress()
    assert (progress.stage, progress.num_done, progress.num_total) == ("infer", 0, 100)
    assert progress.hit_rate is progress.seconds_left is progress.decode_tokens_per_s is None


def test_workers_add_up(clock):
    t = tracker(clock)
    t.on_sample(sample(3, 100, 300, 20, worker="0"))
    t.on_sample(sample(4, 50, 150, 30, worker="1"))
    progress = t.progress()
    assert (progress.num_done, progress.num_prefilled_tokens, progress.num_cached_tokens) == (7, 150, 450)
    assert (progress.num_completion_tokens, progress.hit_rate) == (50, 0.75)


def test_rates_are_taken_over_the_last_seconds(clock):
    t = tracker(clock)
    for second in range(60):
        clock.now = float(second)
        t.on_sample(sample(0, prefilled=100 * min(second, 30), completion=10 * second))
    progress = t.progress()
    assert progress.prefill_tokens_per_s == 0.0
    assert progress.decode_tokens_per_s == pytest.approx(10.0)


def test_time_left_follows_from_the_tokens_that_are_left(clock):
    t = tracker(clock)
    t.on_sample(sample(0))
    clock.now = 10.0
    t.on_sample(sample(45, prefilled=1_000, completion=450))
    progress = t.progress()  # half of everything is done
    assert progress.seconds_left == pytest.approx(10.0)


def test_the_first_steps_of_a_sitting_do_not_tell_the_time_left(clock):
    t = tracker(clock, [unit(50, 1_000, 0, 400)])
    for second in (0, 1, 2, 3):
        assert t.progress().seconds_left is None
        clock.now = float(second)
        t.on_sample(sample(0, prefilled=100 * second, session="0@2"))
    assert t.progress().seconds_left > 0


def progressing(clock, t, session, **counts):
    """Six seconds at 100 prefilled tokens a second, up to these counts."""
    t.on_sample(sample(0, session=session))
    clock.now += 6.0
    t.on_sample(sample(0, session=session, **{"prefilled": 600, **counts}))
    return t.progress()


def test_only_what_is_left_counts_however_much_was_computed_in_vain(clock):
    """Half of the unique tokens are of finished units; an earlier start computed as many in units that it did not finish."""
    done = [{**unit(50, 1_000, 0, 250, unique=1_000), "num_prefilled_tokens": 2_000, "num_completion_tokens": 900}]
    progress = progressing(clock, tracker(clock, done), "0@2")
    # 400 of 1,000 prompt tokens; 40 rows of 5 completion tokens.
    assert progress.seconds_left == pytest.approx((400 + DECODE_WEIGHT * 200) / 100)


def test_where_an_earlier_stage_has_computed_much_the_rows_that_have_begun_tell_what_is_left(clock):
    done = [unit(20, 10, 390, 200, unique=400)]
    progress = progressing(clock, tracker(clock, done), "0@2", prefilled=600, begun=60)
    # A quarter of 80 rows and of 1,600 tokens; 70 rows of 10 completion tokens.
    assert progress.seconds_left == pytest.approx((400 + DECODE_WEIGHT * 700) / 100)


def test_while_there_is_work_some_time_is_left(clock):
    done = [unit(90, 1_900, 0, 0, unique=1_990)]
    assert progressing(clock, tracker(clock, done), "0@2").seconds_left == LEAST_LEFT


def test_what_a_worker_that_is_gone_had_begun_is_left_again(clock):
    t = tracker(clock)
    t.on_sample(sample(95, 1_990, 0, 950, worker="far:1", session="0@1", begun=100))
    t.attend({"far:1"})
    assert t.progress().num_done == 95
    t.attend({"far:2"})  # the same worker, started again
    assert t.progress().num_done == 0 and t.open_rows("far:1") == OpenRows(0, 0)
    for second in range(7):
        clock.now = float(second)
        t.on_sample(sample(0, 100 * second, worker="far:2", session="0@2", begun=30))
    assert t.progress().seconds_left == pytest.approx((1_400 + DECODE_WEIGHT * 90 * 10) / 100)


def test_units_of_earlier_sittings_count(clock):
    t = tracker(clock, [unit(20, 300, 700, 200), unit(10, 200, 500, 100, num_steps=0), unit(10, session=None)])
    progress = t.progress()
    assert progress.num_done == 40  # all rows
    assert progress.num_prefilled_tokens == 300  # an engine's last unit has its sums
    t.on_sample(sample(5, 10, 20, 30, session="0@2"))
    assert t.progress().num_prefilled_tokens == 310 and t.progress().num_done == 45


def test_a_finished_unit_is_not_counted_twice(clock):
    t = tracker(clock)
    t.on_sample(sample(30, 100, 0, 60))
    t.on_unit(unit(20, 90, 0, 40))
    assert t.progress().num_done == 30 and t.progress().num_prefilled_tokens == 100


def test_a_unit_counts_even_before_its_sample_arrives(clock):
    t = tracker(clock)
    t.on_unit(unit(20, 90, 0, 40))
    t.on_unit(unit(10, session=None))  # of failed rows: no engine saw it
    assert t.progress().num_done == 30 and t.progress().num_prefilled_tokens == 90


def test_what_a_lost_worker_had_not_finished_counts_no_more(clock):
    t = tracker(clock)
    t.on_sample(sample(35, 200, 0, 100, session="0@1"))
    t.on_unit(unit(20, 150, 0, 60, session="0@1"))
    clock.now = 5.0
    t.on_sample(sample(2, 10, 0, 5, session="0@2"))  # the same worker, started again
    progress = t.progress()
    assert (progress.num_done, progress.num_prefilled_tokens) == (22, 160)
    assert progress.prefill_tokens_per_s is None  # rather than a rate below zero


def test_all_units_make_all_rows(clock):
    t = tracker(clock)
    t.on_sample(sample(90))
    for _ in range(5):
        t.on_unit(unit(20))
    assert t.progress().num_done == 100 and t.progress().is_complete


def test_open_rows_are_those_of_the_workers_last_sample(clock):
    t = tracker(clock)
    assert t.open_rows("0") == OpenRows(0, 0)
    t.on_sample({**sample(3, worker="0"), "num_begun": 5, "num_ended": 2})
    t.on_sample({**sample(4, worker="1"), "num_begun": 9, "num_ended": 9})
    t.on_sample({**sample(4, worker="0"), "num_begun": 6, "num_ended": 3})
    assert (t.open_rows("0"), t.open_rows("1")) == (OpenRows(6, 3), OpenRows(9, 9))


def test_samples_in_quick_succession_do_not_make_rates(clock):
    t = tracker(clock)
    for tenth in range(100):
        clock.now = tenth / 10
        t.on_sample(sample(0, prefilled=10 * tenth))
    assert len(t._history) == 20
    assert t.progress().prefill_tokens_per_s == pytest.approx(100.0)
