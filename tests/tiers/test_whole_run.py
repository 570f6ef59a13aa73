"""Beams, several completions and log-probabilities of a whole run whose KV cache is too small, against transformers' generate."""

import random
from collections.abc import Iterator

import free_tiers
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs
import torch
from tiny_models import tiny_tokenizer
from transformers import AutoModelForCausalLM

from batchpaged import api

NUM_ROWS, NUM_TOKENS, WIDTH, NUM_RETURNED = 16, 10, 3, 2


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    documents = [[rng.randrange(10, 60) for _ in range(30)] for _ in range(12)]
    return [rng.choice(documents) + [rng.randrange(10, 60) for _ in range(rng.randint(1, 9))] for _ in range(NUM_ROWS)]


@pytest.fixture
def run() -> Iterator[api.RunResult]:
    """Of a unit whose rows take more blocks together than there are, and are preempted all the time."""
    path = tiny_runs.new_path("beams") / "rows.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"id": list(map(str, range(NUM_ROWS))), "ids": prompts()}), path)
    pipeline = tiny_runs.pipeline(
        tiny_runs.new_path("beams-run"),
        input={"path": str(path), "id_column": "id"},
        prompt={"token_ids_column": "ids"},
        engine={"kv_cache": 20, "block_size": 8, "max_sequences": 16, "device": "cpu", "host_cache": 2, "disk_cache": 60},
        sampling={"max_tokens": NUM_TOKENS, "ignore_eos": True, "beam_width": WIDTH, "n": NUM_RETURNED, "logprobs": 1},
        evaluate=None,
        gates=[],
    )
    tiny_runs.on_workers(free_tiers.make_free)
    try:
        yield api.run(pipeline)
    finally:
        tiny_runs.on_workers(free_tiers.measure)


def test_beams_and_their_log_probabilities_are_those_of_generate(run: api.RunResult) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_runs.model()), tiny_tokenizer()
    rows = tiny_runs.output(run.run_dir).to_pylist()
    assert [row["id"] for row in rows] == list(map(str, range(NUM_ROWS)))
    for row in rows:
        beams, scores = generated(model, row["ids"])
        assert row["completion"] == [tokenizer.decode(ids, skip_special_tokens=True) for ids in beams]
        np.testing.assert_allclose(row["completion_score"], scores, atol=1e-4)
        assert [[token["token_id"] for token in one] for one in row["completion_logprobs"]] == beams
        sums = [sum(token["logprob"] for token in one) for one in row["completion_logprobs"]]
        np.testing.assert_allclose(sums, NUM_TOKENS * np.array(scores), atol=1e-3)
    tiers = run.report["memory_tiers"]
    assert run.report["num_preemption"] > 0 and tiers["blocks_loaded"] > 0


def generated(model: torch.nn.Module, ids: list[int]) -> tuple[list[list[int]], list[float]]:
    """Token ids of the beams, and their scores."""
    prompt = torch.tensor([ids])
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        num_beams=WIDTH,
        num_return_sequences=NUM_RETURNED,
        pad_token_id=0,
        eos_token_id=None,
        output_scores=True,
        return_dict_in_generate=True,
    )
    return out.sequences[:, len(ids) :].tolist(), out.sequences_scores.tolist()
