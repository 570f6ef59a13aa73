"""Decode steps of a few sizes on static buffers, so that each can be replayed instead of started operation by operation."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch

from batchpaged.attention.backend import StaticBackend
from batchpaged.attention.upload import upload
from batchpaged.engine.buckets import bucket_of, decode_buckets, padded
from batchpaged.engine.replay import Replay
from batchpaged.engine.step import StepPlan

MakeReplay = Callable[[Callable[[], torch.Tensor]], Replay]
Model = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # token ids, positions [1, n] -> logits [n, vocab_size]
MAX_REPLAYS = 128  # each holds a megabyte or two of launches; the one that was used longest ago goes first


class DecodeSteps:
    """The steps in which each sequence computes one token.

    They are padded to a bucket's number of sequences. `backend` must own one block more than the pool, `scratch_block`: the
    padding writes there, and nobody reads it.
    """

    def __init__(
        self,
        model: Model,
        backend: StaticBackend,
        scratch_block: int,
        block_size: int,
        max_sequences: int,
        device: torch.device | str,
        make_replay: MakeReplay,
    ) -> None:
        self._model = model
        self._backend = backend
        self._scratch_block = scratch_block
        self._block_size = block_size
        self._buckets = decode_buckets(max_sequences)
        self._token_ids = torch.zeros((1, max_sequences), dtype=torch.int64, device=device)
        self._positions = torch.zeros((1, max_sequences), dtype=torch.int64, device=device)
        self._make_replay = make_replay
        self._replays: OrderedDict[Hashable, Replay] = OrderedDict()

    def takes(self, plan: StepPlan) -> bool:
        """Whether each sequence computes one token, and samples."""
        is_decode = plan.num_tokens == len(plan.sequences) and all(step.sample is not None for step in plan.sequences)
        return is_decode and len(plan.sequences) <= self._buckets[-1]

    def logits(self, plan: StepPlan, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [n] of the plan, on the device -> [n, vocab_size], which counts until the next step is run."""
        size = bucket_of(len(plan.sequences), self._buckets)
        step = padded(plan, size, self._scratch_block, self._block_size)
        self._token_ids[0, : len(token_ids)].copy_(token_ids)
        self._positions[0, :size].copy_(upload(step.positions, self._positions.device), non_blocking=True)
        return self._replay(size, self._backend.begin_static(step))()[: len(token_ids)]

    def _replay(self, size: int, shape: Hashable) -> Replay:
        """The bucket's token ids and positions are the leading part of all buckets' buffers."""
        if (size, shape) not in self._replays:
            token_ids, positions = self._token_ids[:, :size], self._positions[:, :size]
            self._replays[size, shape] = self._make_replay(lambda: self._model(token_ids, positions))
            if len(self._replays) > MAX_REPLAYS:
                self._replays.popitem(last=False)
        self._replays.move_to_end((size, shape))
        return self._replays[size, shape]
