"""Rules that tie several keys together. Each is checked once all of its keys are right by themselves."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

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
    for rule in RULES:
        if any(_spoils(bad, key) for bad in wrong for key in rule.keys):
            continue
        message = rule.broken(*map(value, rule.keys))
        if message is not None:
            yield rule.about or rule.keys[0], message


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


def _columns_of_metrics(evaluate: object, metrics: object, references: object, contexts: object, gold: object) -> str | None:
    """Metrics as the file gives them: a name, or a list of names."""
    if evaluate is None:
        return None
    names = (metrics,) if isinstance(metrics, str) else metrics or ()
    of_contexts = [name for name in names if _AT_K.fullmatch(str(name))]
    of_answers = [name for name in names if name not in of_contexts and ":" not in str(name)]
    if of_answers and references is None:
        return f"{of_answers[0]} needs evaluate.references, the column of reference answers"
    if of_contexts and (contexts is None or gold is None):
        missing = "evaluate.contexts" if contexts is None else "evaluate.gold_contexts"
        return f"{of_contexts[0]} needs evaluate.contexts and evaluate.gold_contexts; {missing} is missing"
    return None


_AT_K = re.compile(r"mrr|(recall|precision)_at_[0-9]+")
_EVALUATE = ("evaluate", "evaluate.metrics", "evaluate.references", "evaluate.contexts", "evaluate.gold_contexts")
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
)
