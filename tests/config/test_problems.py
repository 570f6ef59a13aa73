"""Unknown keys, rules between keys, several problems at once, and what is never repeated."""

import pytest

from batchpaged.config import parse_pipeline
from batchpaged.errors import ConfigError

UNKNOWN = [
    ("engine.blok_size", "did you mean engine.block_size?"),
    ("engine.Block_Size", "did you mean engine.block_size?"),
    ("engin", "did you mean engine?"),
    ("engine.max_tokens", "did you mean sampling.max_tokens?"),
    ("temperature", "did you mean sampling.temperature?"),
    ("engine.gpu_memory_utilization", "did you mean engine.kv_cache?"),
    ("engine.max_num_seqs", "did you mean engine.max_sequences?"),
    ("sampling.max_new_tokens", "did you mean sampling.max_tokens?"),
    ("model.enable_prefix_caching", "did you mean engine.prefix_cache?"),
    ("model.trust_remote_code", "code that comes with a model is never run, and no key allows it; see docs/security.md"),
    ("input.id", "did you mean input.id_column?"),
    ("model.zzz", "valid here: id, revision, dtype, max_model_len, adapters, adapter, adapter_column"),
    ("zzz", "valid here: name, input, prompt, stages, model, engine, sampling, evaluate, gates, previous, max_failed_rows, cluster, output"),
]


@pytest.mark.parametrize(("key", "advice"), UNKNOWN)
def test_an_unknown_key_is_refused_with_the_nearest_valid_one(complaint, key, advice):
    assert complaint(key, 5) == f"rag.yaml: {key} = 5: unknown key; {advice}"


def test_keys_that_are_no_strings_are_unknown(smallest):
    smallest[1] = 2
    with pytest.raises(ConfigError, match="1 = 2: unknown key; valid here: name"):
        parse_pipeline(smallest)


@pytest.mark.parametrize("section", ["input", "prompt", "model", "output"])
def test_a_missing_section_is_named_with_its_keys(smallest, section):
    del smallest[section]
    with pytest.raises(ConfigError, match=f"rag.yaml: {section}: is missing; it must be a mapping with keys"):
        parse_pipeline(smallest, "rag.yaml")


def test_a_misspelt_section_is_one_problem_not_two(smallest):
    smallest["imput"] = smallest.pop("input")
    with pytest.raises(ConfigError) as caught:
        parse_pipeline(smallest)
    assert str(caught.value) == "<python>: imput = {path}: unknown key; did you mean input?"


def test_a_misspelt_prompt_source_is_one_problem_not_two(smallest):
    smallest["prompt"] = {"usr": "{{ q }}"}
    with pytest.raises(ConfigError) as caught:
        parse_pipeline(smallest)
    assert str(caught.value) == "<python>: prompt.usr = <7 characters>: unknown key; did you mean prompt.user?"


@pytest.mark.parametrize("section", ["engine", "sampling", "cluster", "evaluate", "gates", "name"])
def test_an_empty_section_is_one_at_its_defaults(smallest, section):
    expected = parse_pipeline(smallest)
    assert parse_pipeline({**smallest, section: None}) == expected


RULES = [
    ({"prompt": {}}, "prompt: needs exactly one of user, messages_column, text_column, token_ids_column; found none"),
    ({"prompt": {"system": "s"}}, "found none"),
    ({"prompt": {"user": "u", "text_column": "t"}}, "found user and text_column"),
    ({"prompt": {"messages_column": "m", "token_ids_column": "t"}}, "found messages_column and token_ids_column"),
    (
        {"prompt": {"system": "abc", "messages_column": "m"}},
        "prompt.system = <3 characters>: goes with prompt.user only; with prompt.messages_column the system message",
    ),
    (
        {"prompt": {"token_ids_column": "t", "chat_template": "a.jinja"}},
        "prompt.chat_template = 'a.jinja': has no meaning with prompt.token_ids_column",
    ),
    (
        {"prompt": {"text_column": "t", "chat_template": "a.jinja"}},
        "prompt.chat_template = 'a.jinja': has no meaning with prompt.text_column",
    ),
    (
        {"prompt": {"messages_column": "t", "chat_template": "none"}},
        "prompt.chat_template = 'none': cannot be with prompt.messages_column",
    ),
    (
        {"sampling": {"max_tokens": 64}, "model": {"id": "m", "max_model_len": 64}},
        "sampling.max_tokens = 64: must be less than model.max_model_len = 64",
    ),
    (
        {"model": {"id": "m", "max_model_len": 32}},
        "sampling.max_tokens = 32: must be less than model.max_model_len = 32",
    ),
    (
        {"engine": {"max_batch_tokens": 15}},
        "engine.max_batch_tokens = 15: must be at least engine.block_size = 16",
    ),
    (
        {"engine": {"host_cache": "1GiB", "prefix_cache": False}},
        "engine.host_cache = '1GiB': holds blocks of the prefix cache, and engine.prefix_cache is false",
    ),
    ({"engine": {"disk_cache": 100}}, "engine.disk_cache = 100: takes what engine.host_cache has no room for"),
    ({"engine": {"disk_cache_path": "fast"}}, "engine.disk_cache_path = 'fast': is the folder of engine.disk_cache, which is missing"),
]


