"""Runs a step plan through a transformers model."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from batchpaged.attention.backend import AttentionBackend
from batchpaged.attention.interface import use_backend
from batchpaged.attention.upload import upload
from batchpaged.engine.decode_steps import DecodeSteps
from batchpaged.engine.sampler import sample
from batchpaged.engine.step import StepPlan
from batchpaged.models.lora import AdapterRows
from batchpaged.models.needed_rows import needing


@dataclass(frozen=True)
class _Sampled:
    """What a step has sampled, where it was sampled."""

    token_ids: torch.Tensor  # int64 [number of rows]
    rows: dict[int, int]  # by seq_id

    def fetch(self) -> Callable[[], dict[int, int]]:
        """Start bringing the ids to the host; what is returned waits until they are there."""
        if self.token_ids.device.type == "cpu":
            return lambda: dict(zip(self.rows, self.token_ids.tolist(), strict=True))
        on_host = torch.empty(self.token_ids.shape, dtype=torch.int64, pin_memory=True)
        on_host.copy_(self.token_ids, non_blocking=True)
        is_there = torch.cuda.Event()
        is_there.record()

        def wait() -> dict[int, int]:
            is_there.synchronize()
            return dict(zip(self.rows, on_host.tolist(), strict=True))

        return wait


def compute_logits(
    model: PreTrainedModel,
    backend: AttentionBackend,
    token_ids: torch.Tensor,  # int64 [1, num_tokens], as positions
    positions: torch.Tensor,
    wanted: torch.Tensor | None = None,  # int64 [n] rows of the token axis; None: all
) -> torch.Tensor:
    """-> [n, vocab_size] for the step that the backend has begun."""
    with use_backend(backend), needing(wanted):
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
        self._model = model
        self._backend = backend
        self._decode_steps = decode_steps
        self._adapter_rows = adapter_rows
        self._device = model.device
        self._sampled = _Sampled(torch.zeros(0, dtype=torch.int64, device=self._device), {})  # by the step before

    def start(self, plan: StepPlan) -> Callable[[], dict[int, int]]:
        try:
            return self._start(plan)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            raise MemoryError(str(error).partition("\n")[0]) from error

    @torch.inference_mode()
    def _start(self, plan: StepPlan) -> Callable[[], dict[int, int]]:
        requests, rows, end = {}, [], 0
        for step in plan.sequences:
            end += step.query_length
            if step.sample is not None:
                requests[step.seq_id] = step.sample
                rows.append(end - 1)
        logits = self.logits(plan, rows or [end - 1])
        if not requests:
            return dict
        token_ids = sample(logits, list(requests.values()))
        self._sampled = _Sampled(token_ids, {seq_id: row for row, seq_id in enumerate(requests)})
        return self._sampled.fetch()

    @torch.inference_mode()
    def logits(self, plan: StepPlan, rows: list[int]) -> torch.Tensor:
        """Run the step -> [len(rows), vocab_size] for these of its tokens."""
        self._backend.copy(plan.copies)
        token_ids = self._token_ids(plan)
        if self._decode_steps is not None and self._decode_steps.takes(plan):
            return self._decode_steps.logits(plan, token_ids)
        self._backend.begin(plan)
        if self._adapter_rows is not None:
            self._adapter_rows.select([(step.adapter, step.query_length) for step in plan.sequences], self._device)
        positions, wanted = upload(plan.positions, self._device), upload(rows, self._device)
        return compute_logits(self._model, self._backend, token_ids[None], positions[None], wanted)

    def _token_ids(self, plan: StepPlan) -> torch.Tensor:
        """int64 [num_tokens]; pending ones are taken from what the step before has sampled."""
        if not plan.pending:
            return upload(plan.token_ids, self._device)
        token_ids = upload([0 if token is None else token for token in plan.token_ids], self._device)
        places = upload([token.index for token in plan.pending], self._device)
        rows = upload([self._sampled.rows[token.seq_id] for token in plan.pending], self._device)
        return token_ids.index_copy_(0, places, self._sampled.token_ids[rows])

def _is_out_of_memory(error: RuntimeError) -> bool:
    """torch has a class for CUDA's allocator only; CPUs and cuBLAS say it in words."""
    said = ("can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in said)
