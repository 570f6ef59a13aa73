"""What an installation holds: a package that is missing there is missed by no test that runs in the checkout."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(("folder", "name"), [("batchpaged", "batchpaged"), ("kernels", "batchpaged.kernels")])
def test_every_folder_with_code_is_installed(folder, name):
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    installed = set(re.findall(r'"([\w.]+)",', re.search(r"^packages = \[(.*?)^\]", settings, re.DOTALL | re.MULTILINE)[1]))
    found = {path.parent.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py")}
    names = {".".join([name, *path.parts]) for path in found if "kernels" not in path.parts}
    assert names <= installed
