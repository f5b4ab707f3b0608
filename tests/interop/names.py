"""Which public names, signatures and attributes of torch's rendezvous ours does not have alike, and why.

`found()` compares the two; `REASONS` says why each difference stands.  The two must be about the same things.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from logging import Logger
from types import ModuleType
from typing import Any

from tests.interop.libraries import ROOTS

MODULES = (
    "api",
    "c10d_rendezvous_backend",
    "dynamic_rendezvous",
    "etcd_rendezvous",
    "etcd_rendezvous_backend",
    "etcd_server",
    "etcd_store",
    "registry",
    "static_tcp_rendezvous",
    "utils",
)

IMPORTED_BY_THE_PACKAGE = ("api", "dynamic_rendezvous", "registry", "utils")

MISSING = "missing"

REASONS: dict[str, str] = {
    "api.RendezvousHandlerRegistry()": "the shared registry looks for installed packages when a name is new",
    "dynamic_rendezvous.DynamicRendezvousHandler()": (
        "torch's takes its private node, state and executor, which ours does not have; both have `from_backend`"
    ),
    "etcd_store.EtcdStore()": "the keys of a store may expire, so that a run that everybody has left is forgotten",
    "etcd_store.EtcdStore.wait()": "it takes `timeout` as torch's other stores do, and the other name besides",
}

START = "<!-- names: written by tests/interop, from names.py -->"
END = "<!-- end of names -->"


def found() -> dict[str, tuple[str, str]]:
    """What differs: by its path, what torch has and what ours has instead."""
    differences: dict[str, tuple[str, str]] = {}
    for name in ("", *MODULES):
        module, ours = _module("torch", name), _module("rallypoint", name)
        for public, theirs in _public(module):
            path = f"{name}.{public}" if name else public
            if not hasattr(ours, public):
                differences[path] = ("there", MISSING)
            else:
                differences |= _compared(path, module, theirs, getattr(ours, public))
    return dict(sorted(differences.items()))


def table() -> str:
    """The differences as the page shows them."""
    lines = ["| what | torch 2.13 | rallypoint | why |", "|---|---|---|---|"]
    lines += [f"| `{what}` | {torch} | {ours} | {REASONS[what]} |" for what, (torch, ours) in found().items()]
    return "\n".join([START, *lines, END])


def _module(library: str, name: str) -> ModuleType:
    return importlib.import_module(f"{ROOTS[library]}.{name}" if name else ROOTS[library])


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a program can import from a module of torch's, but for what is the standard library's."""
    for name, value in list(vars(module).items()):
        home = value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
        is_standard = home.partition(".")[0] in sys.stdlib_module_names and not isinstance(value, Logger)
        # Importing all of them, as we do, makes every module of the package a name of the package.
        is_brought = name in MODULES and name not in IMPORTED_BY_THE_PACKAGE
        is_promised = name in getattr(module, "__all__", ())
        if not name.startswith("_") and (is_promised or not (is_standard or is_brought)):
            yield name, value


def _compared(path: str, module: ModuleType, theirs: Any, ours: Any) -> dict[str, tuple[str, str]]:
    """How two things of one name differ; those that are at home elsewhere are compared there."""
    home = str(getattr(theirs, "__module__", ""))
    if home == module.__name__ and inspect.isclass(theirs):
        return _compared_classes(path, theirs, ours)
    if home == module.__name__ and inspect.isfunction(theirs):
        return _compared_signatures(f"{path}()", theirs, ours)
    if home.startswith(ROOTS["torch"]) and hasattr(theirs, "__name__"):
        at_home = getattr(_module("rallypoint", home.removeprefix(ROOTS["torch"]).lstrip(".")), theirs.__name__)
        return {} if ours is at_home else {path: (f"that of `{home}`", "another")}
    if isinstance(theirs, str | int):
        return {} if ours == theirs else {path: (f"`{theirs!r}`", f"`{ours!r}`")}
    if inspect.isfunction(theirs):
        return _compared_signatures(f"{path}()", theirs, ours)
    if inspect.isclass(theirs):
        return {} if ours is theirs else {path: ("torch's", "another")}
    return {} if type(ours).__name__ == type(theirs).__name__ else {path: (type(theirs).__name__, type(ours).__name__)}


def _compared_classes(path: str, theirs: type, ours: type) -> dict[str, tuple[str, str]]:
    differences = _compared_signatures(f"{path}()", theirs, ours)
    names = {name: value for kind in _lineage(theirs) for name, value in vars(kind).items()}
    for name in sorted({name for name in names if not name.startswith("_")} | _attributes(theirs)):
        if not hasattr(ours, name) and name not in _attributes(ours):
            differences[f"{path}.{name}"] = ("there", MISSING)
        elif inspect.isroutine(getattr(theirs, name, None)):
            differences |= _compared_signatures(f"{path}.{name}()", getattr(theirs, name), getattr(ours, name))
    return differences


def _compared_signatures(path: str, theirs: Any, ours: Any) -> dict[str, tuple[str, str]]:
    torch, own = _signature(theirs), _signature(ours)
    return {} if torch == own else {path: (f"`{torch}`", f"`{own}`")}


def _signature(function: Any) -> str:
    """Names, kinds and defaults; what collects the rest is called by nobody, and types are another matter."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return "(unknown)"
    parameters = [
        parameter.replace(
            annotation=parameter.empty, name="rest" if parameter.kind is parameter.VAR_KEYWORD else parameter.name
        )
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _lineage(kind: type) -> list[type]:
    return [base for base in reversed(kind.__mro__) if base.__module__.startswith(tuple(ROOTS.values()))]


def _attributes(kind: type) -> set[str]:
    """The public attributes that the methods of a class give to an object."""
    names: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith((ROOTS["torch"], "rallypoint")):
            continue
        names |= {name for name in vars(base).get("__annotations__", {}) if not name.startswith("_")}
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        names |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
            and not node.attr.startswith("_")
        }
    return names
