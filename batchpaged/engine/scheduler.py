"""The scheduler: decides which tokens the next step computes, and where their keys and values go.

Plain data in, plain data out: no model, no tensor, no clock. Per step, in this order: running sequences decode one
token each, running prefills go on, waiting sequences are admitted, all within one token budget (chunked prefill mixed
with decode as in Sarathi-Serve: Agrawal et al., 2024, "Taming Throughput-Latency Tradeoff in LLM Inference").

A step may be planned before the results of the last one are known. What it samples is then *pending*: its tokens count,
have slots and can be computed, but their ids are known to the runner alone. Nothing else needs the ids: which block is cached
next, and who has finished, is decided one step later.
"""

from collections import deque
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
from batchpaged.engine.preemption import Preemption
from batchpaged.engine.queues import Queues
from batchpaged.engine.results import Results
from batchpaged.engine.sequence import BeamGroup, FinishCheck, Sequence, Status, TokenCounts
from batchpaged.engine.sequence_groups import SequenceGroups
from batchpaged.engine.step import Sampled, StepPlan
from batchpaged.engine.step_builder import StepBuilder
from batchpaged.errors import RowError


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
        self.counts = TokenCounts()
        self.groups = SequenceGroups(pool)
        self._limits = limits
        self._max_running = min(limits.max_sequences, limits.max_batch_tokens)
        self._queues = queues = Queues()
        self._in_flight = in_flight = InFlight()
        self._uses = uses = None if cache is None else FutureUses(pool, cache, tiers)
        if tiers is not None:
            cache.store_in(tiers)
        self._tables = tables = BlockTables(pool, uses)
        self._computed = computed = None if cache is None else ComputedBlocks(pool, cache)
        lengths = CompletionLengths()
        self._admission = Admission(pool, tables, cache, uses, in_flight, lengths, self.counts, tiers)
        self._preemption = Preemption(pool, tables, queues, in_flight, uses, tiers)
        self._results = Results(queues, tables, self.groups, computed, lengths, self.counts, finish_check)

    @property
    def waiting(self) -> deque[Sequence]:
        return self._queues.waiting

    @property
    def running(self) -> list[Sequence]:
        """In order of admission."""
        return self._queues.running

    @property
    def num_preemptions(self) -> int:
        """Since the engine started."""
        return self._preemption.num_preemptions

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
                f"({self.pool.num_blocks} block{'s' * (self.pool.num_blocks != 1)} of {self.pool.block_size} tokens); raise engine.kv_cache"
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
        if self._preemption.must_wait():
            return None
        builder = StepBuilder(self.pool.block_size, self._limits.max_batch_tokens, self.counts, self.tiers)
        self._schedule_decodes(builder)
        self._schedule_prefills(builder)
        queues = self._queues
        queues.waiting = self._admission.admit(queues.waiting, queues.running, self._max_running, builder)
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
                self._queues.put_before(sequence, self.groups.part(sequence))
            elif sequence.is_restored and sequence.num_computed_tokens == sequence.num_prompt_tokens:
                self._queues.replace([sequence], self.groups.restore(sequence))

    def update(self, plan: StepPlan, sampled: Sampled) -> list[Sequence]:
        """Take in a started step's result. Returns the sequences that finished, blocks released."""
        return self._results.take_in(plan, sampled)

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
            self.preempt_last()

    def preempt_last(self) -> None:
        """The sequence admitted last waits again, or all beams of its row. Whatever has been started must be known."""
        self._preemption.preempt_last()

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

    def _schedule_decodes(self, builder: StepBuilder) -> None:
        for sequence in list(self.running):
            if sequence.beams is not None and sequence.beams.is_parted:
                if sequence is sequence.beams.members[0] and sequence.status is Status.RUNNING:
                    self._schedule_beams(sequence.beams, builder)
            elif sequence.is_decoding and builder.budget and self._reserve([sequence], builder):
                builder.add(sequence, min(sequence.num_uncomputed_tokens, builder.budget))

    def _schedule_beams(self, beams: BeamGroup, builder: StepBuilder) -> None:
        """All of them have their blocks before any takes part: they are preempted together."""
        decoding = [member for member in beams.members if member.is_decoding][: builder.budget]
        restored = [member for member in beams.members if member.is_prefilling]  # these take part as other prefills do
        if self._reserve([*decoding, *restored], builder):
            for member in decoding:
                builder.add(member, 1)

    def _reserve(self, sequences: list[Sequence], builder: StepBuilder) -> bool:
        """Whether they have the blocks that they need; otherwise they have been preempted."""
        copies = self._preemption.reserve(sequences)
        for copy in copies or ():
            builder.copy(copy)
        self.groups.counts.num_copied_blocks += len(copies or ())
        return copies is not None

    def _schedule_prefills(self, builder: StepBuilder) -> None:
        for sequence in self.running:
            if sequence.is_prefilling and builder.budget:
                builder.add(sequence, min(sequence.num_uncomputed_tokens, builder.budget))
