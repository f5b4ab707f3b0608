"""Everything that reads bytes of strangers is fuzzed for about a minute, always alike; `make fuzz` searches for longer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.__main__ import CORPUS, NAMES
from fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
RUNS = {"server": 20_000, "messages": 600_000, "records": 900_000, "store": 40_000, "endpoint": 500_000}


def test_every_target_has_a_corpus() -> None:
    assert tuple(TARGETS) == NAMES
    assert {folder.name for folder in CORPUS.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found(name: str) -> None:
    command = [sys.executable, "-m", "fuzz", name, "--runs", str(RUNS[name])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert executed is not None
    assert int(executed[1]) >= RUNS[name]


def test_a_find_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuzz import __main__ as program

    def broken(data: bytes) -> None:
        raise KeyError("a fault")

    monkeypatch.setitem(TARGETS, "endpoint", broken)
    monkeypatch.setattr(sys, "argv", ["fuzz", "endpoint", "--seconds", "5", "--blind"])
    with pytest.raises(KeyError, match="a fault"):
        program.main()
