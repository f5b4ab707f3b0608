"""What the metadata says is what the package has: one version, and extras that name only what code imports."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import rallypoint

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
MODULE_OF = {
    "cryptography": "cryptography",
    "grpcio": "grpc",
    "python-etcd": "etcd",
    "msgspec": "msgspec",
    "rich": "rich",
    "torch": "torch",
}
"""The module that a distribution brings; one that is missing here is a new dependency: say what it is imported as."""
NOT_FOR_USERS = ("dev", "test", "bench")


def test_the_version_stands_in_one_place() -> None:
    holders = [
        path.relative_to(ROOT).as_posix()
        for path in [ROOT / "pyproject.toml", *sorted((ROOT / "src").rglob("*.py"))]
        if f'"{rallypoint.__version__}"' in path.read_text(encoding="utf-8")
    ]
    assert holders == ["src/rallypoint/__init__.py"]


def test_every_dependency_of_users_is_imported_by_the_package() -> None:
    imported = {name for path in (ROOT / "src").rglob("*.py") for name in _imports(path)}
    wanted = _distributions()
    assert wanted >= {"msgspec", "rich", "grpcio"}, "the settings were not understood"
    assert [name for name in sorted(wanted) if MODULE_OF.get(name) not in imported] == []


def test_the_metadata_has_the_addresses_that_people_look_for() -> None:
    section = SETTINGS.partition("[project.urls]\n")[2].partition("\n[")[0]
    names = re.findall(r'^(\w+) = "https://', section, flags=re.MULTILINE)
    assert set(names) >= {"Homepage", "Documentation", "Changelog", "Issues", "Source"}


def _distributions() -> set[str]:
    """The names of what the package and its extras for users require."""
    project = re.findall(r"^dependencies = \[(.*?)\]", SETTINGS, flags=re.MULTILINE | re.DOTALL)
    extras = SETTINGS.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    for name, required in re.findall(r"^([\w-]+) = \[(.*?)\]", extras, flags=re.MULTILINE | re.DOTALL):
        if name not in NOT_FOR_USERS:
            project.append(required)
    return {name for text in project for name in re.findall(r'"([\w-]+)[>=<~]', text)}


def _imports(path: Path) -> set[str]:
    """The packages that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found
