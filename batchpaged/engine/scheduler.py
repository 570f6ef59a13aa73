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

from batchpaged.engine.admission import Admission
from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.block_tables import BlockTables
from batchpaged.engine.completion_lengths import CompletionLengths
from batchpaged.engine.computed_blocks import ComputedBlocks
from batchpaged.engine.future_uses import FutureUses
from batchpaged.engine.in_flight import InFlight
from batchpaged.engine.memory_tiers import MemoryTiers
from batchpaged.engine.prefix_cache import PrefixCache
from batchpaged.engine.sequence import BeamGroup, FinishReason, Sequence, Status, TokenCounts, is_storable
from batchpaged.engine.sequence_groups import SequenceGroups
from batchpaged.engine.step import BlockCopy, Sampled, StepPlan
from batchpaged.engine.step_builder import StepBuilder
from batchpaged.errors import RowError

FinishCheck = Callable[[Sequence], FinishReason | None]


@dataclass(frozen=True)
class SchedulerLimits:
    max_batch_tokens: int  # token budget of a step
    max_sequences: int  # running at once
    max_model_len: int  # most tokens of one sequence, prompt and completion


class Scheduler:
    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache | None,
        limits: SchedulerLimits,
        finish_check: FinishCheck,
        tiers: MemoryTiers | None = None,
    ) -> None:
        """`tiers`: below the pool; they need a cache. None: what is evicted is lost."""
        self.pool = pool
        self.cache = cache
        self.tiers = tiers
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission; the last is preempted first
        self.num_preemptions = 0
        self.counts = TokenCounts()
        self.groups = SequenceGroups(pool)
        self._tables = BlockTables(pool)
        self._limits = limits
        self._max_running = min(limits.max_sequences, limits.max_batch_tokens)
        self._finish_check = finish_check
        self._in_flight = InFlight()
        self._uses = None if cache is None else FutureUses(pool, cache, tiers)
        if tiers is not None:
            cache.store_in(tiers)
        self._computed = None if cache is None else ComputedBlocks(pool, cache)
        self._lengths = CompletionLengths()
        self._admission = Admission(pool, cache, self._uses, self._in_flight, self._lengths, self.counts, tiers)

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
        if self._most_blocks(sequence) > self.pool.num_blocks:
            times = f" in {sequence.num_places} beams" if sequence.beams is not None else ""
            raise RowError(
                f"{num_tokens} tokens{times} do not fit into the KV cache "
                f"({self.pool.num_blocks} blocks of {self.pool.block_size} tokens); raise engine.kv_cache"
            )
        self.waiting.append(sequence)
        if self._uses is not None:
            self._uses.add(sequence)

    def _most_blocks(self, sequence: Sequence) -> int:
        """That it can need when it is alone: a beam search, which needs all of its beams, keeps full prompt blocks once."""
        num_most = self._tables.num_blocks(sequence.num_prompt_tokens + sequence.params.max_tokens)
        if sequence.beams is None:
            return num_most
        num_full = sequence.num_prompt_tokens // self.pool.block_size
        return num_full + sequence.num_places * (num_most - num_full)

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
        builder = StepBuilder(self.pool.block_size, self._limits.max_batch_tokens, self.counts, self.tiers)
        self._schedule_decodes(builder)
        self._schedule_prefills(builder)
        self.waiting = self._admission.admit(self.waiting, self.running, self._max_running, builder)
        if self.groups.counts.num_groups:
            self.groups.measure(self.running)
        if self.tiers is not None:
            self.tiers.write_ahead()
            self._admission.read_ahead(self.waiting)
        return builder.build()

    def start(self, plan: StepPlan) -> None:
        """The step has been started, and later ones run after it: from here on they may use what it computes."""
        if self.tiers is not None:
            self.tiers.start()
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
            if step.forks:
                # Before it: the others copy the block in which the prompt ends, and it writes on where its successor will look.
                self._put_before(sequence, self.groups.part(sequence))
            elif sequence.is_restored and sequence.num_computed_tokens == sequence.num_prompt_tokens:
                self._replace_beams([sequence], self.groups.restore(sequence))

    def _put_before(self, sequence: Sequence, others: list[Sequence]) -> None:
        at = self.running.index(sequence)
        self.running[at:at] = others

    def _replace_beams(self, old: list[Sequence], new: list[Sequence]) -> None:
        """In their place in the order of admission. `new` begins with the same sequence as `old`."""
        at = self.running.index(old[0])
        self.running[at : at + len(old)] = new

    def update(self, plan: StepPlan, sampled: Sampled) -> list[Sequence]:
        """Take in a started step's result. Returns the sequences that finished, blocks released.

        A sequence that an earlier result has finished is passed over: its token was computed in vain.
        """
        by_id = {sequence.seq_id: sequence for sequence in self.running}
        finished: list[Sequence] = []
        for step in plan.sequences:
            if step.seq_id in by_id and step.seq_id in sampled.prompt_logprobs:
                by_id[step.seq_id].prompt_logprobs = sampled.prompt_logprobs[step.seq_id]
            asking = [step.seq_id, *(seq_id for seq_id, _ in step.forks)] if step.sample is not None else []
            for seq_id in filter(by_id.__contains__, asking):
                self._take_in(by_id[seq_id], sampled, finished)
        self.running = [s for s in self.running if s.status is Status.RUNNING]
        return finished

    def _take_in(self, sequence: Sequence, sampled: Sampled, finished: list[Sequence]) -> None:
        """What was sampled for it."""
        seq_id = sequence.seq_id
        if sequence.beams is not None:
            sequence.num_pending_tokens = 0
            sequence.beams.tops[seq_id] = sampled.logprobs[seq_id]
            if sequence.beams.is_ready:
                self._advance(sequence.beams, finished)
            return
        if seq_id in sampled.logprobs:
            sequence.logprobs.append(sampled.logprobs[seq_id])
        self._append(sequence, sampled.token_ids[seq_id], finished)

    def _advance(self, beams: BeamGroup, finished: list[Sequence]) -> None:
        """One step of beam search: other beams go on, or the best of those that ended are the row's completions."""
        members = beams.members
        chosen = beams.search.advance(members, [beams.tops[member.seq_id] for member in members])
        self.counts.generated += len(chosen or ())
        if chosen is not None:
            self._replace_beams(members, self.groups.move(beams, chosen))
            return
        self._lengths.add(members[0].num_generated_tokens + 1)
        for member in members:
            self._release(member, Status.FINISHED)
        finished += beams.results()

    def shrink(self, plan: StepPlan) -> bool:
        """Memory ran out in this step: none of it counts, all its sequences wait again, and from now on steps have at
        most half as many tokens and sequences. False, and nothing changes, if the step was as small as it can be.

        What the cache holds was computed by steps before, so it stays good.
        """
        if plan.num_tokens <= self.pool.block_size and len(plan.sequences) == 1:
            return False
        self.give_up()
        num_tokens = max(self.pool.block_size, min(plan.num_tokens, self._limits.max_batch_tokens) // 2)
        num_sequences = max(1, min(len(plan.sequences), self._max_running) // 2)
        self._limits = replace(self._limits, max_batch_tokens=min(num_tokens, self._limits.max_batch_tokens))
        self._max_running = min(num_sequences, num_tokens)
        return True

    def give_up(self) -> None:
        """The step that was planned last was not done: its sequences wait again, and what lower tiers hold is lost."""
        for node in self.tiers.abandon() if self.tiers is not None else ():
            self.cache.forget(node.block)
        while self.running:
            self._preempt_last()

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
        num_new = sum(map(self._tables.num_missing, filter(self._takes_blocks, self.running)))
        return num_new > self._num_there(is_careful=self._admission.yields_to_reuse) or any(s.needs_known_tokens for s in pending)

    def _takes_blocks(self, sequence: Sequence) -> bool:
        """In the next step, besides those that it was admitted with."""
        is_restored = sequence.is_prefilling and sequence.beams is not None and sequence.beams.is_parted
        return is_restored or self._is_decoding(sequence)

    def _num_there(self, is_careful: bool) -> int:
        """Blocks that running sequences can take; to be careful is to evict none that is needed, unless it can be stored, as
        blocks of all rows can or of none: what rows want besides is the same for a pipeline's.
        """
        if not is_careful:
            return self.pool.num_available
        num_storable = self.tiers.num_free if self.tiers is not None and is_storable(self.running[-1].root) else 0
        return min(self.pool.num_spare + num_storable, self.pool.num_available)

    def _is_decoding(self, sequence: Sequence) -> bool:
        is_to_compute = sequence.num_uncomputed_tokens > 0 and not sequence.is_prefilling
        return sequence.status is Status.RUNNING and is_to_compute and not sequence.is_complete

    def _schedule_decodes(self, builder: StepBuilder) -> None:
        for sequence in list(self.running):
            if sequence.beams is not None and sequence.beams.is_parted:
                if sequence is sequence.beams.members[0] and sequence.status is Status.RUNNING:
                    self._schedule_beams(sequence.beams, builder)
            elif self._is_decoding(sequence) and builder.budget and self._reserve([sequence], builder):
                builder.add(sequence, min(sequence.num_uncomputed_tokens, builder.budget))

    def _schedule_beams(self, beams: BeamGroup, builder: StepBuilder) -> None:
        """All of them have their blocks before any takes part: they are preempted together."""
        decoding = [member for member in beams.members if self._is_decoding(member)][: builder.budget]
        restored = [member for member in beams.members if member.is_prefilling]  # these take part as other prefills do
        if self._reserve([*decoding, *restored], builder):
            for member in decoding:
                builder.add(member, 1)

    def _reserve(self, sequences: list[Sequence], builder: StepBuilder) -> bool:
        """Make their block tables cover all of their tokens, and what is written next their own. False if they had to be
        preempted for it."""
        copies: list[BlockCopy] = []
        for sequence in sequences:
            while self._tables.num_missing(sequence):
                is_careful = self._admission.yields_to_reuse and any(s.row != sequence.row for s in self.running)
                if self._num_there(is_careful):
                    self._tables.extend(sequence, copies)
                    continue
                self._preempt_last()
                if sequence.status is not Status.RUNNING:
                    return False
        self.groups.counts.num_copied_blocks += len(copies)
        for copy in copies:
            builder.copy(copy)
        return True

    def _preempt_last(self) -> None:
        """Release the blocks of the sequence admitted last. What the cache still holds of them when it comes back, or a lower
        tier does, is used again; the rest is computed again.

        Beams go together, and come back together: the prompt is computed, then each of them what is its own.
        """
        sequence = self.running[-1]
        if sequence.beams is not None and sequence.beams.is_parted:
            sequence, others = sequence.beams.members[0], sequence.beams.members[1:]
            sequence.beams.store()
            for other in others:
                self._release(other, Status.WAITING)
        self.running = [s for s in self.running if s.status is Status.RUNNING and s is not sequence]
        self._in_flight.discard(sequence)
        if self.tiers is not None:
            sequence.num_swapped_blocks = self.tiers.num_to_swap(sequence)
            self.tiers.counts.num_swaps += sequence.num_swapped_blocks > 0
        if self._uses is not None:
            self._uses.add_first(sequence)
        self._release(sequence, Status.WAITING)
        sequence.num_computed_tokens = sequence.num_cached_blocks = sequence.num_forced_tokens = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def _schedule_prefills(self, builder: StepBuilder) -> None:
        for sequence in self.running:
            if sequence.is_prefilling and builder.budget:
                builder.add(sequence, min(sequence.num_uncomputed_tokens, builder.budget))

    # --- after a step ---

    def _append(self, sequence: Sequence, token_id: int, finished: list[Sequence]) -> None:
        sequence.num_pending_tokens -= 1
        sequence.num_forced_tokens = 0
        self._append_known(sequence, token_id)
        if sequence.grammar is not None and sequence.num_top is None:  # a log-probability takes a step
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
