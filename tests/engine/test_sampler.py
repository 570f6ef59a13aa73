"""The sampler against transformers' own filters, and its samples against their probabilities."""

import math

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from batchpaged.engine import sampler
from batchpaged.engine.sampler import filter_probabilities
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import SampleRequest


def sample(logits: torch.Tensor, rows: list[SampleRequest]) -> list[int]:
    return sampler.sample(logits, rows).tolist()


def random_logits(seed: int, num_rows: int = 8, vocab_size: int = 60) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def requests(params: SamplingParams, num_rows: int, token_ids: tuple[int, ...] | None = None) -> list[SampleRequest]:
    return [SampleRequest(params, seed=row, num_tokens=5, token_ids=token_ids) for row in range(num_rows)]


def filtered(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Probabilities after all filters, in the order of token ids."""
    scores, order = (logits.double() / params.temperature).sort(dim=-1, descending=True, stable=True)
    kept = filter_probabilities(scores.softmax(-1), params)
    kept = kept / kept.sum(-1, keepdim=True)
    return torch.zeros_like(kept).scatter(-1, order, kept)


def expected(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The same by transformers, in the order of its generate."""
    warpers = [TemperatureLogitsWarper(params.temperature)]
    if params.top_k is not None:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        warpers.append(MinPLogitsWarper(params.min_p))
    scores = logits.double()
    for warper in warpers:
        scores = warper(None, scores)
    return scores.softmax(-1)


FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 1000},
    {"top_p": 0.0001},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.9999},
    {"min_p": 0.05},
    {"min_p": 0.5},
    {"min_p": 1.0},
    {"top_k": 10, "top_p": 0.8},
    {"top_k": 10, "min_p": 0.1},
    {"top_p": 0.8, "min_p": 0.1},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.02},
]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters_keep_what_transformers_keeps(filters: dict[str, float], temperature: float) -> None:
    params = SamplingParams(temperature=temperature, **filters)
    for seed in range(5):
        logits = random_logits(seed)
        ours, theirs = filtered(logits, params), expected(logits, params)
        assert torch.equal(ours > 0, theirs > 0)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.3, 5.0])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    params = SamplingParams(repetition_penalty=penalty)
    history = (3, 3, 17, 59, 0)
    for seed in range(20):
        logits = random_logits(seed) - 10 * (seed % 2)  # of both signs, which are treated differently; or all negative
        penalised = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([history] * 8), logits.clone())
        assert sample(logits, requests(params, 8, history)) == penalised.argmax(-1).tolist()


def test_repetition_penalty_of_each_row_is_its_own() -> None:
    params = SamplingParams(repetition_penalty=10.0)
    logits = torch.tensor([[2.0, 1.0, 0.5]] * 3)
    rows = [SampleRequest(params, 0, 5, history) for history in ((1,), (0, 0), (0, 1))]
    assert sample(logits, rows) == [0, 1, 2]


def test_greedy_takes_the_best_and_of_equal_ones_the_first() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 1.0, 5.0, 5.0], [0.0, 0.0, 0.0, 0.0]])
    assert sample(logits, requests(SamplingParams(), 3)) == [1, 0, 0]


def test_ties_at_the_edge_of_top_k_are_cut_by_token_id() -> None:
    """transformers keeps every token that ties with the k-th; here k means k, the smallest ids first."""
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0]])
    assert (filtered(logits, SamplingParams(temperature=1.0, top_k=2)) > 0).tolist() == [[True, True, False, False]]


def test_ties_are_sampled_alike() -> None:
    tokens = _samples(torch.zeros(4), SamplingParams(temperature=1.0), num_samples=4000)
    _check_frequencies(tokens, torch.full((4,), 0.25))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 4},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.5, "min_p": 0.2},
    ],
    ids=str,
)
def test_samples_follow_their_probabilities(settings: dict[str, float]) -> None:
    params = SamplingParams(**settings)
    logits = torch.tensor([0.3, 2.0, -1.0, 1.2, 0.0, -3.0, 1.9, 0.5])
    tokens = _samples(logits, params, num_samples=5000)
    _check_frequencies(tokens, expected(logits[None], params)[0])


