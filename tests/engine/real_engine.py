"""The real engine around a small random model, and what it must generate."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from tiny_models import MAX_POSITIONS, VOCAB_SIZE, tiny_model, tiny_tokenizer
from transformers import PreTrainedModel

from batchpaged.attention.backend import AttentionBackend
from batchpaged.attention.cpu import CpuAttention
from batchpaged.attention.interface import NAME, register
from batchpaged.attention.reference import TorchAttention
from batchpaged.engine.engine import Completion, Engine, EngineLimits, run_to_end
from batchpaged.engine.grammar import Grammars, make_tokenizer
from batchpaged.engine.model_runner import ModelRunner
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.stop import StopCheck
from batchpaged.models.adapters import Adapter
from batchpaged.models.layers import attention_layers
from batchpaged.models.lora import install_adapters
from batchpaged.tiers.costs import TierCosts
from batchpaged.tiers.disk import DiskSlots
from batchpaged.tiers.frames import HostFrames
from batchpaged.tiers.store import TierStore

# Where the two best logits are nearer than this, rounding decides, and generate's choice is as good as the engine's.
TIE = 1e-4


@dataclass(frozen=True)
class Limits:
    """An engine's limits, small enough that prompts are cut into chunks and join at different times."""

    num_blocks: int = 400
    block_size: int = 8
    max_batch_tokens: int = 24
    max_sequences: int = 16
    prefix_cache: bool = True
    steps_ahead: int = 0
    num_frames: int = 0
    num_disk_slots: int = 0

    def engine_limits(self) -> EngineLimits:
        return EngineLimits(**asdict(self), max_model_len=MAX_POSITIONS)


def tiny_grammars() -> Grammars:
    return Grammars(lambda: make_tokenizer(tiny_tokenizer(), VOCAB_SIZE, frozenset()), 2)


def build_engine(
    model: PreTrainedModel,
    limits: Limits,
    eos: frozenset[int] = frozenset(),
    adapters: Sequence[Adapter] = (),
    exchange: Callable[[PreTrainedModel], object] = lambda model: None,
) -> Engine:
    """As batchpaged.engine.build does from a configuration; the model's attention goes to the engine from here on."""
    register()
    model.config._attn_implementation = NAME
    adapter_rows = install_adapters(model, adapters) if adapters else None
    layers = tuple(layer.shape for layer in attention_layers(model))
    if model.dtype is torch.float32:
        backend = CpuAttention(layers, limits.num_blocks, limits.block_size)
    else:
        backend = TorchAttention(layers, limits.num_blocks, limits.block_size, model.dtype)
    exchange(model)
    stop_check = StopCheck(tiny_tokenizer(), eos)
    runner = ModelRunner(model, backend, adapter_rows=adapter_rows)
    costs = TierCosts(token=1.0, save=0.0, load=0.0, read=0.0) if limits.num_frames else None
    if costs is not None:
        runner.tiers = tier_store(backend, limits.num_frames, limits.num_disk_slots, costs)
    return Engine(runner, limits.engine_limits(), stop_check, b"tests", tiny_grammars(), costs)


def tier_store(backend: AttentionBackend, num_frames: int, num_disk_slots: int, costs: TierCosts) -> TierStore:
    frames = HostFrames(backend.parts(), num_frames)
    folder = Path(tempfile.gettempdir())
    disk = DiskSlots(folder, num_disk_slots, frames.block_bytes) if num_disk_slots else None
    return TierStore(frames, disk, costs)


def completions(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    grammars: Sequence[str | None] | None = None,
    adapters: Sequence[str | None] | None = None,
) -> list[Completion]:
    """In the prompts' order; a prompt's row key is its index. `grammars`, `adapters`: one for each prompt."""
    by_tag: dict[int, Completion] = {}
    for index, prompt in enumerate(prompts):
        settings = (values[index] if values else None for values in (grammars, adapters))
        engine.add(list(prompt), params, str(index), index, *settings)
    run_to_end(engine, lambda completion: by_tag.update({completion.tag: completion}))
    return [by_tag[index] for index in range(len(prompts))]


@dataclass
class Reference:
    """Greedy tokens of transformers' own generate, one row at a time, each with its lead over the second best."""

    name: str
    prompts: list[list[int]]
    num_tokens: int
    repetition_penalty: float = 1.0
    tokens: list[list[int]] = field(default_factory=list)
    leads: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = tiny_model(self.name)
        for prompt in self.prompts:
            tokens, leads = self._generate(model, prompt)
            self.tokens.append(tokens)
            self.leads.append(leads)

    def check(self, generated: Sequence[Sequence[int]]) -> None:
        """Equal, up to the first place where two tokens tie."""
        for tokens, leads, ours in zip(self.tokens, self.leads, generated, strict=True):
            end = next((i for i, lead in enumerate(leads) if lead < TIE), len(leads))
            assert len(ours) == len(tokens)
            assert list(ours[:end]) == tokens[:end]

    @property
    def num_decided(self) -> int:
        """Tokens that `check` compares."""
        return sum(next((i for i, lead in enumerate(leads) if lead < TIE), len(leads)) for leads in self.leads)

    def _generate(self, model: PreTrainedModel, prompt: list[int]) -> tuple[list[int], list[float]]:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self.num_tokens,
            do_sample=False,
            repetition_penalty=self.repetition_penalty,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        best = torch.stack(out.scores)[:, 0].topk(2).values
        return out.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()
