"""What the documents show is what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rallypoint.core.phases import diagram

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
    told = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True).stdout
    assert "node1 founded the run for 2:4 nodes" in told
    assert told.splitlines()[-1] == "2 of at most 4 nodes are here (node1, node2); the last call ends in 29.0 s"
