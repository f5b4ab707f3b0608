"""What the documents show is what the code says."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rallypoint.core.phases import diagram
from rallypoint.elastic import etcd_v3_handler, rallypoint_handler
from rallypoint.elastic.options import Option

ROOT = Path(__file__).resolve().parents[2]


def test_the_picture_of_the_phases_is_the_one_the_core_draws(rewrite: bool) -> None:
    page = ROOT / "docs" / "ARCHITECTURE.md"
    text = page.read_text(encoding="utf-8")
    drawn = f"```mermaid\n{diagram()}\n```"
    if rewrite:
        page.write_text(re.sub(r"```mermaid\n.*?\n```", drawn, text, flags=re.DOTALL), encoding="utf-8")
    assert drawn in page.read_text(encoding="utf-8"), "the picture is old: pytest --rewrite draws it anew"


def test_the_example_in_the_readme_prints_what_it_says() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    example = example.replace("29400", str(port))
    told = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["0 1 b'hello'", "False", "2"]


@pytest.mark.parametrize(
    ("page", "options"), [("server.md", rallypoint_handler.OPTIONS), ("etcd-v3.md", etcd_v3_handler.OPTIONS)]
)
def test_every_option_of_a_backend_stands_in_its_document(page: str, options: tuple[Option[Any], ...]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [option.name for option in options if f"`{option.name}`" not in text] == []
