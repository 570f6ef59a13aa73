"""A user's metric: what is refused before any work, and in which words; what happens where it fails later."""

import sys
from pathlib import Path

import pytest

from batchpaged.errors import ConfigError
from batchpaged.evaluation.evaluator import Evaluator
from batchpaged.evaluation.metrics import make_metrics
from batchpaged.evaluation.own_metrics import load_own_metric, try_own_metric

GOOD = '''
import sys
import helper
import numpy as np
from os import system
from shutil import copy

def overlap(completion, references, row):
    return helper.share(completion, row["context"])

def picky(completion, references, row):
    if "bad" in completion:
        raise ValueError("secret " + completion)
    return {"a": 1} if completion == "mapping" else float("nan") if completion == "nan" else True

def short(completion): return 1
def defaults(completion, references, row, *, strict=False): return 0

def of_numpy(completion, references, row):
    return {"float": np.float32(0.5), "int": np.int64(2), "bool": np.bool_(True), "nan": np.float64("nan")}[completion]

def leaving(completion, references, row):
    if completion == "large":
        return 10**400
    if completion == "inf":
        return float("inf")
    sys.exit("secret")
constant = 3
'''


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(GOOD)
    (tmp_path / "helper.py").write_text("def share(a, b): return len(set(a) & set(b)) / max(1, len(set(a)))\n")
    (tmp_path / "broken.py").write_text("x = 1\ny = secret_name\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "needy.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "script.py").write_text("import sys\nsys.exit('secret')\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "deep.py").write_text("def one(completion, references, row): return 1\n")
    return str(tmp_path)


def test_it_gets_completion_references_and_the_whole_row(folder: str) -> None:
    [metric] = make_metrics(["mine:overlap"], folder)
    evaluator = Evaluator([metric])
    rows = [{"context": "abc"}, {"context": "xyz"}, {"context": "x"}]
    scores = evaluator.add(["ab", "xa", None], ["ok", "ok", "failed"], rows=rows)
    assert scores == {"overlap": [1.0, 0.5, 0.0]}
    assert evaluator.result() == {"overlap": 0.5, "num_evaluated": 3}


def test_with_references_only_rows_that_have_one_count(folder: str) -> None:
    metrics = make_metrics(["sub.deep:one", "mine:defaults"], folder, needs_references=True)
    scores = Evaluator(metrics).add(["a", "b"], ["ok", "ok"], ["x", None])
    assert scores == {"one": [1.0, None], "defaults": [0.0, None]}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("absent:f", r"there is no absent\.py in .*, nor in .*, the current folder; evaluate.metrics_folder says"),
        ("os:system", r"there is no os\.py"),  # nothing that is installed
        ("mine:overlp", "defines no function 'overlp'; did you mean overlap"),
        ("mine:system", "defines no function 'system'"),  # nor what the file imports
        ("mine:copy", "defines no function 'copy'"),
        ("mine:constant", "defines no function 'constant'"),
        ("mine:short", r"has to take \(completion, references, row\), but takes \(completion\)"),
        ("broken:f", r"cannot be imported: NameError \(broken\.py:2\)"),
        ("syntax:f", r"cannot be imported: SyntaxError: .* \(syntax\.py:1\)"),
        ("needy:f", r"cannot be imported: ModuleNotFoundError: No module named 'no_such_module_at_all' \(needy\.py:1\)"),
        ("script:f", r"script\.py cannot be imported: it calls sys\.exit \(script\.py:2\)"),
        ("mine:missing_short", "defines no function 'missing_short', only overlap, "),
    ],
)
def test_what_cannot_be_called_is_refused(folder: str, spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"evaluate.metrics: {spec}: .*{message}"):
        load_own_metric(spec, folder)


def test_it_is_looked_for_in_the_current_folder_too_but_there_last(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(folder, "sub"))
    assert load_own_metric("deep:one", folder)("", [], {}) == 1
    Path("mine.py").write_text("def defaults(completion, references, row): return 5\n")
    assert load_own_metric("mine:defaults", folder)("", [], {}) == 0


def test_no_file_beside_it_stands_in_for_another_module(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(folder, "colorsys.py").write_text("raise ImportError\n")
    Path(folder, "red.py").write_text("import colorsys\ndef red(completion, references, row): return colorsys.rgb_to_hsv(1, 0, 0)[2]\n")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    path = list(sys.path)
    assert load_own_metric("red:red", folder)("", [], {}) == 1
    assert sys.path == path


@pytest.mark.parametrize(
    ("reference", "message"),
    [("mapping", "returned dict for the first row"), ("nan", "a finite number"), ("bad", r"raised ValueError \(mine\.py:")],
)
def test_it_is_tried_on_a_row(folder: str, reference: str, message: str) -> None:
    function = load_own_metric("mine:picky", folder)
    try_own_metric("mine:picky", function, ["fine"], {})
    with pytest.raises(ConfigError, match=message) as refusal:
        try_own_metric("mine:picky", function, [reference], {})
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("metric", "completion", "message"),
    [
        ("of_numpy", "nan", "it returned nan for the first row"),
        ("leaving", "inf", "it returned inf for the first row"),
        ("leaving", "large", "it returned an integer too large for a float for the first row"),
        ("leaving", "else", r"it called sys\.exit \(mine\.py:\d+\) for the first row"),
    ],
)
def test_what_is_no_score_is_named(folder: str, metric: str, completion: str, message: str) -> None:
    function = load_own_metric(f"mine:{metric}", folder)
    with pytest.raises(ConfigError, match=f"mine:{metric}: {message}") as refusal:
        try_own_metric(f"mine:{metric}", function, [completion], {})
    assert "secret" not in str(refusal.value)


def test_numbers_of_numpy_are_numbers(folder: str) -> None:
    scores = Evaluator(make_metrics(["mine:of_numpy"], folder)).add(["float", "int", "bool"], ["ok"] * 3)
    assert scores == {"of_numpy": [0.5, 2.0, 1.0]}


def test_what_is_no_score_fails_its_row(folder: str) -> None:
    evaluator = Evaluator(make_metrics(["mine:leaving"], folder))
    evaluator.add(["large", "inf", "else"], ["ok"] * 3)
    errors = {"returned an integer too large for a float": 1, "returned inf": 1, "SystemExit": 1}
    assert evaluator.details()["leaving"]["errors"] == errors


def test_where_it_fails_the_row_counts_as_zero_and_the_kind_is_counted(folder: str) -> None:
    evaluator = Evaluator(make_metrics(["mine:picky"], folder))
    evaluator.add(["bad", "good", "mapping", "very bad"], ["ok"] * 4)
    details = evaluator.details()["picky"]
    assert evaluator.result()["picky"] == 0.25
    assert (details["num_rows"], details["errors"]) == (4, {"ValueError": 2, "returned dict": 1})


@pytest.mark.parametrize("specs", [["mine:f1"], ["mine:num_evaluated"], ["mine:one", "sub.deep:one"], ["f1", "f1"], ["mine:mrr"]])
def test_two_figures_never_have_one_name(folder: str, specs: list[str]) -> None:
    Path(folder, "mine.py").write_text("".join(
        f"def {name}(completion, references, row): return 1\n" for name in ("f1", "num_evaluated", "one", "mrr")
    ))
    with pytest.raises(ConfigError, match="rename the function"):
        make_metrics(specs, folder)
