"""Finds the causes of lost reuse and what each costs."""

from collections.abc import Callable, Iterator

from batchpaged.config import EngineConfig, Pipeline
from batchpaged.dataset.prompts import PromptBuilder
from batchpaged.dataset.reorder import Reorder
from batchpaged.dataset.source import Source
from batchpaged.planning.diagnosis import context_order, variants, varying, whitespace
from batchpaged.planning.diagnosis.examination import Comparison, Examination, Version
from batchpaged.planning.diagnosis.findings import Cause, Diagnosis, Finding
from batchpaged.planning.diagnosis.proposal import WORTH_SAYING, Proposal
from batchpaged.planning.diagnosis.sample import Sample, read_sample
from batchpaged.planning.diagnosis.sharing import Sharing, share_texts, share_tokens
from batchpaged.planning.diagnosis.short_prefix import find_prefix_cache_off, find_short_prefixes

# The narrower a cause, the earlier it comes: an instruction with a doubled space is a variant as well, and a field that
# varies.
_CAUSES: tuple[Callable[[Examination, Version], Iterator[Proposal]], ...] = (
    whitespace.propose,
    variants.propose,
    context_order.propose,
    varying.propose,
)
_BYTES_PER_TOKEN = 8  # more than most texts have


def diagnose(pipeline: Pipeline, source: Source, builder: PromptBuilder, reorder: Reorder | None) -> Diagnosis:
    """`builder` makes the run's prompts, `reorder` is what prompt.reorder asks for."""
    sample = read_sample(pipeline, source, builder, reorder)
    examination = Examination(builder, pipeline.prompt, Version(sample.table))
    has_texts = pipeline.prompt.token_ids_column is None and sample.table.num_rows > 1
    search = _Search(examination, sample)
    findings = search.run() if has_texts else []
    tokens = None
    if findings or not has_texts or _may_share_little(examination, pipeline.engine):
        tokens, row_ids = _share(examination, sample, examination.base)
        findings += find_prefix_cache_off(tokens, pipeline.engine, row_ids)
        without_found = _share(examination, sample, search.without_found)
        findings += find_short_prefixes(*without_found, pipeline.engine, search.causes)
    return Diagnosis(
        findings=tuple(sorted(findings, key=lambda finding: (len(finding.after), -finding.num_tokens))),
        num_rows=sample.num_rows,
        num_rows_total=sample.num_rows_total,
        num_prompt_tokens=None if tokens is None else tokens.num_items,
        num_unique_tokens=None if tokens is None else tokens.num_unique,
    )


def _may_share_little(examination: Examination, engine: EngineConfig) -> bool:
    """Is it worth counting tokens for what prompts as they are may tell?"""
    if not engine.prefix_cache:
        return True
    texts = [text for text in examination.texts(examination.base) if text is not None]
    sharing = share_texts(texts)
    is_short = sharing.longest < engine.block_size * _BYTES_PER_TOKEN
    return sharing.num_shared[is_short].sum() >= WORTH_SAYING / 2 * sharing.num_items


def _share(examination: Examination, sample: Sample, version: Version) -> tuple[Sharing, list[str]]:
    """-> what the prompts of a version share, and the ids of their rows."""
    prompts = examination.tokens(version)
    rows = [i for i, prompt in enumerate(prompts) if prompt is not None]
    return share_tokens([prompts[i] for i in rows]), [sample.row_ids[i] for i in rows]


_Key = tuple[Cause, str]


def _key(proposal: Proposal) -> _Key:
    return proposal.cause, proposal.subject


class _Search:
    """Tries each cause on the rows without those found before, until nothing more is found.

    What is reported is what a cause costs alone; one that costs nothing alone, because another one hides it, is
    reported with what it costs after that.
    """

    def __init__(self, examination: Examination, sample: Sample) -> None:
        self._examination, self._sample = examination, sample
        self.without_found = examination.base
        self._found: dict[_Key, Finding] = {}

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Found so far."""
        return tuple(dict.fromkeys(cause for cause, _ in self._found))

    def run(self) -> list[Finding]:
        while any([self._try(propose) for propose in _CAUSES]):
            pass
        return list(self._found.values())

    def _try(self, propose: Callable[[Examination, Version], Iterator[Proposal]]) -> bool:
        """-> was anything found?"""
        is_found = False
        for proposal in propose(self._examination, self.without_found):
            if _key(proposal) in self._found:
                continue
            after = self._weigh(self.without_found, proposal)
            if after is None:
                continue
            self._found[_key(proposal)] = self._finding(propose, proposal, after)
            self.without_found = proposal.version
            self._examination.forget_all_but([self.without_found])
            is_found = True
        return is_found

    def _weigh(self, now: Version, proposal: Proposal) -> Comparison | None:
        """What it costs, if that is worth saying."""
        texts = self._examination.compare_texts(now, proposal.version)
        if texts.num_saved < WORTH_SAYING / 2 * texts.now.num_items:
            return None
        tokens = self._examination.compare_tokens(now, proposal.version)
        is_much = tokens.num_saved >= max(1, WORTH_SAYING * tokens.now.num_items)
        return tokens if is_much and tokens.mean_growth >= proposal.min_growth else None

    def _finding(
        self, propose: Callable[[Examination, Version], Iterator[Proposal]], proposal: Proposal, after: Comparison
    ) -> Finding:
        alone = after
        if self._found:
            alone = self._weigh_alone(propose, _key(proposal))
        cost = after if alone is None else alone
        return Finding(
            cause=proposal.cause,
            what=proposal.what,
            way_out=proposal.way_out,
            num_rows=int((cost.growth > 0).sum()),
            example_rows=tuple(self._sample.row_ids[row] for row in cost.example_rows()),
            num_tokens=cost.num_saved,
            hit_rate=cost.hit_rate,
            after=() if alone is not None else self.causes,
        )

    def _weigh_alone(
        self, propose: Callable[[Examination, Version], Iterator[Proposal]], key: _Key
    ) -> Comparison | None:
        base = self._examination.base
        same = (proposal for proposal in propose(self._examination, base) if _key(proposal) == key)
        return next((weighed for proposal in same if (weighed := self._weigh(base, proposal)) is not None), None)
