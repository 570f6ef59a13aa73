"""Runs a step plan through a transformers model."""

import torch
from transformers import PreTrainedModel

from batchpaged.attention.backend import AttentionBackend
from batchpaged.attention.interface import use_backend
from batchpaged.engine.sampler import sample
from batchpaged.engine.step import StepPlan
from batchpaged.models.needed_rows import needing


class ModelRunner:
    """A model and the attention backend that holds its KV cache.

    All tokens of a step lie in one row, [1, num_tokens], with explicit positions; logits are computed for the tokens
    that sample, and for no other.
    """

    def __init__(self, model: PreTrainedModel, backend: AttentionBackend) -> None:
        self._model = model
        self._backend = backend
        self._device = model.device

    def execute(self, plan: StepPlan) -> dict[int, int]:
        try:
            return self._execute(plan)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            raise MemoryError(str(error).partition("\n")[0]) from error

    @torch.inference_mode()
    def _execute(self, plan: StepPlan) -> dict[int, int]:
        requests, rows, end = [], [], 0
        for step in plan.sequences:
            end += step.query_length
            if step.sample is not None:
                requests.append((step.seq_id, step.sample))
                rows.append(end - 1)
        logits = self.logits(plan, rows or [end - 1])
        tokens = sample(logits, [request for _, request in requests]) if requests else []
        return {seq_id: token for (seq_id, _), token in zip(requests, tokens, strict=True)}

    @torch.inference_mode()
    def logits(self, plan: StepPlan, rows: list[int]) -> torch.Tensor:
        """Run the step -> [len(rows), vocab_size] for these of its tokens."""
        self._backend.copy(plan.copies)
        self._backend.begin(plan)
        wanted = torch.tensor(rows, device=self._device)
        with use_backend(self._backend), needing(wanted):
            output = self._model(
                input_ids=torch.tensor([plan.token_ids], device=self._device),
                position_ids=torch.tensor([plan.positions], device=self._device),
                use_cache=False,
                logits_to_keep=wanted,
            )
        return output.logits[0]


def _is_out_of_memory(error: RuntimeError) -> bool:
    """torch has a class for CUDA's allocator only; CPUs and cuBLAS say it in words."""
    said = ("can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in said)
