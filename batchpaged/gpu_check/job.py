"""A whole job of a Llama-like model with random weights: the engine against its floor and against transformers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from batchpaged.attention.interface import NAME, register
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.triton import TritonAttention
from batchpaged.engine.engine import Engine, EngineLimits
from batchpaged.engine.gpu_build import exchange_modules, graph_runner
from batchpaged.engine.release import release_memory
from batchpaged.engine.replay import CudaGraphs, PlainReplay
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.stop import StopCheck
from batchpaged.gpu_check.ceilings import Ceilings
from batchpaged.gpu_check.sizes import JobShape, ModelShape, Sizes
from batchpaged.gpu_check.steps import BLOCK_SIZE
from batchpaged.gpu_check.timing import synchronize

PROFILED_STEPS = 20


@dataclass(frozen=True)
class JobResult:
    num_rows: int
    num_unique_tokens: int
    num_prefilled_tokens: int
    seconds: float
    floor_seconds: float
    cpu_seconds_per_step: float  # of this process's main thread
    idle_share: float | None  # of the device, in decode steps; None where there is no device, or it may not be watched
    peer_rows_per_s: dict[str, float | None]  # transformers on sorted rows; None: it could not do it, see `notes`
    notes: tuple[str, ...]

    @property
    def rows_per_s(self) -> float:
        return self.num_rows / self.seconds


class _NoText:
    """Completions of random weights are not looked at."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return ""


def measure_job(sizes: Sizes, ceilings: Ceilings, device: str) -> JobResult:
    shape, job = sizes.model, sizes.job
    register()
    model = _random_model(shape, job, sizes.dtype, device)
    prompts = job_prompts(job, shape.vocab_size)
    peers, notes = _peers(model, sizes.peers, prompts[: job.num_peer_rows], job, device)
    release_memory()
    if device != "cpu":
        exchange_modules(model)  # after transformers has run the model as it is
    with _attention(model, NAME):
        _run(_engine(model, shape, job, sizes.dtype, device), prompts[: job.num_questions], job, device)  # compiles what is not yet
        engine = _engine(model, shape, job, sizes.dtype, device)
        seconds, cpu_seconds, prefilled = _run(engine, prompts, job, device)
        idle = None if device == "cpu" else _idle_share(_engine(model, shape, job, sizes.dtype, device), prompts, job)
    return JobResult(
        num_rows=len(prompts),
        num_unique_tokens=_num_unique(job),
        num_prefilled_tokens=prefilled,
        seconds=seconds,
        floor_seconds=floor_seconds(shape, job, sizes.dtype, ceilings),
        cpu_seconds_per_step=cpu_seconds / engine.num_steps,
        idle_share=idle,
        peer_rows_per_s=peers,
        notes=notes,
    )


