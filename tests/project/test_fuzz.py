"""Everything that reads bytes of strangers is fuzzed for a minute in all; `make fuzz` does it for longer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.__main__ import CORPUS, NAMES
from fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
SECONDS = 60 // len(NAMES)


def test_every_target_has_a_corpus() -> None:
    assert tuple(TARGETS) == NAMES
    assert {folder.name for folder in CORPUS.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found(name: str) -> None:
    command = [sys.executable, "-m", "fuzz", name, "--seconds", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=10 * SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert executed is not None
    assert int(executed[1]) > 100, "it hardly ran"


def test_a_find_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuzz import __main__ as program

    def broken(data: bytes) -> None:
        raise KeyError("a fault")

    monkeypatch.setitem(TARGETS, "endpoint", broken)
    monkeypatch.setattr(sys, "argv", ["fuzz", "endpoint", "--seconds", "5", "--blind"])
    with pytest.raises(KeyError, match="a fault"):
        program.main()
