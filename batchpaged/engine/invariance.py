"""Whether a loaded model gives a prompt's logits the same bits alone and beside others: found by trying."""

import torch

from batchpaged.engine.model_runner import ModelRunner
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import SampleRequest, SequenceStep, StepPlan
from batchpaged.errors import ModelError

LENGTHS = (1, 7, 40, 3, 65)  # tokens of the prompts that are tried, as far as they fit
GPU_LENGTHS = (*LENGTHS, 700)  # its libraries choose other ways for many rows, and contexts are cut

_Prompt = tuple[int, ...]


def check_batch_invariance(
    runner: ModelRunner, vocab_size: int, num_blocks: int, block_size: int, max_model_len: int, lengths: tuple[int, ...] = LENGTHS
) -> None:
    """Compute random prompts together, alone and in two chunks, and their last tokens in a decode step.

    The KV cache's first blocks are written. Raises ModelError where a bit differs.
    """
    generator = torch.Generator().manual_seed(0)
    most = min(num_blocks * block_size // len(lengths), max_model_len)
    prompts = [tuple(torch.randint(vocab_size, (n,), generator=generator).tolist()) for n in lengths if n <= most]
    together = _logits(runner, prompts, [(0, len(prompt)) for prompt in prompts], block_size)
    rows = together.split([len(prompt) for prompt in prompts])
    decoded = _logits(runner, prompts, [(len(prompt) - 1, len(prompt)) for prompt in prompts], block_size, is_decode=True)
    is_same = torch.equal(decoded, torch.stack([row[-1] for row in rows]))
    for prompt, expected in zip(prompts, rows, strict=True):
        middle, end = len(prompt) // 2, len(prompt)
        alone = _logits(runner, [prompt], [(0, end)], block_size)
        chunks = [_logits(runner, [prompt], [part], block_size) for part in ((0, middle), (middle, end)) if part[0] < part[1]]
        is_same = is_same and torch.equal(alone, expected) and torch.equal(torch.cat(chunks), expected)
    if not is_same:
        raise ModelError(
            "engine.batch_invariant: a layer of this model gives a prompt other bits alone than beside others; set it to false"
        )


def _logits(
    runner: ModelRunner, prompts: list[_Prompt], parts: list[tuple[int, int]], block_size: int, is_decode: bool = False
) -> torch.Tensor:
    """-> [sum of (end - start), vocab_size] for tokens start to end of each prompt; those before lie in the cache.

    `is_decode`: as a decode step, which on a GPU takes another way; each part is one token.
    """
    token_ids, positions, slots, sequences, block = [], [], [], [], 0
    for i, (prompt, (start, end)) in enumerate(zip(prompts, parts, strict=True)):
        table = tuple(range(block, block + -(-len(prompt) // block_size)))
        block += len(table)
        token_ids += prompt[start:end]
        positions += range(start, end)
        slots += [table[p // block_size] * block_size + p % block_size for p in range(start, end)]
        request = SampleRequest(SamplingParams(), 0, end, None) if is_decode else None
        sequences.append(SequenceStep(i, end - start, end, table[: -(-end // block_size)], request))
    plan = StepPlan(tuple(token_ids), tuple(positions), tuple(slots), tuple(sequences), ())
    return runner.logits(plan, list(range(len(token_ids)))).clone()
