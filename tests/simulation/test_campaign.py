"""Ten thousand schedules in `make test`, fewer otherwise: every invariant holds in each, on time that other tests leave over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rallypoint
import simulation
from simulation.__main__ import main
from tests.support.account import SECTION

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(Path(package.__path__[0]).parent) for package in (simulation, rallypoint)),
}


def test_every_invariant_holds_in_every_schedule_and_none_is_too_easy(
    pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    seeds = pytestconfig.getoption("--seeds")
    run = subprocess.run(
        ["nice", "-n", "19", sys.executable, "-m", "simulation", "run", "--seeds", seeds],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    record_property(SECTION, f"simulated schedules {seeds}\n{run.stdout}")


@pytest.mark.parametrize("seeds", ["a:b", "5:5", "x"])
def test_seeds_that_are_no_range_are_refused_in_words(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--seeds", seeds])
    assert "seeds" in capsys.readouterr().err
