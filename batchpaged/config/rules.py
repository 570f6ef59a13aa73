"""Rules that tie several keys together. Each is checked once all of its keys are right by themselves."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from batchpaged.config.adapters import pairs_of

CONSTRAINTS = tuple(f"sampling.structured.{name}" for name in ("json_schema", "regex", "choices", "column"))
SOURCES = ("prompt.user", "prompt.messages_column", "prompt.text_column", "prompt.token_ids_column")


@dataclass(frozen=True)
class Rule:
    keys: tuple[str, ...]  # dotted
    broken: Callable[..., str | None]  # takes the keys' values in order, gives what is wrong, None if all is well
    about: str | None = None  # the key that the message is about, if not the first


def broken_rules(value: Callable[[str], object], wrong: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """(key, message) of each broken rule; a rule that needs a key of `wrong` cannot be judged and is passed over."""
    stages = value("stages") or ()
    if not isinstance(stages, (list, tuple)) or not stages:
        is_given = value("prompt") is not None or any(_spoils(bad, "prompt") for bad in wrong)
        if not is_given:
            yield "prompt", _NO_PROMPT
        yield from _broken(RULES if is_given else RULES[1:], value, wrong, str)
        return
    yield from _broken([*RULES_OF_STAGES, *(rule for rule in RULES if not _is_of_a_stage(rule))], value, wrong, str)
    own = [rule for rule in RULES if _is_of_a_stage(rule)]
    for i in range(len(stages)):
        has_sampling = value(f"stages[{i}].sampling") is not None
        yield from _broken(own, value, wrong, partial(_in_stage, i, has_sampling))


def _broken(
    rules: Iterable["Rule"], value: Callable[[str], object], wrong: Iterable[str], place: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """`place`: where a rule's key stands in this file."""
    for rule in rules:
        keys = [place(key) for key in rule.keys]
        if any(_spoils(bad, key) for bad in wrong for key in keys):
            continue
        message = rule.broken(*map(value, keys))
        if message is not None:
            yield place(rule.about or rule.keys[0]), message


