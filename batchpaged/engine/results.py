"""What steps have sampled becomes known: tokens are appended, beams chosen, and who has finished gives its blocks back."""

from batchpaged.engine.beam_search import BeamSearch
from batchpaged.engine.block_tables import BlockTables
from batchpaged.engine.completion_lengths import CompletionLengths
from batchpaged.engine.computed_blocks import ComputedBlocks
from batchpaged.engine.queues import Queues
from batchpaged.engine.sequence import BeamGroup, FinishCheck, Sequence, Status, TokenCounts
from batchpaged.engine.sequence_groups import SequenceGroups
from batchpaged.engine.step import Sampled, StepPlan


class Results:
    """A part of the scheduler, whose state it shares."""

    def __init__(
        self,
        queues: Queues,
        tables: BlockTables,
        groups: SequenceGroups,
        computed: ComputedBlocks | None,
        lengths: CompletionLengths,
        counts: TokenCounts,
        finish_check: FinishCheck,
    ) -> None:
        self._queues = queues
        self._tables = tables
        self._groups = groups
        self._computed = computed
        self._lengths = lengths
        self._counts = counts
        self._finish_check = finish_check
        self._beam_search = BeamSearch(finish_check)

    def take_in(self, plan: StepPlan, sampled: Sampled) -> list[Sequence]:
        """-> the sequences that finished. One that an earlier result has finished is passed over: its token was computed in vain."""
        by_id = {sequence.seq_id: sequence for sequence in self._queues.running}
        finished: list[Sequence] = []
        for step in plan.sequences:
            if step.seq_id in by_id and step.seq_id in sampled.prompt_logprobs:
                by_id[step.seq_id].prompt_logprobs = sampled.prompt_logprobs[step.seq_id]
            asking = [step.seq_id, *(seq_id for seq_id, _ in step.forks)] if step.sample is not None else []
            for seq_id in filter(by_id.__contains__, asking):
                self._take_token(by_id[seq_id], sampled, finished)
        self._queues.drop_stopped()
        return finished

    def _take_token(self, sequence: Sequence, sampled: Sampled, finished: list[Sequence]) -> None:
        """What was sampled for it; for a beam, what could follow."""
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
        chosen = self._beam_search.advance(beams)
        if chosen is not None:
            self._counts.generated += len(chosen)
            self._queues.replace(members, self._groups.move(beams, chosen))
            return
        self._lengths.add(members[0].num_generated_tokens + 1)
        for member in members:
            self._tables.release(member, Status.FINISHED)
        finished += beams.results()

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
            self._tables.release(sequence, Status.FINISHED)
            self._lengths.add(sequence.num_generated_tokens)
            finished.append(sequence)

    def _append_known(self, sequence: Sequence, token_id: int) -> None:
        sequence.token_ids.append(token_id)
        self._counts.generated += 1
        if sequence.grammar is not None:
            sequence.grammar.accept(token_id)
        sequence.finish_reason = self._finish_check(sequence)

    def _append_forced(self, sequence: Sequence) -> None:
        """What the grammar leaves no choice about needs no logits: the next step computes it together with the newest token."""
        for token_id in sequence.grammar.forced():
            if sequence.finish_reason is None:
                self._append_known(sequence, token_id)
                sequence.num_forced_tokens += 1
        self._counts.forced += sequence.num_forced_tokens
