"""Why tokens were computed, in real runs made to lose some for one cause each."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import short_sight
import tiny_runs

from batchpaged import api, generate
from batchpaged.report.facts import MISS_CAUSES

NUM_GROUPS, GROUP_SIZE, NUM_EQUAL = 6, 8, 5


def prompts() -> list[list[int]]:
    """Groups with a common prefix each, shuffled; one prompt stands there NUM_EQUAL times more than once."""
    rows = [[1] + [40 + group] * 60 + [60 + i, 90] for group in range(NUM_GROUPS) for i in range(GROUP_SIZE)]
    rows += [rows[10]] * NUM_EQUAL
    random.Random(0).shuffle(rows)
    return rows


NUM_PROMPT_TOKENS = sum(map(len, prompts()))
NUM_UNIQUE_TOKENS = len({tuple(prompt[:end]) for prompt in prompts() for end in range(1, len(prompt) + 1)})


def run(tmp_path: Path, **sections) -> api.RunResult:
    if not (tmp_path / "rows.parquet").exists():
        pq.write_table(pa.table({"prompt": pa.array(prompts(), pa.list_(pa.int32()))}), tmp_path / "rows.parquet")
    sections = {"engine": {"kv_cache": 300, "device": "cpu"}, "sampling": {"max_tokens": 4}, **sections}
    given = {"input": {"path": str(tmp_path / "rows.parquet")}, "prompt": {"token_ids_column": "prompt"}}
    result = api.run(tiny_runs.pipeline(tmp_path / "run", **given, **sections, evaluate=None, gates=[]))
    check_sums(result.report)
    return result


def check_sums(report: dict) -> None:
    misses, tokens = report["misses"], report["tokens"]
    assert tuple(misses) == MISS_CAUSES
    assert sum(misses.values()) == tokens["prefilled"] + tokens["recomputed"]
    assert misses["preempted"] == tokens["recomputed"]
    assert min(misses.values()) >= 0


def again(report: dict) -> dict[str, int]:
    return {cause: number for cause, number in report["misses"].items() if number and cause != "first_sight"}


def test_in_a_cache_of_little_more_than_one_prompt_every_token_is_new(tmp_path):
    result = run(tmp_path, engine={"kv_cache": 7, "device": "cpu"})
    assert result.report["tokens"]["prefilled"] == result.report["tokens"]["unique"] == NUM_UNIQUE_TOKENS
    assert result.report["misses"]["first_sight"] == NUM_UNIQUE_TOKENS and again(result.report) == {}
    assert result.report["reuse_efficiency"] == 1.0


def test_equal_prompts_are_computed_once(tmp_path):
    report = run(tmp_path).report
    rows = tiny_runs.output(tmp_path / "run").to_pylist()
    equal = [row for row in rows if row["prompt"] == [1] + [41] * 60 + [62, 90]]
    assert report["rows"]["deduplicated"] == NUM_EQUAL and len(equal) == NUM_EQUAL + 1
    assert len({(row["completion"], row["finish_reason"], row["completion_tokens"]) for row in equal}) == 1
    assert sum(row["cached_tokens"] == row["prompt_tokens"] for row in rows) == NUM_EQUAL
    assert report["tokens"]["completion"] == sum(row["completion_tokens"] for row in rows)
    assert report["workers"][0]["num_completion_tokens"] == report["tokens"]["completion"]
    assert report["workers"][0]["num_cached_tokens"] == report["tokens"]["cached"]


def test_generate_computes_equal_prompts_once():
    rows = [{"q": "Same?"}, {"q": "Other?"}, {"q": "Same?"}, {"q": "Same?"}]
    cluster = {"scheduler": tiny_runs.cluster().scheduler_address}
    model = {"id": str(tiny_runs.model()), "max_model_len": 320}
    result = generate(rows, model=model, prompt="{{ q }}", sampling={"max_tokens": 4}, cluster=cluster)
    assert result.report["rows"]["deduplicated"] == 2
    assert len({row["completion"] for row in result.data if row["q"] == "Same?"}) == 1


def test_under_sampling_the_last_token_of_equal_prompts_is_computed_again(tmp_path):
    report = run(tmp_path, sampling={"max_tokens": 4, "temperature": 1.0}).report
    assert again(report) == {"last_token": NUM_EQUAL}
    assert report["rows"]["deduplicated"] == 0


def test_without_a_cache_everything_that_is_shared_is_computed_again(tmp_path):
    report = run(tmp_path, engine={"kv_cache": 300, "device": "cpu", "prefix_cache": False}).report
    assert again(report) == {"cache_off": NUM_PROMPT_TOKENS - NUM_UNIQUE_TOKENS}
    assert (report["rows"]["deduplicated"], report["prefix_cache_hit_rate"]) == (0, 0.0)


def test_sequences_that_grow_further_than_expected_are_preempted_and_computed_again(tmp_path):
    sampling = {"max_tokens": 60, "ignore_eos": True}
    report = run(tmp_path, engine={"kv_cache": 40, "device": "cpu"}, sampling=sampling).report
    assert again(report).keys() == {"preempted"}
    assert report["num_preemption"] > 0


def test_what_another_engine_had_is_computed_again(tmp_path):
    """The middle one of three units is computed a second time, in a later sitting."""
    first = run(tmp_path)
    units = sorted((tmp_path / "run" / "units").iterdir())
    assert len(units) > 2 and again(first.report) == {}
    units[1].unlink()
    (tmp_path / "run" / "report.json").unlink()
    report = run(tmp_path).report
    assert again(report).keys() == {"cut_between_workers"}
    assert 0 < report["misses"]["cut_between_workers"] < 63
    assert report["tokens"]["unique"] == NUM_UNIQUE_TOKENS


@pytest.fixture
def short_sighted():
    """Engines that know nothing of the queue evict what was used least recently, and let as many run as there is room."""
    tiny_runs.on_workers(short_sight.forget_the_future)
    yield
    tiny_runs.on_workers(short_sight.know_the_future)


def test_what_was_evicted_too_early_is_computed_again(tmp_path, short_sighted):
    report = run(tmp_path, engine={"kv_cache": 12, "device": "cpu"}).report
    assert again(report).keys() == {"evicted"}