@pytest.mark.parametrize(("change", "expected"), RULES)
def test_rules_between_keys(smallest, change, expected):
    with pytest.raises(ConfigError) as caught:
        parse_pipeline(smallest | change, "rag.yaml")
    assert expected in str(caught.value) and str(caught.value).startswith("rag.yaml: ")


@pytest.mark.parametrize(
    "prompt",
    [
        {"user": "u", "system": "s", "chat_template": "none"},
        {"user": "u", "chat_template": "a.jinja"},
        {"messages_column": "m", "chat_template": "a.jinja"},
        {"text_column": "t", "chat_template": "none"},
        {"token_ids_column": "t", "chat_template": "none"},
    ],
)
def test_prompts_that_keep_the_rules(smallest, prompt):
    parse_pipeline(smallest | {"prompt": prompt})


def test_all_problems_are_listed_at_once(smallest):
    smallest["engine"] = {"blok_size": 16, "max_batch_tokens": 8, "device": "gpu"}
    smallest["sampling"] = {"top_p": 2, "max_tokens": 5000}
    smallest["prompt"]["text_column"] = "text"
    with pytest.raises(ConfigError) as caught:
        parse_pipeline(smallest, "rag.yaml", ["sampling.top_k=0", "nonsense"])
    first, *rest = str(caught.value).split("\n  ")
    assert first == "7 problems in the pipeline"
    keys = [line.partition(" = ")[0] for line in rest]
    assert sorted(keys) == sorted(
        [
            "--set: nonsense: must read key=value, like engine.block_size=32",
            "--set: sampling.top_k",
            "rag.yaml: engine.blok_size",
            "rag.yaml: engine.device",
            "rag.yaml: prompt: needs exactly one of user, messages_column, text_column, token_ids_column; "
            "found user and text_column",
            "rag.yaml: sampling.max_tokens",
            "rag.yaml: sampling.top_p",
        ]
    )


SECRETS = [
    ("model.hf_token", "whatever"),
    ("input.password", "whatever"),
    ("model.token", 123),
    ("model.key", "whatever"),
    ("input.api_key", "whatever"),
    ("input.aws_secret_access_key", "whatever"),
    ("model.dtype", "hf_abcdefghijklmnop"),
    ("output.path", "s3://user:whatever@bucket/x"),
    ("output.path", "https://host/file?X-Amz-Signature=whatever"),
    ("engine.options", ["hf_abcdefghijklmnop"]),
]


@pytest.mark.parametrize(("key", "value"), SECRETS)
def test_secrets_are_masked(complaint, key, value):
    message = complaint(key, value)
    assert f"{key} = ***: " in message and "whatever" not in message and "abcdef" not in message


@pytest.mark.parametrize("key", ["prompt.token_ids_column", "sampling.max_token", "sampling.max_new_token", "engine.max_batch_token"])
def test_keys_about_tokens_are_no_secrets(complaint, key):
    assert f"{key} = 5: " in complaint(key, 5)


@pytest.mark.parametrize("value", [{"role": "Answer briefly"}, [{"role": "Answer briefly"}], ["Answer briefly"] * 9])
def test_long_and_nested_values_are_cut(complaint, value):
    message = complaint("engine.device", value)
    assert len(message) < 130


def test_prompt_text_is_never_repeated(complaint):
    assert "prompt.sistem = <1 character>: " in complaint("prompt.sistem", "a")
    assert "briefly" not in complaint("prompt.sytem", "Answer briefly")
    assert "briefly" not in complaint("promt", {"user": "Answer briefly"})
    assert "briefly" not in complaint("engine.device", [{"user": "Answer briefly"}])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, "is empty; a pipeline needs at least input, prompt, model and output"),
        ([1], "holds a list where a mapping is needed"),
        ("text", "holds plain text where a mapping is needed"),
        (5, r"holds a value \(int\) where a mapping is needed"),
    ],
)
def test_what_is_no_mapping_is_refused(data, expected):
    with pytest.raises(ConfigError, match=f"^<python>: {expected}"):
        parse_pipeline(data)
