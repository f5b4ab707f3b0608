"""The simulation bites: break one rule in production's own text, and some seed finds it.

Each mutant is a copy of the package with one piece of text replaced, played in processes of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import rallypoint
from rallypoint.simulation.schedule import play

PACKAGE = Path(rallypoint.__file__).parent
SEEDS = 2000


@dataclass(frozen=True)
class Mutant:
    """A rule, and the change to a file of the core that breaks it."""

    name: str
    file: str
    text: str
    instead: str


MUTANTS = [
    Mutant(
        "no seal id check: a node takes every notice for its own",
        "node.py",
        "if view.world is None or said.seal_id != view.world.seal_id:",
        "if view.world is None:",
    ),
    Mutant(
        "no seal id check: every join of a member withdraws it",
        "joining.py",
        "if said.seat is None or said.seat.seal_id != world.seal_id:",
        "if False:",
    ),
    Mutant(
        "no fencing: who was given up never learns it",
        "joining.py",
        "tell(node.id, Fenced(seat.seal_id, why)), why)",
        "(), why)",
    ),
    Mutant(
        "no fencing: an announcement of a lost world is let pass",
        "transition.py",
        "return Step(run, tell(node.id, Fenced(seat.seal_id, why)), why)\n    if world.seal_id",
        "return Step(run)\n    if world.seal_id",
    ),
    Mutant(
        "recovery without the hold",
        "recovery.py",
        "if now >= run.hold_ends:\n        return True",
        "return True",
    ),
    Mutant(
        "a late end of an old connection is honoured",
        "liveness.py",
        "if known is None or connection != known.connection or known.ended is not None:",
        "if known is None or known.ended is not None:",
    ),
    Mutant(
        "a spare counts as waiting",
        "transition.py",
        "return min(len(run.queue), run.bounds.max - world.size)",
        "return min(len(run.queue) + len(run.spares), run.bounds.max - world.size)",
    ),
    Mutant(
        "an early finisher breaks the world",
        "leaving.py",
        "if reason is Reason.FINISHED and ours and node_id in run.active:",
        "if False:",
    ),
    Mutant(
        "closed is not sticky: a node's word for it is ignored",
        "transition.py",
        "    if run.phase is Phase.RECOVERING:\n        return recovery.closed_before(run, said, now, mint)",
        "    if run.phase is Phase.RECOVERING:\n        return Step(run)",
    ),
    Mutant(
        "a round number is used again",
        "seal.py",
        "World(run.incarnation, run.round + 1,",
        "World(run.incarnation, max(run.round, 1),",
    ),
    Mutant(
        "a stall of the authority counts as silence of the nodes",
        "clock.py",
        "if gap <= 2 * LOOK_S:",
        "if True:",
    ),
    Mutant(
        "a node goes back to an older world",
        "node.py",
        "said.incarnation != view.incarnation or said.round <= view.world.round",
        "False",
    ),
    Mutant(
        "a lost count of newcomers is never repeated",
        "transition.py",
        "if said.waiting != run.told_waiting:",
        "if False:",
    ),
]


RARE = {"a lost count of newcomers is never repeated"}
"""What only one schedule in hundreds shows."""


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(m, id=m.name, marks=[pytest.mark.soak] if m.name in RARE else []) for m in MUTANTS],
)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    file = _copy(tmp_path) / "core" / mutant.file
    text = file.read_text(encoding="utf-8")
    assert text.count(mutant.text) == 1, f"{mutant.file} no longer says {mutant.text!r} once: mend this mutant"
    file.write_text(text.replace(mutant.text, mutant.instead), encoding="utf-8")
    told = _simulate(tmp_path)
    assert told.returncode == 1, f"nothing found in {SEEDS} seeds:\n{told.stdout}{told.stderr}"
    caught = re.search(r"^seed (\d+): (.*)$", told.stdout, re.MULTILINE)
    assert caught, told.stdout + told.stderr
    assert play(int(caught[1])).failure == "", "that seed fails without the mutation, too"
    print(f"{mutant.name}: seed {caught[1]}, {caught[2]}")


def test_without_a_mutation_nothing_is_caught(tmp_path: Path) -> None:
    _copy(tmp_path)
    told = _simulate(tmp_path, seeds=100)
    assert told.returncode == 0, told.stdout + told.stderr


def _copy(folder: Path) -> Path:
    return Path(shutil.copytree(PACKAGE, folder / "rallypoint", ignore=shutil.ignore_patterns("__pycache__")))


def _simulate(folder: Path, seeds: int = SEEDS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rallypoint.simulation", "run", "--seeds", f"0:{seeds}", "--jobs", "1", "--stop"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
