"""README and docs: links lead somewhere, commands and pipelines are accepted, examples compile, shown output is current."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import yaml

from batchpaged.cli import cli
from batchpaged.config import load_pipeline, parse_pipeline
from batchpaged.errors import ConfigError
from batchpaged.report.gates import parse_gates

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), ROOT / "sample_data" / "README.md"]
EXAMPLES = sorted((DOCS / "examples").iterdir())
SHELLS = {"bash", "sh", "console", "cron", "ini"}


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str  # "" if none is given
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fences() -> Iterator[Fence]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            yield Fence(page, text[: match.start()].count("\n") + 1, match[1], match[2])


def of_language(*languages: str) -> list[Fence]:
    return [fence for fence in fences() if fence.language in languages]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


# --- links ---


def links() -> list[tuple[Path, str]]:
    return [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("page", "target"), [pair for pair in links() if "://" not in pair[1]])
def test_links_lead_somewhere(page: Path, target: str):
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    assert file.exists() and file.is_relative_to(ROOT)
    if anchor:
        assert anchor in anchors(file)


def test_every_page_can_be_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    by_page = {page: [(page.parent / t.partition("#")[0]).resolve() for p, t in links() if p == page] for page in PAGES}
    while waiting:
        page = waiting.pop()
        reached.add(page)
        waiting += [target for target in by_page.get(page, []) if target.suffix == ".md" and target not in reached]
    own_folders = {DOCS / "images" / "README.md", ROOT / "sample_data" / "README.md"}
    assert set(PAGES) - reached <= own_folders


# --- commands ---


def commands() -> list[tuple[str, str]]:
    """(place, command line) of every `batchpaged ...` in shell blocks, indented blocks and inline code."""
    found = [(str(fence), line) for fence in of_language(*SHELLS) for line in joined_lines(fence.text)]
    for page in PAGES:
        place, text = str(page.relative_to(ROOT)), prose(page)
        found += [(place, line) for line in re.findall(r"^    (batchpaged .+)$", text, re.MULTILINE)]
        found += [(place, code) for code in re.findall(r"`(batchpaged [^`]+)`", text)]
    return [(place, command) for place, line in found for command in batchpaged_commands(line)]


def joined_lines(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if not line.lstrip().startswith("#")]


def batchpaged_commands(line: str) -> list[str]:
    """What of a shell line goes to batchpaged: up to the next operator, redirection or comment."""
    line = re.sub(r"\$\([^)]*\)", "X", line)
    starts = [match.end() for match in re.finditer(r"(?<![\w./-])batchpaged ", line)]
    return [re.split(r" (?:\|\||&&|\||;|\d?>>?|#) ?|;$|;(?= )", line[start:])[0] for start in starts]


def words(command: str) -> list[str]:
    """A command inside a quotation may end in the quotation mark that closes it."""
    try:
        return shlex.split(command)
    except ValueError:
        return shlex.split(command[:-1])


@pytest.mark.parametrize(("place", "command"), commands())
def test_commands_are_accepted(place: str, command: str):
    name, *rest = words(re.sub(r" \[[A-Z-][^]]*\](\.\.\.)?", "", command))  # without `[--limit N]` and the like
    if name in ("--help", "--version"):
        return
    subcommand = cli.commands[name]
    if rest and rest != ["--help"]:  # a sentence may give a command's name alone
        subcommand.make_context(name, rest)


def test_commands_were_found():
    assert len(commands()) > 30


# --- pipelines ---


def pipeline_fences() -> list[Fence]:
    """YAML blocks that are whole pipelines."""
    return [fence for fence in of_language("yaml") if {"input", "prompt"} <= set(yaml.safe_load(fence.text))]


@pytest.mark.parametrize("fence", pipeline_fences(), ids=str)
def test_pipelines_in_pages_are_accepted(fence: Fence):
    parse_pipeline(yaml.safe_load(fence.text), origin=str(fence))


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.suffix == ".yaml"], ids=lambda path: path.name)
def test_example_pipelines_are_accepted(path: Path):
    pipeline = load_pipeline(path)
    parse_gates(pipeline.gates, pipeline.evaluate.metrics if pipeline.evaluate else ())


def gate_texts() -> list[str]:
    loaded = [yaml.safe_load(fence.text) for fence in of_language("yaml")]
    return [gate for data in loaded if isinstance(data, dict) for gate in data.get("gates", ())]


@pytest.mark.parametrize("gate", gate_texts())
def test_gates_in_pages_are_accepted(gate: str):
    parse_gates([gate], metrics=["exact_match", "f1"])


def test_the_documented_keys_are_the_keys_there_are():
    """Each key of a table in pipeline-file.md is known, and each known key stands there."""
    from batchpaged.config.schema import all_keys

    documented = set(re.findall(r"^\| `([a-z_]+(?:\.[a-z_0-9]+)*)` \|", prose(DOCS / "pipeline-file.md"), re.MULTILINE))
    sections = {key.rpartition(".")[0] for key in all_keys()}
    assert set(all_keys()) - sections <= documented


# --- Python and shown output ---


@pytest.mark.parametrize("fence", of_language("python"), ids=str)
def test_python_in_pages_compiles(fence: Fence):
    compile(fence.text, str(fence), "exec")


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.suffix == ".py"], ids=lambda path: path.name)
def test_example_programs_compile(path: Path):
    compile(path.read_text(encoding="utf-8"), str(path), "exec")


def test_the_prefix_cache_page_shows_what_its_example_prints():
    example = runpy.run_path(str(DOCS / "examples" / "prefix_cache_example.py"))
    printed = "\n".join(example["Example"]().lines())
    shown = [fence.text for fence in of_language("text") if fence.page.name == "prefix-cache.md"]
    assert "\n".join(shown) == f"{printed}\n"


def test_the_eviction_comparison_shows_what_the_page_says():
    example = runpy.run_path(str(DOCS / "examples" / "eviction_comparison.py"))
    prompts, count = example["rag_prompts"](200, 20), example["num_prefilled_tokens"]
    unique = example["num_unique_tokens"](sorted(prompts))
    num_blocks = unique // 4 // example["BLOCK_SIZE"]
    assert count(sorted(prompts), num_blocks, 16, True) == unique
    assert unique < count(prompts, num_blocks, 16, True) < count(prompts, num_blocks, 16, False)


def test_the_prefix_cache_page_gives_the_plan_s_figures():
    import pyarrow as pa

    from batchpaged.planning.order import plan_order
    from batchpaged.planning.summary import num_unique_tokens

    prompts = runpy.run_path(str(DOCS / "examples" / "prefix_cache_example.py"))["PROMPTS"]
    unique = num_unique_tokens(plan_order(pa.array(list(prompts.values()), pa.list_(pa.int32()))))
    total = sum(map(len, prompts.values()))
    page = prose(DOCS / "prefix-cache.md")
    assert f"{total} prompt tokens" in page and f"{unique} unique tokens" in page
    assert f"{1 - unique / total:.1%}" in page


# --- figures ---


def test_sizes_follow_from_the_models_shapes():
    row = r"^\| [\w.-]+ \| (\d+) \| \d+ \| (\d+) \| (\d+) \| ([\d,]+) \| ([\d,]+) B .*? \| ([\d,]+) B"
    rows = re.findall(row, prose(DOCS / "sizing.md"), re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        layers, kv_heads, head_dim, values, in_float32, in_16_bits = (int(cell.replace(",", "")) for cell in row)
        assert values == 2 * layers * kv_heads * head_dim
        assert (in_float32, in_16_bits) == (4 * values, 2 * values)


def test_places_for_figures_are_marked_on_both_sides():
    for page in PAGES:
        names = Counter(re.findall(r"<!-- figures: ([a-z0-9-]+) -->", page.read_text(encoding="utf-8")))
        assert all(count == 2 for count in names.values()), f"{page.name}: {names}"


# --- the code ---


def test_imports_go_down_the_picture_in_the_architecture_page():
    picture = next(fence for fence in of_language("text") if fence.page.name == "architecture.md")
    height = {name: depth for depth, line in enumerate(picture.text.splitlines()) for name in line.split()}
    upward = {("attention", "engine.step"), ("tiers", "engine.step"), ("run", "api")}
    wrong = [
        (package, module)
        for package, module in imports()
        if height[package] > height[module.partition(".")[0]] and (package, module) not in upward
    ]
    assert wrong == []


def imports() -> set[tuple[str, str]]:
    """(package, module) for every import of ours, below `batchpaged`."""
    package_root = ROOT / "batchpaged"
    found = set()
    for path in package_root.rglob("*.py"):
        package = path.relative_to(package_root).parts[0].removesuffix(".py")
        if package != "__init__":
            found |= {(package, module) for module in imported_modules(path) if module.partition(".")[0] != package}
    return found


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "batchpaged":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("batchpaged."):
            yield node.module.removeprefix("batchpaged.")
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("batchpaged.") for a in node.names if a.name.startswith("batchpaged."))


def text_files() -> Iterator[Path]:
    patterns = ("batchpaged/**/*", "docs/**/*", "kernels/**/*", "pipelines/*", "tests/**/*", "sample_data/*", "*.*")
    suffixes = {".py", ".md", ".yaml", ".json", ".toml", ".txt", ".jinja", ".css"}
    for pattern in patterns:
        yield from (path for path in ROOT.glob(pattern) if path.suffix in suffixes and path.is_file())


def test_no_file_names_a_place_on_somebody_s_machine():
    personal = re.compile(r"(?<![\w.~-])/(?:" + "|".join(["work", "root", "home", "Users", "tmp/" + "w"]) + r")/")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in text_files()
        for match in personal.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
