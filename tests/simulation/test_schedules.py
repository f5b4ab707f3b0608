"""Seeded schedules: what they are made of, and that a seed is reproducible; `test_campaign` plays very many of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import simulation
from rallypoint.sorted_map import SortedMap
from simulation import scenario
from simulation.__main__ import main
from simulation.schedule import play

SIMULATION = Path(simulation.__file__).parent


def test_a_seed_is_the_same_world_every_time() -> None:
    first, second = play(77), play(77)
    assert first.commands == second.commands
    assert first.events == second.events
    told = [str(scenario.from_schedule("", first.setup, first.commands)) for _ in range(2)]
    assert told[0] == told[1]


def test_a_seed_becomes_a_scenario_file_by_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "seed-77.txt"
    assert main(["scenario", "77", "--to", str(file)]) == 0
    assert "every invariant held" in capsys.readouterr().out
    assert main(["play", str(file)]) == 0
    steps = [command for command, _ in scenario.parse(file.read_text(encoding="utf-8")).steps]
    assert steps[1:] == play(77).commands


def test_a_failing_seed_is_named_with_the_command_that_shows_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rallypoint.core.transition._tell_waiting", _promise_a_newcomer)
    assert main(["run", "--seeds", "0:4", "--jobs", "1", "--stop"]) == 1
    told = capsys.readouterr().out
    assert "seed " in told
    assert "python -m simulation scenario" in told


def _promise_a_newcomer(run: object, now: float) -> object:
    """A transition gone wrong: members always hear that somebody waits."""
    from rallypoint.core.changes import Notice, Step, change
    from rallypoint.core.model import Run
    from rallypoint.messages.notices import WaitingCount

    assert isinstance(run, Run)
    assert run.current is not None
    everyone: tuple[SortedMap[str, int], ...] = (run.active,)
    return Step(change(run, told_waiting=1), (Notice(everyone, WaitingCount(run.current.seal_id, 1)),))


def test_a_scenario_that_cannot_be_read_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "empty.txt"
    file.touch()
    assert main(["play", str(file)]) == 2
    assert "the first command" in capsys.readouterr().err


def test_the_simulation_decides_nothing_itself() -> None:
    """It takes decisions, framing and client logic from production: it defines none, and patches none."""
    imported: set[str] = set()
    for file in SIMULATION.glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for item in ast.walk(tree):
            if isinstance(item, ast.ImportFrom) and item.module:
                imported.update(f"{item.module}.{alias.name}" for alias in item.names)
            assert not isinstance(item, ast.Match)
            if isinstance(item, ast.Call) and isinstance(item.func, ast.Name):
                # Making a notice, a step or a run is deciding.
                assert item.func.id not in {"Placed", "Broken", "Fenced", "RunClosed", "Step", "Run", "Notice"}, file
    for needed in ("server.run_state", "client.view", "record"):
        assert f"rallypoint.{needed}" in imported


def test_the_demo_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--pace", "0"]) == 0
    told = capsys.readouterr().out
    assert "The run closed well." in told
    assert "all 4 ranks of round 2 still hold it" in told
