"""Pipeline files: reading, YAML, line numbers, overrides."""

import pytest

from batchpaged.config import load_pipeline, parse_bytes, parse_pipeline
from batchpaged.config.sizes import format_bytes
from batchpaged.errors import ConfigError

SMALLEST = """\
input:
  path: rows.parquet
prompt:
  user: "{{ question }}"
model:
  id: smollm2-135m-instruct
output:
  path: runs/x
"""


@pytest.fixture
def write(tmp_path):
    """Function: a file rag.yaml with this text, the smallest pipeline and this text, or these bytes."""

    def to_file(text: str | bytes = "", *, after: str = "", name: str = "rag.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else (text or SMALLEST + after).encode())
        return path

    return to_file


def complaint(path, overrides=()):
    """The error's text with the file's folder taken out."""
    with pytest.raises(ConfigError) as caught:
        load_pipeline(path, overrides)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_a_file_is_read_and_named_by_its_name(write):
    path = write()
    assert load_pipeline(path).name == "rag"
    assert load_pipeline(str(path)) == load_pipeline(path)
    assert load_pipeline(write(after="name: other")).name == "other"
    assert load_pipeline(write(name="my rag (2).yaml")).name == "my_rag_2_"
    assert load_pipeline(write(name="日本.yaml")).name == "pipeline"


def test_a_byte_order_mark_is_no_problem(write):
    assert load_pipeline(write(b"\xef\xbb\xbf" + SMALLEST.encode())).model.id == "smollm2-135m-instruct"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# only a comment\n", "rag.yaml: is empty; a pipeline needs at least input, prompt, model and output"),
        ("- a\n- b\n", "rag.yaml: holds a list where a mapping is needed"),
        ("just words", "rag.yaml: holds plain text where a mapping is needed"),
        (b"PAR1\x00\x01\x02", "rag.yaml: no text: character 4 is not allowed in YAML"),
        (b"\xff\xfe\x00\x01", "rag.yaml: not text in UTF-8; a pipeline file is YAML"),
        (b"#" * (1 << 20) + b"#", "rag.yaml: larger than 1 MiB, so not a pipeline file"),
        ("a: [1\nb: 2\n", "rag.yaml:2:2: not valid YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("a: 1\n b: 2\n", "rag.yaml:2:3: not valid YAML: "),
        ("a:\n\tb: 2\n", "rag.yaml:2:1: not valid YAML: while scanning for the next token, found character '\\t'"),
        ("a: *nowhere\n", "rag.yaml:1:4: not valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", "rag.yaml:2:1: not valid YAML: expected a single document in the stream"),
        ("a: !!python/object/apply:os.getcwd []\n", "rag.yaml:1:4: not valid YAML: could not determine a constructor"),
        ("[" * 5000, "rag.yaml: not valid YAML: RecursionError"),
        ("name: a\ninput: {path: x, path: y}\nname: b\n", "rag.yaml:2: input.path is given twice, first in line 2"),
        ("name: a\ninput: {path: x, path: y}\nname: b\n", "rag.yaml:3: name is given twice, first in line 1"),
    ],
)
def test_what_is_no_pipeline_is_refused_with_its_place(write, text, expected):
    assert expected in complaint(write(text))


def test_a_tab_is_explained(write):
    assert complaint(write("a:\n\tb: 2\n")).endswith("; indent with spaces")


def test_a_missing_file_is_refused_with_the_nearest_name(write, tmp_path):
    write(name="rag_eval.yaml")
    assert complaint(tmp_path / "rag_evil.yaml") == "rag_evil.yaml: no such file; did you mean rag_eval.yaml?"
    assert complaint(tmp_path / "zzz.yaml") == "zzz.yaml: no such file"
    assert "there is no folder" in complaint(tmp_path / "no" / "rag.yaml")


def test_a_folder_is_refused(tmp_path):
    assert "is a folder; give the pipeline file in it" in complaint(tmp_path)


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    assert "cannot be read" in complaint(tmp_path / ("x" * 5000))
    assert "cannot be read" in complaint(tmp_path / "a\0b")


def test_problems_have_their_line(write):
    path = write(after="engine:\n  block_size: 17\n  blok: 3\nsampling:\n  stop:\n  - ''\nevaluate:\n  metrics: [f1]\n")
    assert complaint(path).split("\n  ") == [
        "4 problems in the pipeline",
        "rag.yaml:10: engine.block_size = 17: must be one of 8, 16, 32, 64, 128",
        "rag.yaml:11: engine.blok = 3: unknown key; did you mean engine.block_size?",
        "rag.yaml:13: sampling.stop[0] = '': must be a non-empty string",
        "rag.yaml:16: evaluate.metrics = ['f1']: f1 needs evaluate.references, the column of reference answers",
    ]


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("sampling: {temperature: 1e-3}", "sampling.temperature", 0.001),
        ("sampling: {temperature: .5}", "sampling.temperature", 0.5),
        ("sampling: {seed: 1_000}", "sampling.seed", 1000),
        ("engine: {prefix_cache: off}", "engine.prefix_cache", False),
        ("name: 2026-03-01", "name", "2026-03-01"),
        ("cluster: {scheduler: 10.0.0.1:8786}", "cluster.scheduler", "10.0.0.1:8786"),
        ("engine: # nothing\ncluster:\n", "engine.block_size", 16),
        ("x-off: &e {block_size: 32}\nengine: *e", "engine.block_size", None),
    ],
)
def test_yaml_means_what_it_looks_like(write, line, key, value):
    path = write(after=line)
    if value is None:
        assert "x-off = {block_size}: unknown key" in complaint(path)
    else:
        assert load_pipeline(path).value(key) == value


