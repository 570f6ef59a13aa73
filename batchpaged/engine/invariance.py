"""Whether a loaded model gives a prompt's logits the same bits alone and beside others: found by trying."""

import torch

from batchpaged.engine.model_runner import ModelRunner
from batchpaged.engine.step import SequenceStep, StepPlan
from batchpaged.errors import ModelError

LENGTHS = (1, 7, 40, 3, 65)  # tokens of the prompts that are tried, as far as they fit into the KV cache


def check_batch_invariance(runner: ModelRunner, vocab_size: int, num_blocks: int, block_size: int) -> None:
    """Compute random prompts together, alone and in two chunks; the KV cache's first blocks are written.

    Raises ModelError where a bit differs.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = [
        tuple(torch.randint(vocab_size, (length,), generator=generator).tolist())
        for length in LENGTHS
        if length <= num_blocks * block_size // len(LENGTHS)
    ]
    together = _logits(runner, prompts, [(0, len(prompt)) for prompt in prompts], block_size)
    for prompt, rows in zip(prompts, together.split([len(prompt) for prompt in prompts]), strict=True):
        middle, end = len(prompt) // 2, len(prompt)
        alone = _logits(runner, [prompt], [(0, end)], block_size)
        chunks = [_logits(runner, [prompt], [part], block_size) for part in ((0, middle), (middle, end)) if part[0] < part[1]]
        if not (torch.equal(alone, rows) and torch.equal(torch.cat(chunks), rows)):
            raise ModelError(
                "engine.batch_invariant: a layer of this model gives a prompt other bits alone than beside others; set it to false"
            )


def _logits(
    runner: ModelRunner, prompts: list[tuple[int, ...]], parts: list[tuple[int, int]], block_size: int
) -> torch.Tensor:
    """-> [sum of (end - start), vocab_size] for tokens start to end of each prompt; those before lie in the cache."""
    token_ids, positions, slots, sequences, block = [], [], [], [], 0
    for i, (prompt, (start, end)) in enumerate(zip(prompts, parts, strict=True)):
        table = tuple(range(block, block + -(-len(prompt) // block_size)))
        block += len(table)
        token_ids += prompt[start:end]
        positions += range(start, end)
        slots += [table[p // block_size] * block_size + p % block_size for p in range(start, end)]
        sequences.append(SequenceStep(i, end - start, end, table[: -(-end // block_size)], None))
    plan = StepPlan(tuple(token_ids), tuple(positions), tuple(slots), tuple(sequences), ())
    return runner.logits(plan, list(range(len(token_ids))))
