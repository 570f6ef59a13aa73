"""Whether a folder holds an adapter, and what to say where it does not: the path that was tried, and what lies near it."""

from pathlib import Path

from batchpaged.spelling import nearest

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_MOST_NAMES = 5
_FORMAT = f"An adapter is a folder as peft saves it, with {CONFIG_FILE} and {WEIGHTS_FILE}"


def what_is_missing(folder: Path) -> str | None:
    """In words that begin with the folder as given; None where both files are there."""
    path = folder.expanduser()
    missing = [file for file in (CONFIG_FILE, WEIGHTS_FILE) if not (path / file).is_file()]
    if not missing:
        return None
    if not path.is_dir():
        return _with_format(f"{folder} is no folder{_place(folder)}{_near(path)}")
    if missing == [WEIGHTS_FILE] and (path / "adapter_model.bin").is_file():
        return f"{folder} holds its weights as a pickle file, which can run code when it is read: save them as safetensors"
    return _with_format(f"{folder} has no {' and no '.join(missing)}{_place(folder)}; {_content(path)}")


def _with_format(words: str) -> str:
    return f"{words}{'' if words.endswith('?') else '.'} {_FORMAT}"


def _place(folder: Path) -> str:
    """Where a relative path was looked up."""
    path = folder.expanduser()
    return "" if path.is_absolute() else f" in the current folder; {path.absolute()} was tried"


def _near(path: Path) -> str:
    """What stands in its place, or in the folder around it."""
    if path.is_file():
        return f", but a file{'; give the folder that holds it' if path.name in (CONFIG_FILE, WEIGHTS_FILE) else ''}"
    if not path.parent.is_dir():
        return f"; there is no {path.parent.absolute()} either"
    names = _names(path.parent)
    meant = nearest(path.name, names, cutoff=0.6)
    return f"; did you mean {path.with_name(meant)}?" if meant else f"; {path.parent.absolute()} holds {_listed(names)}"


def _content(path: Path) -> str:
    below = [name for name in _names(path) if (path / name / CONFIG_FILE).is_file()]
    if below:
        return f"did you mean {_listed([str(path / name) for name in below])}?"
    return f"it holds {_listed(_names(path))}"


def _names(folder: Path) -> list[str]:
    try:
        return sorted(file.name for file in folder.iterdir())
    except OSError:
        return []


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (", ".join(names[:_MOST_NAMES]) or "nothing") + more