def test_merge_keys_and_anchors_work(write):
    path = write(after="engine: &e {block_size: 32}\ncluster: {workers: 1}\n")
    assert load_pipeline(path).engine.block_size == 32
    path = write(SMALLEST.replace("model:\n", "model:\n  <<: {max_model_len: 99, id: other}\n"))
    assert (load_pipeline(path).model.max_model_len, load_pipeline(path).model.id) == (99, "smollm2-135m-instruct")


def test_an_alias_that_holds_itself_is_refused(write):
    assert "unknown key" in complaint(write(after="zzz: &a [*a]\n"))
    assert "unknown key" in complaint(write(after="zzz: &a {b: *a}\n"))


OVERRIDES = [
    ("engine.block_size=32", "engine.block_size", 32),
    ("input.limit=", "input.limit", None),
    ("sampling.stop=['a=b', c]", "sampling.stop", ("a=b", "c")),
    ("sampling.stop=a=b", "sampling.stop", ("a=b",)),
    ("evaluate.references=answers", "evaluate.references", "answers"),
    ("engine={block_size: 8}", "engine.block_size", 8),
    ("prompt.user=", "prompt.user", None),
    ("name='123'", "name", "123"),
    (" engine.kv_cache = 2GiB", "engine.kv_cache", "2GiB"),
]


@pytest.mark.parametrize(("override", "key", "value"), OVERRIDES)
def test_overrides_are_yaml_put_over_the_file(write, override, key, value):
    others = ["prompt.text_column=text"] if override == "prompt.user=" else []
    assert load_pipeline(write(), [override, *others]).value(key) == value


def test_the_last_override_of_a_key_counts(write):
    pipeline = load_pipeline(write(), ["sampling.seed=1", "sampling.seed=2"])
    assert pipeline.sampling.seed == 2


def test_overrides_leave_the_mapping_as_it_is():
    mapping = {"input": {"path": "a"}, "prompt": {"user": "u"}, "model": {"id": "m"}, "output": {"path": "x"}}
    assert parse_pipeline(mapping, overrides=["input.path=b"]).input.path == "b"
    assert mapping["input"] == {"path": "a"}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("engine.blok_size=3", "--set: engine.blok_size = 3: unknown key; did you mean engine.block_size?"),
        ("engine.block_size=3", "--set: engine.block_size = 3: must be one of 8, 16, 32, 64, 128"),
        ("engine.block_size.x=3", "--set: engine.block_size = {x}: must be one of"),
        ("engine={block_size: 3}", "--set: engine.block_size = 3: must be one of"),
        ("gates=[oops]", "--set: gates[0] = 'oops': has none of the operators"),
        ("name=123", "--set: name = 123: must be a string like \"rag_eval\"; write it in quotes: '123'"),
        ("block_size", "--set: block_size: must read key=value, like engine.block_size=32"),
        ("=3", "--set: (no key): must read key=value"),
        ("engine..x=3", "--set: engine..x: must read key=value"),
        ("sampling.stop=[a", "--set: sampling.stop = '[a': not valid YAML: while parsing a flow sequence"),
        ("sampling.stop={a: 1, a: 2}", "--set: sampling.stop = '{a: 1, a: 2}': a is given twice"),
        ("model.hf_token=hf_abcdefghij", "--set: model.hf_token = ***: unknown key"),
    ],
)
def test_wrong_overrides_are_refused_as_such(write, override, expected):
    assert complaint(write(), [override]).startswith(expected)


def test_an_override_without_a_value_is_said_to_be_null(write):
    said = complaint(write(after="evaluate: {references: answers}\n"), ["evaluate.references="])
    assert "exact_match needs evaluate.references" in said and said.endswith("--set evaluate.references= gives null)")


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1B", 1),
        ("512MiB", 512 * 1024**2),
        ("2GiB", 2 * 1024**3),
        ("1.5GB", 1_500_000_000),
        ("1.1 TiB", 1209462790553),
        ("0.5kb", 500),
        (" 3KIB ", 3072),
    ],
)
def test_sizes(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "5", "GiB", "-1GiB", "1,5GB", "1e3MB", "2 iB", "2GiBs", "1 PB", "0GiB", "0.1B"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="must be"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 * 1024, "1.5 MiB"), (1024**3 - 1, "1.0 GiB"),
     (3 * 1024**5, "3,072.0 TiB")],
)  # fmt: skip
def test_sizes_as_people_read_them(num_bytes, text):
    assert format_bytes(num_bytes) == text


def test_metrics_are_looked_for_beside_the_file_however_they_are_given(write):
    path = write()
    for overrides in (["evaluate.metrics=['mine:f']"], ["evaluate={metrics: 'mine:f'}"]):
        assert load_pipeline(path, overrides).evaluate.metrics_folder == str(path.parent)
    assert load_pipeline(path, ["evaluate={metrics: 'mine:f', metrics_folder: there}"]).evaluate.metrics_folder == "there"
