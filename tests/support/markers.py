"""What a test needs beside Python, read from what its file imports: the markers `etcd`, `torch` and `processes`; and `check`.

Imports are followed through the helpers in tests/.  Files whose names end in `kinds` list many things that one test runs on, so they
are not followed: there, what the test is run on has the need in its name.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDS = ("etcd", "torch", "processes")
_ETCD = ROOT / "tests" / "support" / "etcd_servers.py"
_TORCHRUN = ROOT / "tests" / "torchrun"
"""Its tests run torchrun, and import nothing of it."""
_CHECK = (ROOT / "tests" / "core", ROOT / "tests" / "project")
_BEYOND_CHECK = {"test_fuzz.py", "test_layers.py", "test_pains.py"}
"""One takes a minute, one copies the tree dozens of times, one collects tests, which takes what only `make test` installs."""
_STARTING_PROCESSES = {"multiprocessing", "subprocess"}


def mark(item: pytest.Item) -> None:
    """Give a test the markers of what it needs, and `check` if it is one of the quick tests of `make check`."""
    if any(map(item.path.is_relative_to, _CHECK)) and item.path.name not in _BEYOND_CHECK:
        item.add_marker("check")
    parameters = item.name.partition("[")[2].lower()
    needs = {need for need in ("etcd", "torch") if need in parameters} | needs_of(item.path)
    for need in sorted(needs):
        item.add_marker(need)


@functools.cache
def needs_of(path: Path) -> frozenset[str]:
    """What all tests of a file need, by its imports and those of the conftest.py files above it."""
    folders = [folder for folder in path.parents if folder.is_relative_to(ROOT / "tests")]
    fixtures = [folder / "conftest.py" for folder in folders if folder != ROOT / "tests"]
    needs = {need for file in [path, *fixtures] if file.exists() for need in _needs(file, set())}
    return frozenset(needs | ({"torch"} if path.is_relative_to(_TORCHRUN) else set()))


def _needs(path: Path, seen: set[Path]) -> Iterator[str]:
    seen.add(path)
    if path == _ETCD:
        yield "etcd"
        return
    for module in _imports(path):
        package = module.partition(".")[0]
        if package == "torch":
            yield "torch"
        elif package in _STARTING_PROCESSES:
            yield "processes"
        elif package == "tests":
            helper = (ROOT / module.replace(".", "/")).with_suffix(".py")
            if helper.exists() and helper not in seen and not helper.stem.endswith("kinds"):
                yield from _needs(helper, seen)


@functools.cache
def _imports(path: Path) -> frozenset[str]:
    """The modules that a file imports anywhere in it; `from package import module` names both."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)
