"""The scheduler: decides which tokens the next step computes, and where their keys and values go.

Plain data in, plain data out: no model, no tensor, no clock. Per step, in this order: running sequences decode one
token each, running prefills go on, waiting sequences are admitted, all within one token budget (chunked prefill mixed
with decode as in Sarathi-Serve: Agrawal et al., 2024, "Taming Throughput-Latency Tradeoff in LLM Inference").

A step may be planned before the results of the last one are known. What it samples is then *pending*: its tokens count,
have slots and can be computed, but their ids are known to the runner alone. Nothing else needs the ids: which block is cached
next, and who has finished, is decided one step later.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.completion_lengths import CompletionLengths
from batchpaged.engine.computed_blocks import ComputedBlocks
from batchpaged.engine.future_uses import FutureUses
from batchpaged.engine.in_flight import InFlight
from batchpaged.engine.prefix_cache import NO_MATCH, PrefixCache, PrefixMatch
from batchpaged.engine.room import Room
from batchpaged.engine.sequence import FinishReason, Sequence, Status, TokenCounts
from batchpaged.engine.step import BlockCopy, StepPlan
from batchpaged.engine.step_builder import StepBuilder
from batchpaged.errors import RowError

FinishCheck = Callable[[Sequence], FinishReason | None]

# How far behind the head of the queue admission looks past sequences that wait for another's prefix.
ADMISSION_WINDOW = 512


@dataclass(frozen=True)
class SchedulerLimits:
    max_batch_tokens: int  # token budget of a step
    max_sequences: int  # running at once
    max_model_len: int  # most tokens of one sequence, prompt and completion


class Scheduler:
    def __init__(
        self, pool: BlockPool, cache: PrefixCache | None, limits: SchedulerLimits, finish_check: FinishCheck
    ) -> None:
        self.pool = pool
        self.cache = cache
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission; the last is preempted first
        self.num_preemptions = 0
        self.counts = TokenCounts()
        self._limits = limits
        self._max_running = min(limits.max_sequences, limits.max_batch_tokens)
        self._finish_check = finish_check
        self._in_flight = InFlight()
        self._uses = None if cache is None else FutureUses(pool, cache)
        self._computed = None if cache is None else ComputedBlocks(pool, cache)
        self._lengths = CompletionLengths()

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises RowError if it could not run even alone, so that nothing waits forever."""
        if sequence.num_prompt_tokens == 0:
            raise RowError("prompt has 0 tokens; there is nothing to continue")
        num_tokens = sequence.num_prompt_tokens + sequence.params.max_tokens
        if num_tokens > self._limits.max_model_len:
            raise RowError(
                f"prompt ({sequence.num_prompt_tokens} tokens) and max_tokens ({sequence.params.max_tokens}) "
                f"pass max_model_len ({self._limits.max_model_len})"
            )
        if self._num_blocks(num_tokens) > self.pool.num_blocks:
            raise RowError(
                f"{num_tokens} tokens do not fit into the KV cache "
                f"({self.pool.num_blocks} blocks of {self.pool.block_size} tokens); raise engine.kv_cache"
            )
        self.waiting.append(sequence)
        if self._uses is not None:
            self._uses.add(sequence)

    def expect(self, token_ids: list[int] | None) -> None:
        """Say which prompt will be added next, so that what it shares is kept; forgotten when one is added."""
        if self._uses is not None:
            self._uses.expect(token_ids)

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None when nothing can be done, or not before the steps that have started are done.

        Blocks are allocated, nothing is computed yet.
        """
        if self._must_wait():
            return None
        builder = StepBuilder(self.pool.block_size, self._limits.max_batch_tokens, self.counts)
        self._schedule_decodes(builder)
        self._schedule_prefills(builder)
        self._admit(builder)
        return builder.build()

    def start(self, plan: StepPlan) -> None:
        """The step has been started, and later ones run after it: from here on they may use what it computes."""
        by_id = {sequence.seq_id: sequence for sequence in self.running}
        for step in plan.sequences:
            sequence = by_id[step.seq_id]
            sequence.num_computed_tokens = step.context_length
            sequence.num_pending_tokens += step.sample is not None
            if not sequence.is_prefilling:
                self._in_flight.discard(sequence)
            if self._computed is not None:
                self._computed.enter_full(sequence)
                self._computed.enter_prompt_end(sequence)

    def update(self, plan: StepPlan, sampled: dict[int, int]) -> list[Sequence]:
        """Take in a started step's result (seq_id -> sampled token id). Returns the sequences that finished, blocks released.

        A sequence that an earlier result has finished is passed over: its token was computed in vain.
        """
        by_id = {sequence.seq_id: sequence for sequence in self.running}
        finished = []
        for step in plan.sequences:
            sequence = by_id.get(step.seq_id)
            if sequence is not None and step.sample is not None:
                self._append(sequence, sampled[step.seq_id], finished)
        self.running = [s for s in self.running if s.status is Status.RUNNING]
        return finished

    def shrink(self, plan: StepPlan) -> bool:
        """Memory ran out in this step: none of it counts, all its sequences wait again, and from now on steps have at
        most half as many tokens and sequences. False, and nothing changes, if the step was as small as it can be.

        What the cache holds was computed by steps before, so it stays good.
        """
        if plan.num_tokens <= self.pool.block_size and len(plan.sequences) == 1:
            return False
        while self.running:
            self._preempt_last()
        num_tokens = max(self.pool.block_size, min(plan.num_tokens, self._limits.max_batch_tokens) // 2)
        num_sequences = max(1, min(len(plan.sequences), self._max_running) // 2)
        self._limits = replace(self._limits, max_batch_tokens=min(num_tokens, self._limits.max_batch_tokens))
        self._max_running = min(num_sequences, num_tokens)
        return True

    @property
    def max_batch_tokens(self) -> int:
        """Token budget of a step; less than at the start once memory has run out."""
        return self._limits.max_batch_tokens

    def check(self) -> None:
        """Raise AssertionError if pool, cache and block tables disagree (called by tests, and at the end of a run)."""
        self.pool.check(s.block_table for s in self.running)
        if self.cache is not None:
            self.cache.check()
            self._uses.check()

    # --- running sequences ---

    def _must_wait(self) -> bool:
        """Whether pending tokens have to be known first: to be looked at, or so that nobody is preempted who has finished."""
        pending = [s for s in self.running if s.num_pending_tokens]
        if not pending:
            return False
        decoding = filter(self._is_decoding, self.running)
        num_new = sum(self._num_blocks(s.num_tokens) - len(s.block_table) for s in decoding)
        num_there = self.pool.num_spare if self._yields_to_reuse else self.pool.num_available
        return num_new > num_there or any(s.needs_known_tokens for s in pending)

    def _is_decoding(self, sequence: Sequence) -> bool:
        return sequence.status is Status.RUNNING and not sequence.is_prefilling and not sequence.is_complete

    def _schedule_decodes(self, builder: StepBuilder) -> None:
        for sequence in list(self.running):
            if self._is_decoding(sequence) and builder.budget and self._reserve_slot(sequence):
                builder.add(sequence, min(sequence.num_uncomputed_tokens, builder.budget))

    def _reserve_slot(self, sequence: Sequence) -> bool:
        """Make the block table cover the next token. False if the sequence had to be preempted for it."""
        while self._num_blocks(sequence.num_tokens) > len(sequence.block_table):
            is_careful = self._yields_to_reuse and len(self.running) > 1
            if self.pool.num_spare if is_careful else self.pool.num_available:
                sequence.block_table.append(self.pool.allocate())
            elif self._preempt_last() is sequence:
                return False
        return True

    def _preempt_last(self) -> Sequence:
        """Release the blocks of the sequence admitted last; it is computed again from what the cache still holds."""
        sequence = self.running.pop()
        self._in_flight.discard(sequence)
        if self._uses is not None:
            self._uses.add_first(sequence)
        self._release(sequence, Status.WAITING)
        sequence.num_computed_tokens = sequence.num_cached_blocks = sequence.num_forced_tokens = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(sequence)
        return sequence

    def _schedule_prefills(self, builder: StepBuilder) -> None:
        for sequence in self.running:
            if sequence.is_prefilling and builder.budget:
                builder.add(sequence, min(sequence.num_uncomputed_tokens, builder.budget))

    # --- admission ---

    def _admit(self, builder: StepBuilder) -> None:
        """Admit waiting sequences in order while budget and blocks last, passing over those that wait for a prefix."""
        if not self.waiting or not builder.budget or len(self.running) >= self._max_running:
            return
        room = Room(self.pool.block_size, self._lengths)
        for sequence in self.running:
            room.keep_growth(sequence)
        passed_over: list[Sequence] = []
        admitted: set[int] = set()
        for sequence in islice(self.waiting, ADMISSION_WINDOW):
            if not builder.budget or len(self.running) >= self._max_running:
                break
            match = None if self._is_waiting_for_prefix(sequence) else self._match(sequence)
            if match is None or self._must_defer(sequence, match):
                passed_over.append(sequence)
                continue
            while passed_over:
                room.keep_all(passed_over.pop())
            room.keep_growth(sequence)
            if not self._has_room(sequence, match, room):
                break
            self._start(sequence, match, builder)
            admitted.add(sequence.seq_id)
        if admitted:
            self.waiting = deque(s for s in self.waiting if s.seq_id not in admitted)

    def _match(self, sequence: Sequence) -> PrefixMatch:
        return self.cache.match(sequence.token_ids, sequence.block_hashes, sequence.adapter) if self.cache else NO_MATCH

    def _is_waiting_for_prefix(self, sequence: Sequence) -> bool:
        other = sequence.waits_for
        if other is not None and (other.status is not Status.RUNNING or not other.is_prefilling):
            sequence.waits_for = other = None
        return other is not None

    def _must_defer(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Whether a running prefill computes tokens that this sequence needs and the cache does not hold yet."""
        if self.cache is None:
            return False
        shared, other = self._in_flight.longest_overlap(sequence)
        if min(shared, sequence.num_tokens - 1) <= match.num_tokens:
            return False
        sequence.waits_for, sequence.num_awaited_tokens = other, shared
        return True

    def _has_room(self, sequence: Sequence, match: PrefixMatch, room: Room) -> bool:
        """Whether its known tokens fit beside `room` without evicting what others will use. Alone it always fits."""
        num_new = self._num_blocks(sequence.num_tokens) - len(match.blocks)
        if not self.running:
            return True
        if self._yields_to_reuse:
            num_revived = sum(map(self.pool.is_spare, match.blocks))
            return self.pool.num_spare - num_new - num_revived >= room.num_blocks
        num_revived = sum(not self.pool.is_referenced(block) for block in match.blocks)
        return self.pool.num_available - num_new - num_revived >= room.num_expected

    @property
    def _yields_to_reuse(self) -> bool:
        """Whether fewer sequences run at once rather than evict what a waiting one will use.

        In planned order that costs little, and each token is computed once. In any other order nearly every block is
        needed some time, and nothing would be left to run in.
        """
        return self._uses is not None and self._uses.is_planned

    def _start(self, sequence: Sequence, match: PrefixMatch, builder: StepBuilder) -> None:
        for block in match.blocks:
            self.pool.acquire(block)
        num_new = self._num_blocks(sequence.num_tokens) - len(match.blocks)
        sequence.block_table = [*match.blocks, *(self.pool.allocate() for _ in range(num_new))]
        if self._uses is not None:
            self._uses.remove(sequence)
        if match.copy_source is not None:
            # Copies run before any slot is written, so the source may even be a block that was just evicted.
            target = sequence.block_table[len(match.blocks)]
            builder.copy(BlockCopy(match.copy_source, target, match.num_copied_slots))
        sequence.status = Status.RUNNING
        sequence.num_cached_blocks = len(match.blocks)
        sequence.num_computed_tokens = match.num_tokens
        sequence.count_cached(match.num_tokens, self.counts)
        self.running.append(sequence)
        self._in_flight.add(sequence)
        builder.add(sequence, min(sequence.num_uncomputed_tokens, builder.budget))

    # --- after a step ---

    def _append(self, sequence: Sequence, token_id: int, finished: list[Sequence]) -> None:
        sequence.num_pending_tokens -= 1
        sequence.num_forced_tokens = 0
        self._append_known(sequence, token_id)
        if sequence.grammar is not None:
            self._append_forced(sequence)
        if self._computed is not None:
            self._computed.enter_full(sequence)
        if sequence.finish_reason is not None:
            sequence.num_pending_tokens = 0
            self._release(sequence, Status.FINISHED)
            self._lengths.add(sequence.num_generated_tokens)
            finished.append(sequence)

    def _append_known(self, sequence: Sequence, token_id: int) -> None:
        sequence.token_ids.append(token_id)
        self.counts.generated += 1
        if sequence.grammar is not None:
            sequence.grammar.accept(token_id)
        sequence.finish_reason = self._finish_check(sequence)

    def _append_forced(self, sequence: Sequence) -> None:
        """What the grammar leaves no choice about needs no logits: the next step computes it together with the newest token."""
        for token_id in sequence.grammar.forced():
            if sequence.finish_reason is None:
                self._append_known(sequence, token_id)
                sequence.num_forced_tokens += 1
        self.counts.forced += sequence.num_forced_tokens

    def _release(self, sequence: Sequence, status: Status) -> None:
        """Give all blocks back, the last one first (see FreeQueue)."""
        if self._uses is not None:
            self._uses.before_release(sequence)
        self.pool.release(reversed(sequence.block_table))
        sequence.block_table = []
        sequence.status = status

    # --- arithmetic ---

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.pool.block_size)