def job_prompts(job: JobShape, vocab_size: int) -> list[list[int]]:
    """Sorted: rows of a document one after another."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(3, vocab_size, (count,), generator=generator).tolist()

    system = tokens(job.system_tokens)
    prompts = []
    for _ in range(job.num_documents):
        prefix = system + tokens(job.document_tokens)
        prompts += [prefix + tokens(job.question_tokens) for _ in range(job.num_questions)]
    return sorted(prompts)


def _num_unique(job: JobShape) -> int:
    return job.system_tokens + job.num_documents * job.document_tokens + job.num_rows * job.question_tokens


def floor_seconds(shape: ModelShape, job: JobShape, dtype: torch.dtype, ceilings: Ceilings) -> float:
    """Unique prompt tokens at the rate of matrix products; then decode steps of as many rows as run at once, each the longer of
    its products and of reading weights and unique keys and values once. Attention's products are counted in both.
    """
    kv_width = shape.num_kv_heads * shape.head_dim
    layer = shape.hidden_size * (2 * shape.hidden_size + 2 * kv_width + 3 * shape.intermediate_size)
    weights, head = shape.num_layers * layer, shape.hidden_size * shape.vocab_size
    per_key = 4 * shape.num_layers * shape.hidden_size  # FLOP of a query and a key that it sees
    prefill = 2 * weights * _num_unique(job) + per_key * (
        job.num_documents * (job.system_tokens + job.document_tokens) ** 2 / 2
        + job.num_rows * job.question_tokens * (job.prompt_tokens - job.question_tokens / 2)
    )
    running = min(job.num_rows, job.max_sequences)
    num_steps = job.completion_tokens * job.num_rows / running
    context = job.prompt_tokens + job.completion_tokens / 2
    step_flops = running * (2 * (weights + head) + per_key * context)
    share = running / job.num_rows
    kept = share * _num_unique(job) + running * job.completion_tokens / 2  # tokens whose keys and values a step reads
    step_bytes = dtype.itemsize * (weights + head + 2 * shape.num_layers * kv_width * kept)
    return prefill / ceilings.flops + num_steps * max(step_flops / ceilings.flops, step_bytes / ceilings.bytes)


def _random_model(shape: ModelShape, job: JobShape, dtype: torch.dtype, device: str) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=job.prompt_tokens + job.completion_tokens,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        dtype=dtype,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _attention(model: LlamaForCausalLM, name: str) -> Iterator[None]:
    """The implementation of attention that the model uses inside the block."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _engine(model: LlamaForCausalLM, shape: ModelShape, job: JobShape, dtype: torch.dtype, device: str) -> Engine:
    tokens = _num_unique(job) + job.num_rows * (job.completion_tokens + BLOCK_SIZE)
    num_blocks = -(-tokens // BLOCK_SIZE) + job.num_documents + 8
    layers = (LayerShape(shape.num_kv_heads, shape.head_dim, shape.head_dim),) * shape.num_layers
    backend = TritonAttention(layers, num_blocks + 1, BLOCK_SIZE, dtype, device)
    make_replay = PlainReplay if device == "cpu" else CudaGraphs()
    runner = graph_runner(model, backend, BLOCK_SIZE, job.max_sequences, make_replay)
    limits = EngineLimits(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_batch_tokens=job.max_batch_tokens,
        max_sequences=job.max_sequences,
        max_model_len=job.prompt_tokens + job.completion_tokens,
        prefix_cache=True,
        steps_ahead=1,
    )
    return Engine(runner, limits, StopCheck(_NoText(), frozenset()), b"gpu check")


def _add(engine: Engine, prompts: list[list[int]], job: JobShape) -> None:
    params = SamplingParams(max_tokens=job.completion_tokens, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.add(prompt, params, str(i), i)


def _run(engine: Engine, prompts: list[list[int]], job: JobShape, device: str) -> tuple[float, float, int]:
    """-> wall seconds, seconds of this thread on the processor, tokens prefilled"""
    _add(engine, prompts, job)
    synchronize(device)
    started, cpu, prefilled = time.perf_counter(), time.thread_time(), 0
    while engine.has_unfinished:
        prefilled += sum(completion.num_prefilled_tokens for completion in engine.step())
    synchronize(device)
    return time.perf_counter() - started, time.thread_time() - cpu, prefilled


def _idle_share(engine: Engine, prompts: list[list[int]], job: JobShape) -> float | None:
    """Of some steps in the middle of the job: time in which no kernel and no copy ran. None: the card may not be watched."""
    _add(engine, prompts, job)
    while engine.has_unfinished and engine.scheduler.waiting:
        engine.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(PROFILED_STEPS):
            engine.step()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type is torch.autograd.DeviceType.CUDA
    )
    return idle_share(spans) if spans else None


def idle_share(spans: list[tuple[float, float]]) -> float:
    """Of the time from the first start to the last end, what no span covers; sorted by start."""
    covered, reached = 0.0, spans[0][0]
    for start, end in spans:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return 1 - covered / (reached - spans[0][0])


def _peers(
    model: LlamaForCausalLM, names: tuple[str, ...], prompts: list[list[int]], job: JobShape, device: str
) -> tuple[dict[str, float | None], tuple[str, ...]]:
    """transformers' own ways through the same rows, all in one call each."""
    generation = GenerationConfig(
        max_new_tokens=job.completion_tokens, min_new_tokens=job.completion_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    rates: dict[str, float | None] = {}
    notes = []
    ways = {
        "generate": lambda: model.generate(torch.tensor(prompts, device=device), generation_config=generation),
        "generate_batch": lambda: model.generate_batch(prompts, generation_config=generation, progress_bar=False),
    }
    for name in names:
        try:
            with torch.inference_mode():
                started = time.perf_counter()
                ways[name]()
                synchronize(device)
            rates[name] = len(prompts) / (time.perf_counter() - started)
        except Exception as error:  # a peer's failure must not cost the other figures
            rates[name] = None
            notes.append(f"{name} failed: {type(error).__name__}")
    return rates, tuple(notes)
