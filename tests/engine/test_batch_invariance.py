"""engine.batch_invariant: a prompt's logits have the same bits, whatever else the engine does at the same time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from engine.test_build import build_from
from tiny_models import save_tiny

from batchpaged.engine.engine import Engine
from batchpaged.engine.invariance import check_batch_invariance
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.errors import ModelError

NUM_PROMPTS, NUM_TOKENS = 100, 3


def prompts() -> list[list[int]]:
    """A common beginning, one of five documents and a question each; some are alike, one is a single token."""
    rng = np.random.default_rng(0)
    numbers = lambda n: rng.integers(3, 90, n).tolist()  # noqa: E731
    documents = [numbers(n) for n in (40, 17, 33, 5, 64)]
    common = [1, *numbers(19)]
    return [[1], *([*common, *documents[i % 5], *numbers(i % 23)] for i in range(NUM_PROMPTS - 1))]


def logits_of(engine: Engine, batch: list[list[int]]) -> list[torch.Tensor]:
    """-> for each prompt [NUM_TOKENS, vocab_size], from which its tokens were chosen"""
    runner, seen = engine._runner, {}
    compute = type(runner)._logits.__get__(runner)

    def recorded(plan, rows):
        logits = compute(plan, rows)
        sampling = [step.seq_id for step in plan.sequences if step.sample is not None]
        for seq_id, row in zip(sampling, logits, strict=False):
            seen.setdefault(seq_id, []).append(row.clone())
        return logits

    runner._logits = recorded
    for i, prompt in enumerate(batch):
        engine.add(prompt, SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True), str(i), i)
    while engine.has_unfinished:
        engine.step()
    return [torch.stack(seen[seq_id]) for seq_id in sorted(seen)]


def batches(engine: Engine, size: int) -> list[torch.Tensor]:
    everything = prompts()
    return [x for start in range(0, len(everything), size) for x in logits_of(engine, everything[start : start + size])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("invariance") / "model")


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[torch.Tensor]:
    """Each prompt by itself, without a prefix cache."""
    return batches(build_from(folder, kv_cache=256, batch_invariant=True, prefix_cache=False), 1)


@pytest.mark.parametrize("size", [7, 64, 100])
@pytest.mark.parametrize(
    "options", [{}, {"prefix_cache": False}, {"max_batch_tokens": 13}, {"kv_cache": 20}], ids=["", "no cache", "chunks", "full"]
)
def test_logits_have_the_same_bits(folder: Path, alone: list[torch.Tensor], size: int, options: dict) -> None:
    found = batches(build_from(folder, **({"kv_cache": 1024, "batch_invariant": True} | options)), size)
    assert len(found) == len(alone) == NUM_PROMPTS
    assert all(torch.equal(x, y) for x, y in zip(found, alone, strict=True))


def test_a_model_whose_layers_are_not_invariant_is_refused(folder: Path) -> None:
    """Here one that adds to each token what the batch has in common."""
    engine = build_from(folder, batch_invariant=True)
    model = engine._runner._model
    layer = model.get_output_embeddings()
    original = layer.forward
    layer.forward = lambda x: original(x + 1e-7 * x.shape[-2])
    with pytest.raises(ModelError, match="engine.batch_invariant: a layer of this model"):
        check_batch_invariance(engine._runner, 264, 64, 16, 256)


@pytest.mark.parametrize("options", [{"attention": "torch"}, {"dtype": "bfloat16"}], ids=["torch", "bfloat16"])
def test_what_has_no_invariant_kernels_is_refused(folder: Path, options: dict) -> None:
    with pytest.raises(ModelError, match="engine.batch_invariant needs Triton's kernels on a GPU, or float32"):
        build_from(folder, batch_invariant=True, **options)
