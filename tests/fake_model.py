"""A deterministic stand-in for the model that checks what the scheduler hands it.

Its KV cache holds, per slot, what was computed there: the token id, its position, and a digest of all tokens up to it,
as a real model's keys and values depend on them all. Every context is read back through its block table and must be
exactly the sequence's own tokens; the next token is a hash of that context. So a wrong share, a slot written twice or
read before it was computed changes the output or raises.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import xxhash

from batchpaged.engine.step import BlockMove, MoveKind, Sampled, SampleRequest, SequenceStep, StepPlan, TokenLogprobs


def next_token(context: list[int], vocab_size: int, seed: int = 0) -> int:
    """The fake model itself: a function of all tokens so far."""
    return xxhash.xxh3_64_intdigest(repr(context).encode(), seed) % vocab_size


def next_logprobs(context: list[int], vocab_size: int) -> np.ndarray:
    """float32 [vocab_size]: another one, for beam search."""
    seed = xxhash.xxh3_64_intdigest(repr(context).encode())
    scores = np.random.Generator(np.random.PCG64(seed)).normal(size=vocab_size)
    return (scores - np.log(np.exp(scores).sum())).astype(np.float32)


def top_logprobs(context: list[int], vocab_size: int, num_top: int) -> TokenLogprobs:
    """Of the most likely tokens; the one chosen is the first."""
    logprobs = next_logprobs(context, vocab_size)
    top = np.argsort(-logprobs, kind="stable")[None, :num_top]
    return TokenLogprobs(logprobs[top[0, :1]], np.ones(1, np.int32), top.astype(np.int32), logprobs[top])


def reference_tokens(
    prompt: list[int], num_tokens: int, vocab_size: int, eos: int | None = None, seed: int = 0
) -> list[int]:
    """What the fake model generates with no cache, no batch and no scheduler."""
    context = list(prompt)
    for _ in range(num_tokens):
        context.append(next_token(context, vocab_size, seed))
        if context[-1] == eos:
            break
    return context[len(prompt) :]


@dataclass(frozen=True)
class Slot:
    """What stands for one token's keys and values."""

    token: int
    position: int
    digest: int  # of this token and all before it, and of the adapter they were computed with


MOVES = {
    MoveKind.SAVE: ("block", "frame"),
    MoveKind.LOAD: ("frame", "block"),
    MoveKind.WRITE: ("frame", "slot"),
    MoveKind.READ: ("slot", "frame"),
    MoveKind.LOAD_FROM_DISK: ("slot", "block"),
}


@dataclass
class _Blocks:
    """The slots of the pool, a block at a time."""

    slots: list[Slot | None]
    block_size: int

    def pop(self, block: int) -> list[Slot | None]:
        """It stays in the block, too: copies of the same step may read it yet."""
        content = self.slots[self._of(block)]
        assert None not in content, "a block is saved that was never filled"
        return content

    def __setitem__(self, block: int, content: list[Slot | None]) -> None:
        self.slots[self._of(block)] = content

    def _of(self, block: int) -> slice:
        return slice(block * self.block_size, (block + 1) * self.block_size)


class FakeRunner:
    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 50, max_batch_tokens: int = 10**9) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.max_batch_tokens = max_batch_tokens
        self.slots: list[Slot | None] = [None] * (num_blocks * block_size)
        self.frames: dict[int, list[Slot | None]] = {}  # of host memory: what lies there of a block
        self.disk: dict[int, list[Slot | None]] = {}
        self._sampled: dict[int, int] = {}  # by the step before
        self._logprobs: dict[int, TokenLogprobs] = {}

    def start(self, plan: StepPlan) -> Callable[[], Sampled]:
        self._logprobs = {}
        sampled = Sampled(self.execute(plan), self._logprobs)
        return lambda: sampled

    def close(self) -> None:
        pass

    def execute(self, plan: StepPlan) -> dict[int, int]:
        assert 0 < plan.num_tokens <= self.max_batch_tokens
        assert len(set(plan.slots)) == len(plan.slots), "a slot is written twice in one step"
        for move in plan.moves:
            self._move(move)
        self._copy(plan)
        for load in plan.loads:
            self._move(load)
        self._sampled = dict(self._compute(plan, self._with_pending(plan)))
        return self._sampled

    def _with_pending(self, plan: StepPlan) -> list[int]:
        """The step's token ids; those not known to the scheduler are what the step before has sampled."""
        token_ids = list(plan.token_ids)
        for token in plan.pending:
            assert token_ids[token.index] is None
            token_ids[token.index] = self._sampled[token.seq_id]
        assert None not in token_ids
        return token_ids

    def _move(self, move: BlockMove) -> None:
        """What has left a place below the pool is not there any more, so nobody can use it from there again."""
        places = {"block": _Blocks(self.slots, self.block_size), "frame": self.frames, "slot": self.disk}
        source, target = MOVES[move.kind]
        places[target][move.target] = places[source].pop(move.source)

    def _copy(self, plan: StepPlan) -> None:
        size = self.block_size
        read = [self.slots[c.source * size : c.source * size + c.num_slots] for c in plan.copies]
        for copy, values in zip(plan.copies, read, strict=True):
            assert None not in values, "a copy reads slots that were never computed"
            self.slots[copy.target * size : copy.target * size + copy.num_slots] = values

    def _compute(self, plan: StepPlan, token_ids: list[int]) -> Iterator[tuple[int, int]]:
        end = 0
        for step in plan.sequences:
            start, end = end, end + step.query_length
            context = self._read(step)
            digest = context[-1].digest if context else hash(step.adapter)
            for token, position, slot in zip(
                token_ids[start:end], plan.positions[start:end], plan.slots[start:end], strict=True
            ):
                digest = _next_digest(digest, token)
                context.append(Slot(token, position, digest))
                self.slots[slot] = context[-1]
                assert slot == self._slot(step, position), "a token is written where its context does not read it"
            if step.sample is not None:
                tokens = [slot.token for slot in context]
                for seq_id, request in ((step.seq_id, step.sample), *step.forks):
                    yield seq_id, self._sample(seq_id, request, tokens)

    def _sample(self, seq_id: int, request: SampleRequest, tokens: list[int]) -> int:
        if request.num_top is not None:
            self._logprobs[seq_id] = top_logprobs(tokens, self.vocab_size, request.num_top)
        return next_token(tokens, self.vocab_size, 0 if request.params.is_greedy else request.seed)

    def _read(self, step: SequenceStep) -> list[Slot]:
        """What was computed of the context before this step."""
        assert len(step.block_table) == -(-step.context_length // self.block_size)
        context, digest = [], hash(step.adapter)
        for position in range(step.context_length - step.query_length):
            entry = self.slots[self._slot(step, position)]
            assert entry is not None and entry.position == position, "a context reads a slot of another position"
            digest = _next_digest(digest, entry.token)
            assert entry.digest == digest, "a context reads a slot that followed other tokens"
            context.append(entry)
        return context

    def _slot(self, step: SequenceStep, position: int) -> int:
        return step.block_table[position // self.block_size] * self.block_size + position % self.block_size


def _next_digest(digest: int, token: int) -> int:
    return hash((digest, token))
