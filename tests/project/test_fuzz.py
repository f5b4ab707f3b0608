"""Everything that reads bytes of unknown callers is fuzzed for some seconds, always alike; the soaks and `make fuzz` search for longer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.__main__ import CORPUS, NAMES
from fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
RUNS = {
    "server": 5_000,
    "frames": 20_000,
    "messages": 150_000,
    "records": 225_000,
    "store": 10_000,
    "secret": 5_000,
    "endpoint": 125_000,
}


def test_every_target_has_a_corpus() -> None:
    assert tuple(TARGETS) == NAMES
    assert {folder.name for folder in CORPUS.iterdir()} == set(NAMES)


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found(name: str, times: int) -> None:
    runs = times * RUNS[name]
    command = [sys.executable, "-m", "fuzz", name, "--runs", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert executed is not None
    assert int(executed[1]) >= runs


def test_a_find_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuzz import __main__ as program

    def broken(data: bytes) -> None:
        raise KeyError("a fault")

    monkeypatch.setitem(TARGETS, "endpoint", broken)
    monkeypatch.setattr(sys, "argv", ["fuzz", "endpoint", "--seconds", "5", "--blind"])
    with pytest.raises(KeyError, match="a fault"):
        program.main()
