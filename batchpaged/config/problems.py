"""What is wrong in a pipeline, in words: the key, the value given, what is allowed, the nearest valid spelling."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import yaml
from pydantic import ValidationError

from batchpaged.config.schema import all_keys, allowed, choices_of, keys_of, node_at, types_of
from batchpaged.spelling import nearest

Path = tuple[str | int, ...]
ABSENT = object()  # the value of a key that is not there
# all other strings under `prompt` may be prompt text, which no message repeats
_PLAIN_PROMPT_KEYS = ("messages_column", "text_column", "token_ids_column", "chat_template", "reorder", "on_too_long")

_STAGE = re.compile(r"^stages\[\d+\]\.")
_SECRET_KEY = re.compile(r"(^|[._])(token|secret|password|passwd|credentials?|(api|access)?key)$", re.IGNORECASE)
_MISSPELT = 0.8  # how like a key of the model a name is that is meant to be that one, and no secret
_SECRET_VALUE = re.compile(
    r"\b(hf_|sk-|gh[pousr]_|AKIA|ASIA|glpat-|xox[abpr]-)[A-Za-z0-9_-]{6,}"
    r"|://[^/@\s]+@|[?&;](sig|token|secret|password|X-Amz-Signature|access_key|[a-z_]*key)=",
    re.IGNORECASE,
)

# Other programs' names for what a key does; people come with a script for them.
_NOT_OFFERED = {
    "trust_remote_code": "code that comes with a model is never run, and no key allows it; see docs/security.md",
}
_FOREIGN = {
    "attention_backend": "engine.attention",
    "batch_size": "engine.max_sequences",
    "concurrency": "cluster.workers",
    "enable_prefix_caching": "engine.prefix_cache",
    "gpu_memory_utilization": "engine.kv_cache",
    "max_new_tokens": "sampling.max_tokens",
    "max_num_batched_tokens": "engine.max_batch_tokens",
    "max_num_seqs": "engine.max_sequences",
    "model_name": "model.id",
    "num_gpu_blocks_override": "engine.kv_cache",
    "torch_dtype": "model.dtype",
}
_OTHER_WORDS = {"gpu": "cuda", "half": "float16"}


@dataclass(frozen=True)
class Problem:
    key: str  # dotted, items as gates[1]; empty for the whole file
    value: object  # as given; ABSENT if there is none
    message: str  # what is wrong, what is allowed
    meant: str | None = None  # the nearest valid key, if the key itself is wrong

    def text(self) -> str:
        given = "" if self.value is ABSENT else f" = {shown(self.key, self.value)}"
        return f"{self.key}{given}: {self.message}"


def shown(key: str, value: object) -> str:
    """The value for an error message: short, never a secret, never prompt text."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(map(str, value)) + "}"
    text, key = _flow(value), _STAGE.sub("", key)
    if _is_secret(key) or _SECRET_VALUE.search(text):
        return "***"
    if key.startswith("prompt.") and isinstance(value, str) and key[len("prompt."):] not in _PLAIN_PROMPT_KEYS:
        return f"<{len(value)} character{'s' * (len(value) != 1)}>"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_secret(key: str) -> bool:
    """Whether its last word is a secret's. `max_token` is none: it is `max_tokens`, misspelt."""
    names = {*(known.rpartition(".")[2] for known in all_keys()), *_FOREIGN}
    return _SECRET_KEY.search(key) is not None and nearest(key.rpartition(".")[2], names, _MISSPELT) is None


def _flow(value: object) -> str:
    """As YAML would write it, so that `true` and `null` are shown as they were given; one level of a list."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join("..." if isinstance(item, (Mapping, list)) else _flow(item) for item in value) + "]"
    return repr(value)


def dotted(path: Path) -> str:
    parts = (f"[{part}]" if isinstance(part, int) and depth else f".{part}" for depth, part in enumerate(path))
    return "".join(parts).removeprefix(".")


def field_problems(error: ValidationError, data: Mapping) -> list[Problem]:
    """One problem per wrong key, in the order of the keys; a union's options speak with one voice."""
    found: dict[Path, list[dict]] = {}
    for detail in error.errors(include_url=False):
        if detail["loc"]:
            found.setdefault(_path(detail["loc"], data), []).append(detail)
    deepest = [path for path in found if not any(other[: len(path)] == path for other in found if other != path)]
    problems = [_problem(path, found[path], data) for path in deepest]
    meant = {problem.meant for problem in problems}
    return [problem for problem in problems if not (problem.value is ABSENT and problem.key in meant)]


def _path(loc: Path, data: object) -> Path:
    """The keys and indices in `loc`; pydantic puts the names of union options between them."""
    path: list[str | int] = []
    for part in loc:
        if isinstance(data, Mapping):
            path.append(part)
            data = data.get(part)
        elif isinstance(data, (list, tuple)) and isinstance(part, int):
            path.append(part)
            data = data[part]
    return tuple(path)


def value_at(path: Path, data: object) -> object:
    """The value as given; ABSENT where there is none."""
    for part in path:
        if isinstance(data, Mapping):
            data = data.get(part, ABSENT)
        else:
            data = data[part] if isinstance(data, (list, tuple)) else ABSENT
    return data


def _problem(path: Path, details: list[dict], data: Mapping) -> Problem:
    key, value = dotted(path), value_at(path, data)
    node = node_at(path)
    if node is None:
        return unknown_key(path, value)
    own_words = [str(detail["ctx"]["error"]) for detail in details if detail["type"] == "value_error"]
    if len(own_words) == len(details):  # a union's options each say a part; what is allowed as a whole says it better
        return Problem(key, value, own_words[0])
    if value is ABSENT:
        return Problem(key, ABSENT, f"is missing; it must be {allowed(node)}")
    return Problem(key, value, f"must be {allowed(node)}{_hint(key, value, node)}")


def unknown_key(path: Path, value: object) -> Problem:
    siblings = keys_of(path[:-1])
    meant = _meant(path, siblings)
    advice = _NOT_OFFERED.get(path[-1]) or (f"did you mean {meant}?" if meant else "valid here: " + ", ".join(siblings))
    return Problem(dotted(path), value, f"unknown key; {advice}", meant)


def _meant(path: Path, siblings: Iterable[str]) -> str | None:
    """The key most likely meant: its beginning, in another section, by another program's name, or misspelt."""
    parent, name = path[:-1], str(path[-1])
    begun = next((sibling for sibling in siblings if sibling.startswith(name)), None)
    if begun:
        return dotted((*parent, begun))
    elsewhere = [key for key in all_keys() if key.rpartition(".")[2] == name]
    if len(elsewhere) == 1:
        return elsewhere[0]
    sibling = nearest(name, siblings)
    return _FOREIGN.get(name) or (dotted((*parent, sibling)) if sibling else nearest(name, all_keys(), cutoff=0.7))


def _hint(key: str, value: object, node: dict) -> str:
    """The way out, where the value shows what was meant."""
    types = types_of(node)
    if "string" in types and isinstance(value, (bool, int, float)) and "integer" not in types:
        return f"; write it in quotes: '{_flow(value)}'"
    if not isinstance(value, str):
        return ""
    if len(node.get("required", ())) == 1:
        return f"; did you mean {key}.{node['required'][0]}?"
    if "string" not in types and isinstance(_scalar(value), (bool, int, float)):
        return "; write it without quotes"
    meant = _OTHER_WORDS.get(value.casefold()) or nearest(value, choices_of(node))
    return f"; did you mean {meant}?" if meant in choices_of(node) else ""


def _scalar(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None
