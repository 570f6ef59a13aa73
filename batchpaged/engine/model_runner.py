"""Runs a step plan through a transformers model."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from batchpaged.attention.backend import AttentionBackend
from batchpaged.attention.interface import use_backend
from batchpaged.attention.upload import download, upload
from batchpaged.engine.decode_steps import DecodeSteps
from batchpaged.engine.logprobs import MAX_LOGITS, KeptHiddenStates, LogprobTensors, PromptLogprobs, token_logprobs
from batchpaged.engine.sampler import sample
from batchpaged.engine.step import PromptRequest, Sampled, SampleRequest, StepPlan, TokenLogprobs
from batchpaged.models.lora import AdapterRows
from batchpaged.models.needed_rows import needing
from batchpaged.tiers.store import TierStore


@dataclass(frozen=True)
class _Sampled:
    """What a step has sampled, where it was sampled."""

    token_ids: torch.Tensor  # int64 [number of rows]
    rows: dict[int, int]  # by seq_id
    logprobs: LogprobTensors | None = None  # of the rows
    prompt_logprobs: dict[int, LogprobTensors] = field(default_factory=dict)  # by seq_id

    def fetch(self) -> Callable[[], Sampled]:
        """Start bringing it to the host; what is returned waits until it is there."""
        if self.token_ids.device.type == "cpu":
            return self._result
        on_host = self._copied()
        is_there = torch.cuda.Event()
        is_there.record()

        def wait() -> Sampled:
            is_there.synchronize()
            return on_host._result()

        return wait

    def _copied(self) -> "_Sampled":
        """The same in pinned memory, once the stream has come there."""
        return _Sampled(
            download(self.token_ids),
            self.rows,
            None if self.logprobs is None else self.logprobs.each(download),
            {seq_id: values.each(download) for seq_id, values in self.prompt_logprobs.items()},
        )

    def _result(self) -> Sampled:
        return Sampled(
            dict(zip(self.rows, self.token_ids.tolist(), strict=True)),
            {} if self.logprobs is None else _by_sequence(self.logprobs.numpy(), self.rows),
            {seq_id: values.numpy() for seq_id, values in self.prompt_logprobs.items()},
        )


def _by_sequence(logprobs: TokenLogprobs, rows: dict[int, int]) -> dict[int, TokenLogprobs]:
    return {seq_id: logprobs.row(row) for seq_id, row in rows.items()}


def compute_logits(
    model: PreTrainedModel,
    backend: AttentionBackend,
    token_ids: torch.Tensor,  # int64 [1, num_tokens], as positions
    positions: torch.Tensor,
    wanted: torch.Tensor | None = None,  # int64 [n] rows of the token axis; None: all
    is_all_needed: bool = False,  # by later calls, where not by this one
) -> torch.Tensor:
    """-> [n, vocab_size] for the step that the backend has begun."""
    with use_backend(backend), needing(None if is_all_needed else wanted):
        output = model(
            input_ids=token_ids,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=0 if wanted is None else wanted,  # 0 is transformers' word for all
        )
    return output.logits[0]


class ModelRunner:
    """A model and the attention backend that holds its KV cache.

    All tokens of a step lie in one row, [1, num_tokens], with explicit positions; logits are computed for the tokens
    that sample, and for no other. On a GPU nothing here waits for a step; what it has sampled stays there for the next one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        backend: AttentionBackend,
        decode_steps: DecodeSteps | None = None,
        adapter_rows: AdapterRows | None = None,
    ) -> None:
        """`decode_steps`: runs the steps that it takes; None: all steps are run alike. `adapter_rows`: of a model with adapters."""
        self.tiers: TierStore | None = None  # below the KV cache; put in once what they cost is measured
        self._model = model
        self._backend = backend
        self._decode_steps = decode_steps
        self._adapter_rows = adapter_rows
        self._device = model.device
        self._hidden_states = KeptHiddenStates(model)
        self._prompt_logprobs: PromptLogprobs | None = None  # once somebody asks for them
        self._sampled = _Sampled(torch.zeros(0, dtype=torch.int64, device=self._device), {})  # by the step before

    def close(self) -> None:
        """Of what it holds the disk tier is more than memory."""
        if self.tiers is not None:
            self.tiers.close()

    @property
    def backend(self) -> AttentionBackend:
        return self._backend

    def start(self, plan: StepPlan) -> Callable[[], Sampled]:
        try:
            return self._start(plan)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            raise MemoryError(str(error).partition("\n")[0]) from error

    @torch.inference_mode()
    def _start(self, plan: StepPlan) -> Callable[[], Sampled]:
        requests, rows, places, end = {}, [], [], 0
        for step in plan.sequences:
            end += step.query_length
            if step.sample is not None:
                requests |= {step.seq_id: step.sample, **dict(step.forks)}
                places += [len(rows)] * (1 + len(step.forks))
                rows.append(end - 1)
        prompts = _prompt_requests(plan)
        self._move_blocks(plan)
        if prompts or self._prompt_logprobs is not None:
            logits = self._logits_and_prompts(plan, rows or [end - 1], list(prompts.values()))
        else:
            logits = self._logits(plan, rows or [end - 1])
        if not requests:
            return lambda: Sampled({})
        if len(places) > len(rows):  # sequences part, and take their first tokens from the same logits
            logits = logits[upload(places, self._device)]
        scores = _scores(logits, requests)
        token_ids = sample(logits, list(requests.values()))
        self._sampled = _Sampled(
            token_ids,
            {seq_id: row for row, seq_id in enumerate(requests)},
            None if scores is None else token_logprobs(scores, token_ids, _num_top(requests)),
            {seq_id: self._fetch_prompt(request) for seq_id, (_, request) in prompts.items() if request.wanted is not None},
        )
        return self._sampled.fetch()

    def _logits_and_prompts(
        self, plan: StepPlan, rows: list[int], prompts: list[tuple[int, PromptRequest]]
    ) -> torch.Tensor:
        """As `logits`; besides, puts the log-probabilities of prompt tokens into their slots, few of them at a time."""
        kept = self._prompt_logprobs_for(prompts)
        kept.copy(plan.copies)
        places = [start + i for start, request in prompts for i in range(len(request.token_ids))]
        if not places:
            return self._logits(plan, rows)
        self._begin(plan)
        token_ids, positions = self._token_ids(plan), upload(plan.positions, self._device)

        def logits(wanted: torch.Tensor) -> torch.Tensor:
            return compute_logits(self._model, self._backend, token_ids[None], positions[None], wanted, True)

        targets = upload([token for _, request in prompts for token in request.token_ids], self._device)
        slots = upload([slot for _, request in prompts for slot in request.slots], self._device)
        size = max(1, MAX_LOGITS // self._model.get_output_embeddings().weight.shape[0])
        with self._hidden_states.kept():
            for part in zip(upload(places, self._device).split(size), targets.split(size), slots.split(size), strict=True):
                scores = logits(part[0]).float().log_softmax(-1)
                kept.store(part[2], token_logprobs(scores, part[1], kept.num_top))
            return logits(upload(rows, self._device))

    def _prompt_logprobs_for(self, prompts: list[tuple[int, PromptRequest]]) -> PromptLogprobs:
        """Of as many most likely tokens as are asked for: those who ask for more or fewer share no blocks (see Sequence.root)."""
        kept, backend = self._prompt_logprobs, self._backend
        if kept is None or (prompts and kept.num_top != prompts[0][1].num_top):
            kept = PromptLogprobs(backend.num_blocks, backend.block_size, prompts[0][1].num_top, self._device)
            self._prompt_logprobs = kept
        return kept

    def _fetch_prompt(self, request: PromptRequest) -> LogprobTensors:
        return self._prompt_logprobs.fetch(upload(request.wanted, self._device))

    @torch.inference_mode()
    def logits(self, plan: StepPlan, rows: list[int]) -> torch.Tensor:
        """Run the step -> [len(rows), vocab_size] for these of its tokens."""
        self._move_blocks(plan)
        return self._logits(plan, rows)

    def _move_blocks(self, plan: StepPlan) -> None:
        if plan.moves:
            self.tiers.move(plan.moves)
        self._backend.copy(plan.copies)
        if plan.loads:
            self.tiers.load(plan.loads)

    def _logits(self, plan: StepPlan, rows: list[int]) -> torch.Tensor:
        token_ids = self._token_ids(plan)
        if self._decode_steps is not None and self._decode_steps.takes(plan):
            return self._decode_steps.logits(plan, token_ids)
        self._begin(plan)
        positions, wanted = upload(plan.positions, self._device), upload(rows, self._device)
        return compute_logits(self._model, self._backend, token_ids[None], positions[None], wanted)

    def _begin(self, plan: StepPlan) -> None:
        self._backend.begin(plan)
        if self._adapter_rows is not None:
            self._adapter_rows.select([(step.adapter, step.query_length) for step in plan.sequences], self._device)

    def _token_ids(self, plan: StepPlan) -> torch.Tensor:
        """int64 [num_tokens]; pending ones are taken from what the step before has sampled."""
        if not plan.pending:
            return upload(plan.token_ids, self._device)
        token_ids = upload([0 if token is None else token for token in plan.token_ids], self._device)
        places = upload([token.index for token in plan.pending], self._device)
        rows = upload([self._sampled.rows[token.seq_id] for token in plan.pending], self._device)
        return token_ids.index_copy_(0, places, self._sampled.token_ids[rows])


def _prompt_requests(plan: StepPlan) -> dict[int, tuple[int, PromptRequest]]:
    """By seq_id: the first row of the sequence in the step's token axis, and what is wanted of its prompt."""
    found, start = {}, 0
    for step in plan.sequences:
        if step.prompt is not None:
            found[step.seq_id] = start, step.prompt
        start += step.query_length
    return found


def _num_top(requests: dict[int, SampleRequest]) -> int | None:
    """The most that one of them wants."""
    return max((request.num_top for request in requests.values() if request.num_top is not None), default=None)


def _scores(logits: torch.Tensor, requests: dict[int, SampleRequest]) -> torch.Tensor | None:
    """Log-probabilities [n, vocab_size] where one of them wants any; before sampling, which may change logits in place."""
    return None if _num_top(requests) is None else logits.float().log_softmax(-1)


def _is_out_of_memory(error: RuntimeError) -> bool:
    """torch has a class for CUDA's allocator only; CPUs and cuBLAS say it in words."""
    said = ("can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in said)
