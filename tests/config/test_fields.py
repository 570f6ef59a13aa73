"""Every key: its default, what it takes, and what is said when it does not."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from batchpaged.config import Pipeline, PromptConfig, SamplingConfig, parse_pipeline

DEFAULTS = {
    "name": "pipeline",
    "input.id_column": None,
    "input.limit": None,
    "prompt.system": None,
    "prompt.chat_template": "auto",
    "prompt.on_too_long": "error",
    "model.revision": None,
    "model.dtype": "auto",
    "model.max_model_len": 2048,
    "engine.device": "auto",
    "engine.attention": "auto",
    "engine.block_size": 16,
    "engine.kv_cache": "auto",
    "engine.host_cache": None,
    "engine.disk_cache": None,
    "engine.disk_cache_path": None,
    "engine.kv_dtype": "auto",
    "engine.max_batch_tokens": 2048,
    "engine.max_sequences": 256,
    "engine.prefix_cache": True,
    "sampling.max_tokens": 32,
    "sampling.temperature": 0.0,
    "sampling.top_p": 1.0,
    "sampling.top_k": None,
    "sampling.min_p": 0.0,
    "sampling.repetition_penalty": 1.0,
    "sampling.seed": 0,
    "sampling.stop": (),
    "sampling.stop_token_ids": (),
    "sampling.ignore_eos": False,
    "sampling.n": 1,
    "sampling.best_of": None,
    "sampling.beam_width": None,
    "sampling.length_penalty": 1.0,
    "sampling.early_stopping": False,
    "sampling.logprobs": None,
    "sampling.prompt_logprobs": None,
    "evaluate": None,
    "gates": (),
    "previous": "auto",
    "cluster.scheduler": None,
    "cluster.workers": "auto",
}


@pytest.mark.parametrize(("key", "default"), DEFAULTS.items())
def test_defaults(smallest, key, default):
    assert parse_pipeline(smallest).value(key) == default


TAKEN = [
    ("name", "a", "a"),
    ("input.path", "s3://bucket/*.parquet", "s3://bucket/*.parquet"),
    ("input.path", ["a.parquet", "b.parquet"], ("a.parquet", "b.parquet")),
    ("input.limit", 1, 1),
    ("prompt.system", "", ""),
    ("model.max_model_len", 33, 33),
    ("engine.block_size", 128, 128),
    ("engine.kv_cache", "auto", "auto"),
    ("engine.kv_cache", "2GiB", "2GiB"),
    ("engine.kv_cache", 4000, 4000),
    ("engine.kv_dtype", "int8", "int8"),
    ("engine.kv_dtype", "fp8", "fp8"),
    ("engine.max_batch_tokens", 16, 16),
    ("engine.prefix_cache", False, False),
    ("sampling.temperature", 1, 1.0),
    ("sampling.top_p", 1, 1.0),
    ("sampling.top_k", 1, 1),
    ("sampling.min_p", 1.0, 1.0),
    ("sampling.repetition_penalty", 0.5, 0.5),
    ("sampling.seed", 2**63 - 1, 2**63 - 1),
    ("sampling.stop", "\n", ("\n",)),
    ("sampling.stop", ["\n", "###"], ("\n", "###")),
    ("sampling.stop_token_ids", 0, (0,)),
    ("sampling.stop_token_ids", [0, 2], (0, 2)),
    ("sampling.n", 1, 1),
    ("evaluate", {"references": "answers"}, None),
    ("evaluate", {"references": "answers", "metrics": "f1"}, None),
    ("evaluate", {"metrics": ["mrr", "precision_at_10"], "contexts": "c", "gold_contexts": "g"}, None),
    ("evaluate", {"metrics": ["my.metrics:overlap"], "metrics_folder": "here"}, None),
    ("gates", "failed_rows <= 0", ("failed_rows <= 0",)),
    ("gates", ["evaluation.f1>0.5", "misses.eviction == 1e3", "rows.failed != -1.5"], None),
    ("cluster.scheduler", "tcp://10.0.0.1:8786", "tcp://10.0.0.1:8786"),
    ("cluster.workers", 2, 2),
]


@pytest.mark.parametrize(("key", "given", "kept"), TAKEN)
def test_taken(smallest, key, given, kept):
    section, _, name = key.rpartition(".")
    (smallest.setdefault(section, {}) if section else smallest)[name] = given
    value = parse_pipeline(smallest).value(key)
    assert value is not None and (kept is None or (value == kept and type(value) is type(kept)))


def test_evaluation_has_both_metrics_by_default(smallest):
    smallest["evaluate"] = {"references": "answers"}
    assert parse_pipeline(smallest).evaluate.metrics == ("exact_match", "f1")


AT_LEAST_ONE = "must be an integer >= 1"
REFUSED = [
    ("name", "", 'name = \'\': must be a string like "rag_eval"'),
    ("name", "../up", 'must be a string like "rag_eval"'),
    ("input.path", "", "must be a non-empty string or a list, each item a non-empty string"),
    ("input.path", [], "must be a non-empty string or a list"),
    ("input.path", ["a", 5], "input.path[1] = 5: must be a non-empty string; write it in quotes: '5'"),
    ("input.id_column", 7, "must be a non-empty string or null; write it in quotes: '7'"),
    ("input.limit", 0, f"input.limit = 0: {AT_LEAST_ONE} or null"),
    ("input.limit", True, f"input.limit = true: {AT_LEAST_ONE} or null"),
    ("prompt.on_too_long", "truncate", "did you mean truncate_left?"),
    ("prompt.chat_template", None, "prompt.chat_template = null: must be a non-empty string"),
    ("model.id", "", "must be a non-empty string"),
    ("model.id", True, "model.id = true: must be a non-empty string; write it in quotes: 'true'"),
    ("model.dtype", "fp16", "must be one of auto, float32, bfloat16, float16; did you mean float16?"),
    ("model.dtype", "bf16", "did you mean bfloat16?"),
    ("model.dtype", "half", "did you mean float16?"),
    ("model.dtype", "int8", "model.dtype = 'int8': must be one of auto, float32, bfloat16, float16"),
    ("model.max_model_len", 1, "must be an integer >= 2"),
    ("engine.device", "GPU", "must be one of auto, cpu, cuda; did you mean cuda?"),
    ("engine.attention", "Tritn", "did you mean triton?"),
    ("engine.block_size", 24, "engine.block_size = 24: must be one of 8, 16, 32, 64, 128"),
    ("engine.block_size", "16", "must be one of 8, 16, 32, 64, 128; write it without quotes"),
    ("engine.block_size", True, "engine.block_size = true: must be one of"),
    ("engine.kv_cache", 0, 'must be auto or a string like "2GiB" or an integer >= 1'),
    ("engine.kv_cache", "2 GigaBytes", 'must be auto or a string like "2GiB" or an integer >= 1'),
    ("engine.kv_cache", "0GiB", 'must be auto or a string like "2GiB" or an integer >= 1'),
    ("engine.kv_cache", "atuo", "did you mean auto?"),
    ("engine.kv_cache", 0.9, "must be auto or"),
    ("engine.kv_dtype", "fp16", "must be one of auto, int8, fp8"),
    ("engine.max_batch_tokens", 0, AT_LEAST_ONE),
    ("engine.max_sequences", 2.0, f"engine.max_sequences = 2.0: {AT_LEAST_ONE}"),
    ("engine.prefix_cache", 1, "engine.prefix_cache = 1: must be true or false"),
    ("engine.prefix_cache", "off", "must be true or false; write it without quotes"),
    ("sampling.max_tokens", 0, AT_LEAST_ONE),
    ("sampling.max_tokens", "5", f"{AT_LEAST_ONE}; write it without quotes"),
    ("sampling.max_tokens", None, f"sampling.max_tokens = null: {AT_LEAST_ONE}"),
    ("sampling.temperature", -0.1, "must be a number >= 0"),
    ("sampling.temperature", float("nan"), "sampling.temperature = nan: must be a number >= 0"),
    ("sampling.temperature", float("inf"), "must be a number >= 0"),
    ("sampling.temperature", True, "must be a number >= 0"),
    ("sampling.top_p", 0, "must be a number > 0 and <= 1"),
    ("sampling.top_p", 1.5, "must be a number > 0 and <= 1"),
    ("sampling.top_k", 0, f"{AT_LEAST_ONE} or null"),
    ("sampling.min_p", 1.01, "must be a number >= 0 and <= 1"),
    ("sampling.repetition_penalty", 0, "must be a number > 0"),
    ("sampling.seed", -1, "must be an integer >= 0 and <= 9223372036854775807"),
    ("sampling.seed", 2**63, "must be an integer >= 0"),
    ("sampling.stop", ["a", ""], "sampling.stop[1] = '': must be a non-empty string"),
    ("sampling.stop", "", "sampling.stop = '': must be a non-empty string"),
    ("sampling.stop_token_ids", [1, -2], "sampling.stop_token_ids[1] = -2: must be an integer >= 0"),
    ("sampling.stop_token_ids", True, "sampling.stop_token_ids = true: must be an integer >= 0 or a list"),
    ("sampling.ignore_eos", None, "must be true or false"),
    ("sampling.n", 0, AT_LEAST_ONE),
    ("sampling.logprobs", 21, "must be an integer >= 0 and <= 20 or null"),
    ("sampling.prompt_logprobs", -1, "must be an integer >= 0 and <= 20 or null"),
    ("evaluate", {}, "exact_match needs evaluate.references, the column of reference answers"),
    ("evaluate", "answers", "must be a mapping with keys references, metrics"),
    ("evaluate", {"judge": {"verdicts": {True: 1, False: 0}}}, 'write them in quotes: {"yes": 1, "no": 0}'),
    ("evaluate", {"references": "a", "metrics": []}, "evaluate.metrics = []: must hold at least one metric"),
    ("evaluate", {"references": "a", "metrics": ["recal_at_5"]}, "must be one of exact_match"),
    ("evaluate", {"references": "a", "metrics": "recall_at_0"}, "evaluate.metrics = 'recall_at_0': must have a whole number of 1 or more at its end"),
    ("evaluate", {"metrics": ["../other/om:good"]}, "without a path; evaluate.metrics_folder names the folder"),
    ("evaluate", {"contexts": "c", "metrics": "mrr"}, "mrr needs evaluate.contexts and evaluate.gold_contexts; evaluate.gold_contexts is missing"),
    ("evaluate", {"gold_contexts": "c", "metrics": "recall_at_5"}, "evaluate.contexts is missing"),
    ("evaluate", {"metrics": ["mine:overlap", "f1"]}, "f1 needs evaluate.references"),
    ("evaluate", {"metrics": "os.path/x:y"}, 'a string like "my_metrics:overlap"'),
    ("evaluate", {"references": "a", "metrics": ["F1"]}, "evaluate.metrics[0] = 'F1': must be one of"),
    ("evaluate", {"references": "a", "metrics": ["bleu"]}, "must be one of exact_match, f1"),
    ("gates", ["failed_rows"], "gates[0] = 'failed_rows': has none of the operators >= <= == != > <; a gate is `figure operator number`, like"),
    ("gates", ["failed_rows =< 0"], "write <= for '=<'; a gate is"),
    ("gates", ["failed_rows => 0"], "write >= for '=>'"),
    ("gates", ["failed_rows < = 0"], "write <= for '< ='"),
    ("gates", ["failed_rows = 0"], "write == for '='"),
    ("gates", ["failed_rows <= none"], "'none' is not a number; a gate is `figure operator number`, like `f1 >= 0.6` or `f1 >= previous"),
    ("gates", ["failed_rows <="], "the number is missing"),
    ("gates", ["<= 1"], "the figure is missing"),
    ("gates", ["1 <= 2 <= 3"], "'1' is not the name of a figure"),
    ("gates", [0.8], "gates[0] = 0.8: must be a string like \"prefix_cache_hit_rate >= 0.8\""),
    ("cluster.scheduler", 8786, "must be a non-empty string or null; write it in quotes: '8786'"),
    ("cluster.workers", 0, f"must be auto or {AT_LEAST_ONE[8:]}"),
    ("output.path", "s3:/bucket/runs", "must be s3://bucket/folder, with two slashes"),
    ("output.path", "a\0b", "must be a name, not white space, without a null character"),
    ("output.path", " ", "must be a name, not white space"),
    ("output.path", "gs://bucket/runs", "must be a folder on a local or mounted file system, or s3://bucket/folder"),
    ("output", "runs/x", "must be a mapping with keys path; did you mean output.path?"),
    ("model", "smollm2", "must be a mapping with keys id, revision, dtype, max_model_len, adapters, adapter, adapter_column; did you mean model.id?"),
    ("engine", ["a"], "engine = ['a']: must be a mapping with keys device, attention"),
]


@pytest.mark.parametrize(("key", "value", "expected"), REFUSED)
def test_refused(complaint, key, value, expected):
    message = complaint(key, value)
    assert message.startswith(f"rag.yaml: {key}") and expected in message and "\n" not in message


def test_sections_are_frozen(smallest):
    pipeline = parse_pipeline(smallest)
    with pytest.raises(ValidationError):
        pipeline.sampling.max_tokens = 5


def test_sections_can_be_given_as_objects(smallest):
    smallest |= {"prompt": PromptConfig(text_column="text"), "sampling": SamplingConfig(stop=("a",), max_tokens=5)}
    pipeline = parse_pipeline(smallest, overrides=["sampling.seed=3"])
    assert pipeline.prompt.text_column == "text"
    assert (pipeline.sampling.stop, pipeline.sampling.max_tokens, pipeline.sampling.seed) == (("a",), 5, 3)


def test_a_dumped_pipeline_is_read_as_the_same(smallest):
    smallest |= {"evaluate": {"references": "answers"}, "gates": ["f1 > 0.5"], "engine": {"kv_cache": "1.5GB"}}
    pipeline = parse_pipeline(smallest)
    assert parse_pipeline(pipeline.model_dump(mode="json")) == pipeline
    assert parse_pipeline(pipeline.model_dump()) == pipeline


def test_rules_hold_for_pipelines_made_in_python(smallest):
    smallest["prompt"]["text_column"] = "text"
    with pytest.raises(ValidationError, match="needs exactly one of user"):
        Pipeline.model_validate(smallest)


def test_a_run_directory_may_be_at_home(smallest):
    assert parse_pipeline(smallest | {"output": {"path": "~/runs/x"}}).output.path == str(Path.home() / "runs/x")
