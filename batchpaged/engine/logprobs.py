"""Log-probabilities of tokens from logits, and those of prompt tokens beside the blocks of the KV cache."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from batchpaged.engine.step import BlockCopy, TokenLogprobs

# Logits that are in memory at once while prompt tokens are judged: 64 MiB in float32, and a few times that in passing.
MAX_LOGITS = 1 << 24


@dataclass(frozen=True)
class LogprobTensors:
    """As TokenLogprobs, where the model runs."""

    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "LogprobTensors":
        return LogprobTensors(*map(change, (self.logprobs, self.ranks, self.top_ids, self.top_logprobs)))

    def numpy(self) -> TokenLogprobs:
        """Of tensors on the host."""
        return TokenLogprobs(*(x.numpy() for x in (self.logprobs, self.ranks, self.top_ids, self.top_logprobs)))


def token_logprobs(scores: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobTensors:
    """scores: log-probabilities [n, vocab_size]; token_ids int64 [n]."""
    chosen = scores.gather(-1, token_ids[:, None])
    ranks = (scores > chosen).sum(-1, dtype=torch.int32) + 1
    top = scores.topk(min(num_top, scores.shape[-1]), dim=-1)
    return LogprobTensors(chosen[:, 0], ranks, top.indices.int(), top.values)


class PromptLogprobs:
    """For each slot of the KV cache the log-probabilities of the token whose keys and values lie there, given all before it.

    They are copied with the slots, and good for as long as these are: a prefix that comes from the cache brings its own.
    """

    def __init__(self, num_blocks: int, block_size: int, num_top: int, device: torch.device) -> None:
        shape = (num_blocks, block_size)
        self.num_top = num_top
        self._columns = (
            torch.zeros(shape, device=device),
            torch.zeros(shape, dtype=torch.int32, device=device),
            torch.zeros((*shape, num_top), dtype=torch.int32, device=device),
            torch.zeros((*shape, num_top), device=device),
        )

    def copy(self, copies: tuple[BlockCopy, ...]) -> None:
        """As the backend copies keys and values: all sources are read before any target is written."""
        read = [[column[copy.source, : copy.num_slots].clone() for column in self._columns] for copy in copies]
        for copy, values in zip(copies, read, strict=True):
            for column, value in zip(self._columns, values, strict=True):
                column[copy.target, : copy.num_slots] = value

    def store(self, slots: torch.Tensor, values: LogprobTensors) -> None:
        """slots int64 [n]"""
        new = (values.logprobs, values.ranks, values.top_ids, values.top_logprobs)
        for column, value in zip(self._columns, new, strict=True):
            column.flatten(0, 1).index_copy_(0, slots, value)

    def fetch(self, slots: torch.Tensor) -> LogprobTensors:
        return LogprobTensors(*(column.flatten(0, 1)[slots] for column in self._columns))


class KeptHiddenStates:
    """Lets a model's own head be asked about one step several times, a few tokens at a time: its layers run once."""

    def __init__(self, model: PreTrainedModel) -> None:
        body = model.base_model
        self._body: nn.Module = getattr(body, "decoder", body)  # OPT's and BioGPT's kind has one more module around it

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside the block the layers run at the first call; every later one gets what they gave then."""
        run, kept = self._body.forward, []

        def forward(*args: object, **kwargs: object) -> object:
            if not kept:
                kept.append(run(*args, **kwargs))
            return kept[0]

        self._body.forward = forward
        try:
            yield
        finally:
            del self._body.forward