def _samples(logits: torch.Tensor, params: SamplingParams, num_samples: int) -> list[int]:
    """Of many rows with the same logits and seeds in a row, and of one row at many positions."""
    rows = [SampleRequest(params, 77 + i, 9, None) for i in range(num_samples // 2)]
    rows += [SampleRequest(params, 2**63 + 5, i, None) for i in range(num_samples - len(rows))]
    return sample(logits.repeat(num_samples, 1), rows)


def _check_frequencies(tokens: list[int], probabilities: torch.Tensor) -> None:
    """Chi-square; seeds are fixed, so the bound (about 1 in 10,000 for a right sampler) is met always or never."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(probabilities)).double()
    kept = probabilities > 0
    assert counts[~kept].sum() == 0
    wanted = probabilities[kept] * len(tokens)
    chi_square = ((counts[kept] - wanted) ** 2 / wanted).sum().item()
    degrees = int(kept.sum()) - 1
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees) + 8


def test_a_cold_temperature_is_greedy() -> None:
    logits = random_logits(0, 50)
    assert sample(logits.clone(), requests(SamplingParams(temperature=1e-4), 50)) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_types_are_sampled_in_double(dtype: torch.dtype) -> None:
    logits = random_logits(1).to(dtype)
    params = SamplingParams(temperature=0.8, top_p=0.9)
    assert sample(logits.clone(), requests(params, 8)) == sample(logits.float(), requests(params, 8))


def test_a_row_of_overflowed_logits_leaves_the_others_alone() -> None:
    """Whatever that row gets, it is a token id, and the step goes on."""
    params = SamplingParams(temperature=0.8, top_p=0.9, min_p=0.01)
    logits = random_logits(2)
    alone = sample(logits.clone(), requests(params, 8))
    logits[3] = float("nan")
    tokens = sample(logits.clone(), requests(params, 8))
    assert 0 <= tokens[3] < 60
    assert tokens[:3] + tokens[4:] == alone[:3] + alone[4:]


def test_logits_of_minus_infinity_are_never_sampled() -> None:
    logits = torch.full((200, 10), float("-inf"))
    logits[:, 4:6] = 0.0
    assert set(sample(logits, requests(SamplingParams(temperature=1.0), 200))) == {4, 5}


def test_logits_of_a_larger_vocabulary_than_is_used() -> None:
    """Some models cut theirs: rows do not lie one after another then."""
    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(0))[:, :3000]
    greedy = SampleRequest(SamplingParams(), 0, 0, None)
    assert sample(logits, [greedy] * 4) == logits.argmax(-1).tolist()


KERNEL_PARAMS = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 1.0, "top_k": 1000, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.2},
]


@pytest.mark.parametrize("options", KERNEL_PARAMS, ids=str)
def test_the_kernel_chooses_among_the_same_tokens(options: dict[str, float]) -> None:
    """On a GPU. It draws other samples, of the same distribution."""
    params = SamplingParams(**options)
    logits = random_logits(3, num_rows=6)
    found = sampler.sample_by_kernel(logits, requests(params, 6))
    if params.is_greedy:
        assert found.tolist() == logits.argmax(-1).tolist()
    else:
        kept = filtered(logits, params).gather(-1, found[:, None])
        assert (kept > 0).all()
        assert found.tolist() != sampler.sample_by_kernel(logits, requests(params, 7)[1:]).tolist()


def test_the_kernel_takes_a_row_s_seed_and_position() -> None:
    params, logits = SamplingParams(temperature=1.0), torch.zeros(3, 500)
    rows = [SampleRequest(params, seed, position, None) for seed, position in ((2**64 - 1, 5), (2**64 - 1, 6), (2**63, 5))]
    together = sampler.sample_by_kernel(logits, rows).tolist()
    assert len(set(together)) == 3
    assert [sampler.sample_by_kernel(logits[:1], [row]).item() for row in rows] == together
