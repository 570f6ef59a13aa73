"""Runs a step plan through a transformers model."""

import torch
from transformers import PreTrainedModel

from batchpaged.attention.backend import AttentionBackend, LayerShape
from batchpaged.attention.interface import ShapeProbe, use_backend
from batchpaged.engine.sampler import sample
from batchpaged.engine.step import StepPlan
from batchpaged.errors import ModelError


class ModelRunner:
    """A model and the attention backend that holds its KV cache.

    All tokens of a step lie in one row, [1, num_tokens], with explicit positions; logits are computed for the tokens
    that sample, and for no other.
    """

    def __init__(self, model: PreTrainedModel, backend: AttentionBackend) -> None:
        self._model = model
        self._backend = backend
        self._device = model.device

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> dict[int, int]:
        self._backend.copy(plan.copies)
        self._backend.begin(plan)
        requests, rows, end = [], [], 0
        for step in plan.sequences:
            end += step.query_length
            if step.sample is not None:
                requests.append((step.seq_id, step.sample))
                rows.append(end - 1)
        logits = self._logits(plan, rows or [end - 1])
        tokens = sample(logits, [request for _, request in requests]) if requests else []
        return {seq_id: token for (seq_id, _), token in zip(requests, tokens, strict=True)}

    def _logits(self, plan: StepPlan, rows: list[int]) -> torch.Tensor:
        """-> [len(rows), vocab_size]"""
        with use_backend(self._backend):
            return forward(self._model, plan.token_ids, plan.positions, rows)


def forward(model: PreTrainedModel, token_ids: tuple[int, ...], positions: tuple[int, ...], rows: list[int]):
    """Logits [len(rows), vocab_size] of a flattened step; attention goes to the backend in use."""
    device = model.device
    output = model(
        input_ids=torch.tensor([token_ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        use_cache=False,
        logits_to_keep=torch.tensor(rows, device=device),
    )
    return output.logits[0]


@torch.inference_mode()
def probe_layers(model: PreTrainedModel) -> tuple[LayerShape, ...]:
    """What each attention layer stores per token, seen by running two tokens through the model.

    Raises ModelError if the layers do not each call the attention interface exactly once, in which case the paged
    KV cache could not hold all of the model's state.
    """
    probe = ShapeProbe()
    with use_backend(probe):
        forward(model, (0, 1), (0, 1), [1])
    num_layers = model.config.num_hidden_layers
    if probe.num_calls != num_layers or sorted(probe.shapes) != list(range(num_layers)):
        raise ModelError(
            f"model type '{model.config.model_type}' has {num_layers} layers, but {probe.num_calls} attention calls "
            "reached the attention interface; models with recurrent layers or shared KV caches are not supported"
        )
    return tuple(probe.shapes[i] for i in range(num_layers))
