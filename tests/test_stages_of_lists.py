"""Stages with several completions, scores and log-probabilities: what later stages and the output have of them."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tiny_runs

from batchpaged import api
from batchpaged.dataset.schema import TOKENS_LOGPROBS
from batchpaged.errors import RefusedError

PROMPT = {"system": tiny_runs.SYSTEM, "user": tiny_runs.USER, "reorder": "questions"}
SAMPLES = {"max_tokens": 4, "n": 3, "temperature": 1.0, "logprobs": 1}
BEAMS = {"max_tokens": 4, "beam_width": 3, "n": 2, "prompt_logprobs": 3}
ANSWER = {"name": "answer", "prompt": PROMPT, "sampling": SAMPLES, "evaluate": {"references": "answers"}}
VOTE = {
    "name": "vote",
    "prompt": {"user": "{{ document }} {{ answer_completion_tokens[0] }}{% for a in answer %} {{ a }}{% endfor %}"},
    "sampling": {"max_tokens": 3, "prompt_logprobs": 2},
}
LAST = {"name": "last", "prompt": PROMPT, "sampling": BEAMS}


def pipeline(*stages: dict[str, Any], **sections: Any) -> dict[str, Any]:
    made = tiny_runs.pipeline(tiny_runs.new_path("lists"), gates=[], stages=list(stages), **sections)
    return {key: section for key, section in made.items() if key not in ("prompt", "evaluate")}


@cache
def finished() -> api.RunResult:
    return api.run(pipeline(ANSWER, VOTE, LAST))


@cache
def alone(index: int) -> api.RunResult:
    stage = (ANSWER, VOTE, LAST)[index]
    sections = {key: stage.get(key) for key in ("prompt", "sampling", "evaluate")}
    return api.run(tiny_runs.pipeline(tiny_runs.new_path("alone"), gates=[], **sections))


def output(run_dir: Path) -> pa.Table:
    return tiny_runs.output(run_dir).drop_columns("when")  # which no Python has


def check_logprobs(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> None:
    assert ours.type.equals(theirs.type)
    for a, b in zip(ours.to_pylist(), theirs.to_pylist(), strict=True):
        assert (a is None) == (b is None)
        pairs = zip(_flat(a or []), _flat(b or []), strict=True)
        for x, y in pairs:
            assert x["token_id"] == y["token_id"] and len(x["top"] or ()) == len(y["top"] or ())
            np.testing.assert_allclose(x["logprob"] or 0, y["logprob"] or 0, atol=1e-4)


def _flat(tokens: list) -> list[dict[str, Any]]:
    return [item for part in tokens for item in part] if tokens and isinstance(tokens[0], list) else tokens


def test_a_stage_has_the_columns_that_it_has_alone() -> None:
    rows, one, other = (output(run.run_dir) for run in (finished(), alone(0), alone(2)))
    for name in ("finish_reason", "completion_tokens", "status", "error", "prompt_hash", "questions_order"):
        assert rows[f"answer_{name}"].equals(one[name]) and rows[name].equals(other[name])
    assert rows["answer"].type == pa.list_(pa.string())
    assert rows["answer"].equals(one["completion"]) and rows["completion"].equals(other["completion"])
    assert rows["completion_score"].type == other["completion_score"].type == pa.list_(pa.float32())


def test_log_probabilities_are_those_of_the_stage_alone_whatever_is_in_the_cache() -> None:
    rows, one, other = (output(run.run_dir) for run in (finished(), alone(0), alone(2)))
    check_logprobs(rows["answer_completion_logprobs"], one["completion_logprobs"])
    check_logprobs(rows["prompt_logprobs"], other["prompt_logprobs"])
    assert rows["vote_prompt_logprobs"].type.equals(TOKENS_LOGPROBS)
    assert {len(row[-1]["top"]) for row in rows["vote_prompt_logprobs"].to_pylist() if row is not None} == {2}


def test_later_templates_see_every_completion() -> None:
    rows = output(finished().run_dir).to_pylist()
    assert [row["vote_status"] for row in rows] == [row["answer_status"] for row in rows]
    texts = {"text": pa.array([_vote(row) for row in rows])}
    assert len(texts["text"].drop_null()) == tiny_runs.NUM_ROWS - len(tiny_runs.FAILED)
    tokenizer = _tokenizer()
    lengths = [None if text is None else len(tokenizer(text).input_ids) for text in texts["text"].to_pylist()]
    assert [row["vote_prompt_tokens"] for row in rows] == lengths


def _vote(row: dict[str, Any]) -> str | None:
    if row["answer_status"] == "failed":
        return None
    said = "".join(f" {text}" for text in row["answer"])
    messages = [{"role": "user", "content": f"{row['document']} {row['answer_completion_tokens'][0]}{said}"}]
    return _tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


@cache
def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_runs.model())


def test_metrics_and_shared_blocks_are_those_of_the_stages() -> None:
    report, stages = finished().report, finished().report["stages"]
    one, other = alone(0).report, alone(2).report
    assert report["evaluation"] == one["evaluation"]
    assert stages["vote"]["sequence_groups"] is None
    for stage, single in ((stages["answer"], one), (stages["last"], other)):
        assert stage["sequence_groups"]["num_groups"] == single["sequence_groups"]["num_groups"] > 0
    groups = [stages[name]["sequence_groups"] for name in ("answer", "last")]
    assert report["sequence_groups"]["blocks_shared"] == sum(group["blocks_shared"] for group in groups)
    assert report["sequence_groups"]["memory_saved"] is None


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"prompt": {"user": "Is it {{ answer }}?"}}, r"stage vote: prompt.user prints 'answer', which is a list; write {{ answer\[0\] }}"),
        ({"prompt": {"text_column": "answer"}}, "column 'answer' is list<.*>, must be a string"),
        ({"prompt": {"user": "{{ document }}"}, "sampling": {"structured": {"column": "answer"}}}, "must be a string of JSON"),
        ({"name": "completion_score"}, "'completion_score', which is a column of the output"),
        ({"sampling": {"beam_width": 3, "n": 4}}, r"stages\[1\].sampling.beam_width = 3: must be at least sampling.n"),
    ],
)
def test_what_no_row_could_do_with_a_list_is_refused(second: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        api.validate(pipeline(ANSWER, {**VOTE, **second}))


def test_a_metric_of_ones_own_is_tried_with_the_columns_of_the_stages_before(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def longest(completion, references, row):\n"
        "    assert row['status'] == row['answer_status'] == 'ok' and isinstance(row['completion'], str)\n"
        "    return max(map(len, row['answer'])) + sum(row['answer_completion_tokens'])\n"
    )
    evaluate = {"metrics": "mine:longest", "metrics_folder": str(tmp_path)}
    assert api.validate(pipeline(ANSWER, {**VOTE, "evaluate": evaluate})).num_rows == tiny_runs.NUM_ROWS