def parts_of(key: str) -> tuple[str | int, ...]:
    """`stages[0].prompt.user` -> ("stages", 0, "prompt", "user")"""
    return tuple(int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", key))


def _is_of_a_stage(rule: "Rule") -> bool:
    return any(key.partition(".")[0] in _STAGE_SECTIONS for key in rule.keys)


def _in_stage(index: int, has_sampling: bool, key: str) -> str:
    section = key.partition(".")[0]
    is_own = section in _STAGE_SECTIONS and (section != "sampling" or has_sampling)
    return f"stages[{index}].{key}" if is_own else key


def _spoils(bad: str, key: str) -> bool:
    """A wrong section spoils its keys, a wrong item its list."""
    return key == bad or key.startswith(f"{bad}.") or bad.startswith((f"{key}[", f"{key}."))


def _one_source(*columns: str | None) -> str | None:
    given = [key for key, column in zip(SOURCES, columns) if column is not None]
    if len(given) == 1:
        return None
    names = ", ".join(key.removeprefix("prompt.") for key in SOURCES)
    found = " and ".join(key.removeprefix("prompt.") for key in given) if given else "none"
    return f"needs exactly one of {names}; found {found}"


def _system_with_user(system: str | None, *columns: str | None) -> str | None:
    column = next((key for key, value in zip(SOURCES[1:], columns) if value is not None), None)
    if system is None or column is None:
        return None
    return f"goes with prompt.user only; with {column} the system message belongs into the column itself"


def _reorder_with_user(reorder: str | None, user: str | None) -> str | None:
    if reorder is None or user is not None:
        return None
    return "goes with prompt.user only: in the other sources the documents are part of a text already; leave it out"


def _template_applies(chat_template: str, *columns: str | None) -> str | None:
    messages_column, *plain_columns = (key if column is not None else None for key, column in zip(SOURCES[1:], columns))
    if messages_column and chat_template == "none":
        return f"cannot be with {messages_column}: without a chat template, messages are no prompt; leave it out"
    plain_column = next(filter(None, plain_columns), None)
    if plain_column and chat_template not in ("auto", "none"):
        return f"has no meaning with {plain_column}, which is used as it is; leave it out"
    return None


def _room_for_the_prompt(max_tokens: int, max_model_len: int) -> str | None:
    if max_tokens < max_model_len:
        return None
    return f"must be less than model.max_model_len = {max_model_len}, or no prompt fits"


def _budget_of_a_block(max_batch_tokens: int, block_size: int) -> str | None:
    if max_batch_tokens >= block_size:
        return None
    return f"must be at least engine.block_size = {block_size}, or no step fills a block"


def _one_constraint(structured: object, *values: object) -> str | None:
    if structured is None:
        return None
    names = [key.rpartition(".")[2] for key in CONSTRAINTS]
    given = [name for name, value in zip(names, values) if value is not None]
    if len(given) == 1:
        return None
    return f"needs exactly one of {', '.join(names)}; found {' and '.join(given) if given else 'none'}"


def _end_of_structure(ignore_eos: bool, structured: object) -> str | None:
    if not ignore_eos or structured is None:
        return None
    return "cannot be with sampling.structured: a completion ends where its structure does; leave one of them out"


def _known_adapter(adapter: str | None, adapters: object) -> str | None:
    names = [name for name, _ in pairs_of(adapters)]
    if adapter is None or adapter in names:
        return None
    return f"is no name in model.adapters, which has {', '.join(names) or 'none'}"


def _used_adapters(adapters: object, adapter: str | None, column: str | None) -> str | None:
    if adapter is not None and column is not None:
        return "are for all rows by model.adapter, or for each by model.adapter_column; leave one of them out"
    if pairs_of(adapters) and adapter is None and column is None:
        return "are used by no row; give model.adapter or model.adapter_column"
    return None


def _adapters_of_the_column(column: str | None, adapters: object) -> str | None:
    return "needs model.adapters, the names that it may hold" if column is not None and not pairs_of(adapters) else None


def _no_adapters(batch_invariant: bool, adapters: object) -> str | None:
    if not batch_invariant or not pairs_of(adapters):
        return None
    return "cannot be with model.adapters, whose products depend on the batch; set it to false"


def _columns_of_metrics(
    evaluate: object, metrics: object, references: object, contexts: object, gold: object, judge: object
) -> str | None:
    """Metrics as the file gives them: a name, or a list of names."""
    if evaluate is None:
        return None
    names = (metrics,) if isinstance(metrics, str) else metrics or ()
    of_contexts = [name for name in names if _AT_K.fullmatch(str(name))]
    of_answers = [name for name in names if name not in of_contexts and ":" not in str(name)]
    is_verdict = judge is not None and tuple(names) == _USUAL_METRICS
    if of_answers and references is None and not is_verdict:
        return f"{of_answers[0]} needs evaluate.references, the column of reference answers"
    if of_contexts and (contexts is None or gold is None):
        missing = "evaluate.contexts" if contexts is None else "evaluate.gold_contexts"
        return f"{of_contexts[0]} needs evaluate.contexts and evaluate.gold_contexts; {missing} is missing"
    return None


def _best_of_samples(best_of: int | None, n: int, temperature: float, beam_width: int | None) -> str | None:
    if best_of is None:
        return None
    if best_of < n:
        return f"must be at least sampling.n = {n}, the completions that are kept"
    if beam_width is not None:
        return "cannot be with sampling.beam_width, which has its own choice of the best; leave one of them out"
    if temperature == 0:
        return "needs sampling.temperature above 0: without it all completions of a row are equal"
    return None


def _beams_alone(beam_width: int | None, n: int, temperature: float, penalty: float, structured: object) -> str | None:
    if beam_width is None:
        return None
    if beam_width < n:
        return f"must be at least sampling.n = {n}, the beams that are kept"
    if temperature > 0:
        return "needs sampling.temperature 0: a beam search takes the most likely tokens; leave one of them out"
    if penalty != 1:
        return "cannot be with sampling.repetition_penalty; leave one of them out"
    if structured is not None:
        return "cannot be with sampling.structured; leave one of them out"
    return None


def _goes_with_beams(value: object, default: object, beam_width: int | None) -> str | None:
    return "goes with sampling.beam_width only; leave it out" if beam_width is None and value != default else None


def _room_for_the_group(max_sequences: int, n: int, best_of: int | None, beam_width: int | None) -> str | None:
    num_sequences = max(n, best_of or 1, beam_width or 1)
    if num_sequences <= max_sequences:
        return None
    return f"must be at least {num_sequences}, the sequences of one row by sampling, which run together"


def _host_cache_needs(host_cache: object, prefix_cache: bool) -> str | None:
    if host_cache is None or prefix_cache:
        return None
    return "holds blocks of the prefix cache, and engine.prefix_cache is false; leave one of them out"


def _disk_cache_needs(disk_cache: object, host_cache: object) -> str | None:
    if disk_cache is None or host_cache is not None:
        return None
    return "takes what engine.host_cache has no room for; give engine.host_cache too"


def _path_needs(path: str | None, disk_cache: object) -> str | None:
    return "is the folder of engine.disk_cache, which is missing" if path is not None and disk_cache is None else None


_AT_K = re.compile(r"mrr|(recall|precision)_at_[0-9]+")
_USUAL_METRICS = ("exact_match", "f1")
_EVALUATE = tuple(
    f"evaluate{key}" for key in ("", ".metrics", ".references", ".contexts", ".gold_contexts", ".judge")
)
def _once(prompt: object, stages: object) -> str | None:
    return None if prompt is None else "is each stage's own where there are stages; leave it out here"


def _names_of_stages(stages: object) -> str | None:
    names = [stage.get("name") if isinstance(stage, Mapping) else stage.name for stage in stages]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return f"has two stages of the name {twice!r}"
    taken = next((name for name in names if name in _OUTPUT_NAMES), None)
    return f"has a stage of the name {taken!r}, which is a column of the output; give it another" if taken else None


_NO_PROMPT = f"is missing; it must be a mapping with keys system, {', '.join(k.partition('.')[2] for k in SOURCES)}; or give stages"
_STAGE_SECTIONS = ("prompt", "sampling", "evaluate")
_OUTPUT_NAMES = (
    "completion", "finish_reason", "prompt_tokens", "cached_tokens", "completion_tokens", "status", "error", "prompt_hash",
    "completion_score", "completion_logprobs", "prompt_logprobs",
)  # fmt: skip
RULES_OF_STAGES = (
    Rule(("prompt", "stages"), _once),
    Rule(("evaluate", "stages"), _once),
    Rule(("stages",), _names_of_stages),
)
RULES = (
    Rule(SOURCES, _one_source, about="prompt"),
    Rule(("prompt.system", *SOURCES[1:]), _system_with_user),
    Rule(("prompt.reorder", "prompt.user"), _reorder_with_user),
    Rule(("prompt.chat_template", *SOURCES[1:]), _template_applies),
    Rule(_EVALUATE, _columns_of_metrics, about="evaluate.metrics"),
    Rule(("sampling.max_tokens", "model.max_model_len"), _room_for_the_prompt),
    Rule(("model.adapter", "model.adapters"), _known_adapter),
    Rule(("model.adapters", "model.adapter", "model.adapter_column"), _used_adapters),
    Rule(("model.adapter_column", "model.adapters"), _adapters_of_the_column),
    Rule(("engine.batch_invariant", "model.adapters"), _no_adapters),
    Rule(("sampling.structured", *CONSTRAINTS), _one_constraint),
    Rule(("sampling.ignore_eos", "sampling.structured"), _end_of_structure),
    Rule(("engine.max_batch_tokens", "engine.block_size"), _budget_of_a_block),
    Rule(("engine.host_cache", "engine.prefix_cache"), _host_cache_needs),
    Rule(("engine.disk_cache", "engine.host_cache"), _disk_cache_needs),
    Rule(("engine.disk_cache_path", "engine.disk_cache"), _path_needs),
    Rule(("sampling.best_of", "sampling.n", "sampling.temperature", "sampling.beam_width"), _best_of_samples),
    Rule(
        (
            "sampling.beam_width",
            "sampling.n",
            "sampling.temperature",
            "sampling.repetition_penalty",
            "sampling.structured",
        ),
        _beams_alone,
    ),
    Rule(("sampling.length_penalty", "sampling.beam_width"), lambda value, width: _goes_with_beams(value, 1.0, width)),
    Rule(("sampling.early_stopping", "sampling.beam_width"), lambda value, width: _goes_with_beams(value, False, width)),
    Rule(("engine.max_sequences", "sampling.n", "sampling.best_of", "sampling.beam_width"), _room_for_the_group),
)
