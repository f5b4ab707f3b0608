"""What the documents show is what the code says."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends import etcd_v3, fixed
from rallypoint.backends.options import Option
from rallypoint.core.model import PHASE_CHANGES

ROOT = Path(__file__).resolve().parents[2]


def test_the_picture_of_the_phases_is_the_one_the_core_draws(rewrite: bool) -> None:
    page = ROOT / "docs" / "rules.md"
    text = page.read_text(encoding="utf-8")
    lines = [
        "stateDiagram-v2",
        "    [*] --> recovering: a server starts",
        "    [*] --> gathering: it has been up for long",
    ]
    lines += [f"    {a.value} --> {b.value}: {why}" for (a, b), why in PHASE_CHANGES.items()]
    drawn = "\n".join(["```mermaid", *lines, "```"])
    if rewrite:
        page.write_text(re.sub(r"```mermaid\n.*?\n```", drawn, text, flags=re.DOTALL), encoding="utf-8")
    assert drawn in page.read_text(encoding="utf-8"), "the picture is old: pytest --rewrite draws it anew"


def test_the_page_on_the_architecture_names_what_there_is() -> None:
    """Files and folders, and the functions and classes that it says are in them."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = dict.fromkeys(re.findall(r"(?<![\w/])((?:[a-z_]+/)*[a-z_0-9]+\.py)(?::? ((?:\w+\.)?\w+)(?:\(\)|`))?", text))
    missing = [" ".join(name) for name in named if not _is_there(*name)]
    folders = re.findall(r"`((?:[a-z_0-9]+/)+)`", text)
    assert missing + [folder for folder in folders if not _found(folder)] == []
    assert len(named) > 20, "the names are written in another way now"


@pytest.mark.parametrize(
    ("question", "function"),
    [
        ("Where is a loss decided?", "`core/leaving.py: lost()`"),
        ("Where does a new register go?", "`location/register.py: Register`"),
        ("Why does a seal wait?", "`core/sealing.py: decide()`"),
        ("How do I run one failing seed?", "`simulation/__main__.py: main()`"),
    ],
)
def test_the_page_on_the_architecture_answers_what_newcomers_ask(question: str, function: str) -> None:
    """The test above finds what it names."""
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (answer,) = re.findall(rf"^\| {re.escape(question)} \| (.*) \|$", page, flags=re.MULTILINE)
    assert function in answer


def test_the_command_for_one_seed_plays_that_seed_alone() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (seeds,) = re.findall(r"`make simulate SEEDS=([\d:]+)`", page)
    command = [sys.executable, "-m", "simulation", "run", "--seeds", seeds, "--jobs", "1"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "1 passed, 0 failed"


def test_the_picture_of_the_layers_is_the_one_that_is_checked() -> None:
    """Row by row; what is not written yet stands in parentheses in the settings, and not in the picture."""
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition('id = "layers"')[2]
    checked = re.findall(r'"(.+)",', settings.partition("layers = [")[2].partition("]")[0])
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## The layers")[2]
    drawn = [re.split(r" {2,}", row.strip())[0] for row in page.split("```")[1].strip("\n").splitlines()]
    written = [re.sub(r" \| \(\w+\)|\(\w+\) \| ", "", row) for row in checked if row != "__main__"]
    assert drawn == written


def test_the_glossary_says_where_each_word_lives() -> None:
    rows = re.findall(
        r"^\| ([a-z ]+) \| .* \| `([\w/.]+)` \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 20
    assert [word for word, path in rows if not (ROOT / "src" / "rallypoint" / path).exists()] == []


def _found(name: str) -> list[Path]:
    """Where a file or folder is that the page names: below the package, beside it, or in the folder of its row."""
    package = ROOT / "src" / "rallypoint"
    return [path for path in (package / name, ROOT / name) if path.exists()] or sorted(package.glob(f"*/{name}"))


def _is_there(file: str, name: str) -> bool:
    sources = [path.read_text(encoding="utf-8") for path in _found(file) or sorted(ROOT.glob(f"simulation/{file}"))]
    wanted = name.split(".") if name else []
    return any(all(re.search(rf"(?:def|class) {part}\b", source) for part in wanted) for source in sources)


def test_the_example_in_the_readme_prints_what_it_says() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    example = example.replace("29400", str(port))
    told = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["0 1 b'hello'", "False", "2"]


@pytest.mark.parametrize(("page", "options"), [("server.md", fixed.OPTIONS), ("etcd-v3.md", etcd_v3.OPTIONS)])
def test_every_option_of_a_backend_stands_in_its_document(page: str, options: tuple[Option[Any], ...]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [option.name for option in options if f"`{option.name}`" not in text] == []
