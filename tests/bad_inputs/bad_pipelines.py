"""Pipeline files that are refused, and words of the reason. `DATA` stands for a good data file, `MODEL` for a good model."""

SECTIONS = {
    "input": "{path: DATA}",
    "prompt": "{user: '{{ question }}'}",
    "model": "{id: MODEL, max_model_len: 300}",
    "output": "{path: OUT}",
}


def with_sections(**changes: str | None) -> str:
    """The smallest pipeline with other sections, as YAML; None leaves one out."""
    sections = {**SECTIONS, **changes}
    return "".join(f"{name}: {text}\n" for name, text in sections.items() if text is not None)


GOOD = with_sections()

FILES: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    # no YAML, or no mapping
    "empty": ("", ("is empty",)),
    "comment-only": ("# nothing\n", ("is empty",)),
    "plain-text": ("just words", ("plain text",)),
    "list": ("- a\n- b\n", ("a list",)),
    "number": ("5", ("a value (int)",)),
    "not-utf8": (b"name: caf\xe9\n", ("not text in UTF-8",)),
    "null-byte": (b"name: a\x00b\n", ("not allowed in YAML",)),
    "utf-16": (GOOD.encode("utf-16"), ("not text in UTF-8",)),
    "parquet": (b"PAR1" + bytes(range(256)), ("not text in UTF-8",)),
    "json-lines": ('{"a": 1}\n{"a": 2}\n', ("not valid YAML",)),
    "two-documents": (GOOD + "---\n" + GOOD, ("not valid YAML",)),
    "tab": ("input:\n\tpath: a\n", ("indent with spaces",)),
    "open-quote": ("name: 'a\n", ("not valid YAML",)),
    "open-brace": ("input: {path: a\n", ("not valid YAML",)),
    "unknown-alias": ("input: *nothing\n", ("not valid YAML",)),
    "python-object": ("input: !!python/object/apply:os.system ['true']\n", ("not valid YAML",)),
    "own-tag": ("input: !include other.yaml\n", ("not valid YAML",)),
    "self-reference": ("input: &a\n  path: *a\n", ("input.path",)),
    "key-twice": (GOOD + "name: a\nname: b\n", ("name is given twice",)),
    "section-twice": (GOOD + GOOD, ("input is given twice",)),
    "deeply-nested": ("input: " + "[" * 3000 + "]" * 3000, ("not valid YAML",)),
    "too-large": ("#" * (1 << 20) + "\n" + GOOD, ("larger than 1 MiB",)),
    # sections and keys
    "no-input": (with_sections(input=None), ("input", "missing")),
    "no-prompt": (with_sections(prompt=None), ("prompt",)),
    "no-model": (with_sections(model=None), ("model", "missing")),
    "no-output": (with_sections(output=None), ("output", "missing")),
    "section-is-text": (with_sections(model="MODEL"), ("did you mean model.id?",)),
    "section-is-list": (with_sections(input="[a, b]"), ("input",)),
    "unknown-section": (with_sections(enigne="{}"), ("did you mean engine?",)),
    "unknown-key": (with_sections(engine="{blok_size: 16}"), ("did you mean engine.block_size?",)),
    "key-of-another-program": (with_sections(sampling="{max_new_tokens: 5}"), ("did you mean sampling.max_tokens?",)),
    "key-in-the-wrong-section": (with_sections(sampling="{id_column: a}"), ("did you mean input.id_column?",)),
    "number-as-key": (with_sections(**{"5": "a"}), ("unknown key",)),
    # values
    "zero-max-tokens": (with_sections(sampling="{max_tokens: 0}"), ("sampling.max_tokens = 0", ">= 1")),
    "negative-limit": (with_sections(input="{path: DATA, limit: -1}"), ("input.limit = -1", ">= 1")),
    "number-in-quotes": (with_sections(sampling="{max_tokens: '5'}"), ("write it without quotes",)),
    "true-as-number": (with_sections(sampling="{max_tokens: true}"), ("an integer >= 1",)),
    "fraction": (with_sections(sampling="{max_tokens: 1.5}"), ("an integer >= 1",)),
    "not-a-number": (with_sections(sampling="{temperature: .nan}"), ("sampling.temperature",)),
    "infinite": (with_sections(sampling="{temperature: .inf}"), ("sampling.temperature",)),
    "top-p-of-zero": (with_sections(sampling="{top_p: 0}"), ("> 0 and <= 1",)),
    "enormous-number": (with_sections(sampling="{seed: 1" + "0" * 400 + "}"), ("sampling.seed",)),
    "size-without-unit": (with_sections(engine="{kv_cache: 2G}"), ("2GiB",)),
    "no-cache-at-all": (with_sections(engine="{kv_cache: 0}"), ("engine.kv_cache = 0",)),
    "odd-block-size": (with_sections(engine="{block_size: 17}"), ("one of 8, 16, 32, 64, 128",)),
    "other-word": (with_sections(model="{id: MODEL, dtype: bf16}"), ("did you mean bfloat16?",)),
    "empty-path": (with_sections(input="{path: ''}"), ("input.path",)),
    "no-paths": (with_sections(input="{path: []}"), ("input.path",)),
    "name-with-slash": (with_sections(name="a/b"), ("name",)),
    "negative-failed-rows": (with_sections(max_failed_rows="-1"), ("max_failed_rows = -1", ">= 0")),
    "failed-rows-in-percent": (with_sections(max_failed_rows="5%"), ("max_failed_rows = '5%'", ">= 0")),
    "allow-in-words": (with_sections(prompt="{user: a, allow_special_tokens: always}"), ("true or false",)),
    "best-of-equals": (with_sections(sampling="{best_of: 2}"), ("sampling.best_of", "needs sampling.temperature above 0")),
    "credentials-in-output": (with_sections(output="{path: 's3://user:secret@bucket/x'}"), ("output.path",)),
    # keys that do not go together
    "no-prompt-source": (with_sections(prompt="{}"), ("exactly one of",)),
    "two-prompt-sources": (with_sections(prompt="{user: a, text_column: b}"), ("user and text_column",)),
    "system-with-text": (with_sections(prompt="{system: a, text_column: question}"), ("goes with prompt.user only",)),
    "no-room": (with_sections(sampling="{max_tokens: 300}"), ("less than model.max_model_len",)),
    "budget-below-a-block": (with_sections(engine="{max_batch_tokens: 8}"), ("at least engine.block_size",)),
    # templates
    "open-template": (with_sections(prompt="{user: '{{ question'}"), ("prompt.user, line 1",)),
    "unknown-filter": (with_sections(prompt="{user: '{{ question | nosuch }}'}"), ("nosuch",)),
    "unknown-column": (with_sections(prompt="{user: '{{ qestion }}'}"), ("did you mean 'question'?",)),
    "include": (with_sections(prompt="{user: \"{% include 'a' %}\"}"), ("a template stands alone",)),
    "chat-template-missing": (with_sections(prompt="{user: a, chat_template: no/such/file}"), ("cannot read",)),
    "chat-by-hand": (
        with_sections(prompt="{user: '{{ question }}<end>', chat_template: none}"),
        ("the special token '<end>'", "allow_special_tokens"),
    ),
    # gates, model, input
    "gate-without-number": (with_sections(gates="[f1 is good]"), ("gates",)),
    "gate-of-nothing": (with_sections(gates="[hit_rate > 0.5]"), ("which no report of this pipeline has",)),
    "metric-gate-without-metric": (with_sections(gates="[f1 > 0.5]"), ("need `evaluate`",)),
    "model-missing": (with_sections(model="{id: ./no/such/model}"), ("./no/such/model",)),
    "model-too-short": (with_sections(model="{id: MODEL, max_model_len: 100000}"), ("512 positions",)),
    "host-cache-of-too-much": (with_sections(engine="{host_cache: 900TiB}"), ("engine.host_cache = 900TiB", "that are free")),
    "disk-cache-of-too-much": (with_sections(engine="{host_cache: 9, disk_cache: 900TiB}"), ("engine.disk_cache = 900TiB",)),
    "host-cache-of-no-block": (with_sections(engine="{host_cache: 1KiB}"), ("12.0 KiB of this model; give 12KiB or more",)),
    "device-missing": (with_sections(engine="{device: cuda}"), ("engine.device is cuda",)),
    "triton-missing": (with_sections(engine="{attention: triton, device: cpu}"), ("triton needs a GPU",)),
    "input-missing": (with_sections(input="{path: no/such.parquet}"), ("does not exist",)),
    "id-column-missing": (with_sections(input="{path: DATA, id_column: ids}"), ("no column 'ids'",)),
    "several-at-once": (
        with_sections(engine="{block_size: 17, kv_cache: 0}", sampling="{top_p: 7}", zzz="1"),
        ("4 problems", "engine.block_size", "engine.kv_cache", "sampling.top_p", "zzz"),
    ),
}
