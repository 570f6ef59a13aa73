import pytest

from batchpaged.cluster.progress_tracker import ProgressTracker
from batchpaged.cluster.unit_ranges import OpenRows
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


def sample(rows, prefilled=0, cached=0, completion=0, worker="0", session=None):
    named = {"worker": worker, "session": session or f"{worker}@1", "num_rows_done": rows}
    return {**named, **counters(prefilled, cached, completion)}


def unit(rows, prefilled=0, cached=0, completion=0, session="0@1", num_steps=1):
    named = {"session": session} if session else {}
    return {**named, "num_rows": rows, "num_steps": num_steps, **counters(prefilled, cached, completion)}


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
