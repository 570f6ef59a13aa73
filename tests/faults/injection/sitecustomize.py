"""Faults from outside: Python loads this module in every process of a run whose PYTHONPATH names this folder.

The functions of points.py are wrapped as their modules are imported. An environment variable names one call of one of them,
and what happens there; batchpaged itself knows nothing of it. Calls are counted over all processes of a run, in files.
"""

import functools
import json
import os
import signal
import sys
from importlib.machinery import ModuleSpec, PathFinder

VARIABLE = "BATCHPAGED_TESTS_FAULT"


class Settings:
    """What the variable says now; a process that was forked has its own."""

    def read(self) -> None:
        values = json.loads(os.environ[VARIABLE])
        self.targets = values["targets"]  # names by module
        self.counts = values["counts"]  # folder with a file for each point, a byte for each of its calls; None: not yet
        self.run_dir = values["run_dir"]
        self.fault = values["fault"]  # {point, call (from 1), is_after, action}; None: calls are only counted


SETTINGS = Settings()


def count(point: str) -> int:
    """-> how often the point was reached by now, this time included."""
    descriptor = os.open(os.path.join(SETTINGS.counts, point), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, b".")
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    finally:
        os.close(descriptor)


def act() -> None:
    with open(os.path.join(SETTINGS.counts, "reached"), "a") as file:  # flushed by closing: the next line may be the last
        file.write(f"{os.getpid()}\n")
    if SETTINGS.fault["action"] == "kill all":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(point: str, function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        fault = SETTINGS.fault
        is_here = count(point) == (fault["call"] if fault and fault["point"] == point else None)
        if is_here and not fault["is_after"]:
            act()
        result = function(*args, **kwargs)
        if is_here:
            act()
        return result

    return wrapper


class Finder:
    """Finds the modules that have points, and wraps those as soon as the module was executed."""

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        targets = SETTINGS.targets.get(name)
        spec = PathFinder.find_spec(name, path) if targets else None
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module) -> None:
                execute(module)
                for target in targets:
                    wrap_in(module, target)

            spec.loader.exec_module = exec_module
        return spec


def wrap_in(module, target: str) -> None:
    *owners, attribute = target.split(".")
    owner = functools.reduce(getattr, owners, module)
    setattr(owner, attribute, wrap(target, getattr(owner, attribute)))


def wrap_rename(rename):
    """Renames inside the run directory, as points named after what is renamed."""

    @functools.wraps(rename)
    def wrapper(source, target, **kwargs):
        inside = os.path.relpath(os.fspath(target), SETTINGS.run_dir)
        if inside.startswith(".."):
            return rename(source, target, **kwargs)
        folder = inside.split(os.sep)[0]
        name = "plan work" if folder.startswith(".plan.") else folder
        return wrap(f"rename {name}", rename)(source, target, **kwargs)

    return wrapper


SETTINGS.read()
sys.meta_path.insert(0, Finder())
os.replace, os.rename = wrap_rename(os.replace), wrap_rename(os.rename)
