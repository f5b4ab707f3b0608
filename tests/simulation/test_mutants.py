"""The simulation bites: break one rule in production's own text, and some seed finds it.

Each mutant is a copy of the package with one piece of text replaced, played in processes of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import rallypoint
import simulation
from simulation.schedule import play

PACKAGE, SIMULATION = Path(rallypoint.__file__).parent, Path(simulation.__file__).parent
SEEDS = 2000


@dataclass(frozen=True)
class Mutant:
    """A rule, and the change to a file of the package that breaks it."""

    name: str
    file: str
    text: str
    instead: str
    complaint: str = ""
    """What the invariant says that is there for this rule."""


MUTANTS = [
    Mutant(
        "no seal id check: a node takes every notice for its own",
        "client/view.py",
        "if view.world is None or said.seal_id != view.world.seal_id:",
        "if view.world is None:",
    ),
    Mutant(
        "no seal id check: every join of a member withdraws it",
        "core/joining.py",
        "if said.seat is None or (said.seat.seal_id != world.seal_id and said.seat.round < world.round):",
        "if False:",
    ),
    Mutant(
        "no fencing: who was given up never learns it",
        "core/joining.py",
        "return fence(run, node, seat)",
        "return Step(run)",
    ),
    Mutant(
        "no fencing: an announcement of a lost world is let pass",
        "core/transition.py",
        "return joining.fence(run, node, seat)\n    if world.seal_id",
        "return Step(run)\n    if world.seal_id",
    ),
    Mutant(
        "recovery without the hold",
        "core/recovery.py",
        "if now >= run.hold_ends:\n        return True",
        "return True",
    ),
    Mutant(
        "a spare counts as waiting",
        "core/transition.py",
        "return min(len(run.queue), run.bounds.max - world.size)",
        "return min(len(run.queue) + len(run.spares), run.bounds.max - world.size)",
    ),
    Mutant(
        "an early finisher breaks the world",
        "core/leaving.py",
        "if reason is Reason.FINISHED and ours and node_id in run.active:",
        "if False:",
    ),
    Mutant(
        "closed is not sticky: a node's word for it is ignored",
        "core/transition.py",
        "    if run.phase is Phase.RECOVERING:\n        return recovery.closed_before(run, said, now)",
        "    if run.phase is Phase.RECOVERING:\n        return Step(run)",
    ),
    Mutant(
        "a round number is used again",
        "core/sealing.py",
        "World(run.incarnation, run.round + 1,",
        "World(run.incarnation, max(run.round, 1),",
    ),
    Mutant(
        "a stall of the server counts as silence of the nodes",
        "server/clock.py",
        "if gap <= 2 * LOOK_S:",
        "if True:",
    ),
    Mutant(
        "a node goes back to an older world",
        "client/view.py",
        "said.incarnation != view.incarnation or said.round <= view.world.round",
        "False",
    ),
    Mutant(
        "a lost count of newcomers is never repeated",
        "core/transition.py",
        "if said.waiting != run.told_waiting:",
        "if False:",
    ),
    Mutant(
        "tell before record",
        "server/runs.py",
        "                hosted.withheld.append(applied)\n",
        "                hosted.withheld.append(applied)\n                yield applied\n",
    ),
    Mutant(
        "two seals in one write",
        "server/runs.py",
        "                if output.durability is Durability.SEAL_OR_CLOSE:\n                    break\n",
        "",
    ),
    Mutant(
        "a guard that does not change with the claim",
        "../simulation/memory_register.py",
        "if token != self._token:\n                return None",
        "if (token is None) != (self._value is None):\n                return None",
    ),
    Mutant(
        "an unguarded removal of a claim",
        "../simulation/memory_register.py",
        "if token != self._token:\n                return None",
        "if token != self._token and b'\"claim\"' in value:\n                return None",
    ),
    Mutant(
        "a lease as proof",
        "location/held_claim.py",
        "        if shown.epoch > self.record.epoch and not ours:\n            return True\n",
        "        if shown.epoch > self.record.epoch and not ours:\n            return not self._has_lease\n",
    ),
    Mutant(
        "a finish unrecorded",
        "core/leaving.py",
        "told_of = Step(run, (), told, Durability.FINISH)",
        "told_of = Step(run, (), told)",
    ),
    Mutant(
        "a lower epoch accepted",
        "client/session.py",
        "is_lower = serving.incarnation == known.incarnation and 0 < serving.epoch < known.epoch",
        "is_lower = False",
    ),
    Mutant(
        "a wrong secret as final",
        "client/session.py",
        "if not token.is_proof(challenge.proof, Side.SERVER, *named):",
        "if not token.is_proof(challenge.proof, Side.SERVER, *named):\n"
        '            self.goodbye = protocol.Goodbye("another secret", final=True)',
    ),
    Mutant(
        "the hold counted from process start",
        "location/election.py",
        "restored(record, now, hold_s, predecessor)",
        "restored(record, 0.0, hold_s, predecessor)",
    ),
    Mutant(
        "a takeover forgets who has finished",
        "core/recovery.py",
        "SortedMap.build({**gone, **finished}.items())",
        "SortedMap.build(gone.items())",
        complaint="have finished after the takeover",
    ),
    Mutant(
        "an acknowledgement that overtakes",
        "server/coordinator.py",
        "self._tell(self.runs.take(run_id, RunInput(None, None, caller, ask.number), now), effects)",
        "self._send(caller, protocol.frame(protocol.Done(ask.number, True)), effects)",
    ),
    Mutant(
        "a giving up is acknowledged before it is recorded",
        "server/coordinator.py",
        "        if isinstance(ask, protocol.AskHeard) and node_id:\n",
        "        hosted = self.runs.known.get(run_id)\n"
        "        leave = hosted.withheld[-1].taken.leave if hosted is not None and hosted.withheld else None\n"
        "        if leave is not None and leave.reason.value == 'gave up':\n"
        "            self._send(caller, protocol.frame(protocol.Done(ask.number, True)), effects)\n"
        "            return\n"
        "        if isinstance(ask, protocol.AskHeard) and node_id:\n",
        complaint="its giving up counts before that was recorded",
    ),
    Mutant(
        "staleness by the reader's own settings",
        "location/claiming.py",
        "stale = started - watched.resting_since > claim.rest_s",
        "stale = started - watched.resting_since > 1.0",
    ),
    Mutant(
        "a leaver that claims after its acknowledgement",
        "location/election.py",
        "if candidate.leaving and not candidate.delivers:",
        "if False:",
    ),
    Mutant(
        "how the last incarnation ended is dropped",
        "location/claiming.py",
        'incarnation, last = "", EndedIncarnation(record.incarnation, outcome.ending, outcome.why)',
        'incarnation, last = "", None',
    ),
    Mutant(
        "a paused server goes on before it knows that its claim stands",
        "server/coordinator.py",
        "            self.runs.suspend(now)\n",
        "",
    ),
    Mutant(
        "the end of an incarnation is told before it is recorded",
        "core/recovery.py",
        "return replace(anew, durability=Durability.SEAL_OR_CLOSE)",
        "return anew",
    ),
    Mutant(
        "a server that most nodes cannot reach keeps its claim",
        "server/runs.py",
        "if self.elected and taken.is_time and",
        "if False and",
    ),
    Mutant(
        "a server that most nodes cannot reach claims again before the others can",
        "location/held_claim.py",
        "now + record.settings.reconnect_backoff_s + OTHERS_FIRST_S",
        "now",
    ),
    Mutant(
        "a server whose nodes nobody else serves does not claim again",
        "location/held_claim.py",
        "return self._read() if now >= self._claims_again_at else None",
        "return None",
    ),
]


RARE = {"a lost count of newcomers is never repeated"}
"""What only one schedule in hundreds shows."""


CAUGHT = Path(__file__).with_name("mutants.json")
"""The seed that caught each mutant last: there the quick search begins.  `--rewrite` writes it anew, one test at a time."""


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(m, id=m.name, marks=[pytest.mark.soak] if m.name in RARE else []) for m in MUTANTS],
)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path, rewrite: bool) -> None:
    seeds: dict[str, int] = json.loads(CAUGHT.read_text(encoding="utf-8"))
    seed = _catch(mutant, tmp_path, 0 if rewrite else seeds.get(mutant.name, 0))
    if rewrite:
        text = json.dumps({**seeds, mutant.name: seed}, indent=2, sort_keys=True)
        CAUGHT.write_text(f"{text}\n", encoding="utf-8")


@pytest.mark.soak
@pytest.mark.parametrize("mutant", [pytest.param(m, id=m.name) for m in MUTANTS if m.name not in RARE])
def test_a_mutant_is_caught_from_the_first_seed_on(mutant: Mutant, tmp_path: Path) -> None:
    _catch(mutant, tmp_path, 0)


def _catch(mutant: Mutant, tmp_path: Path, first: int) -> int:
    """The seed, of those from the first one on, that catches a mutant."""
    file = _copy(tmp_path) / mutant.file
    text = file.read_text(encoding="utf-8")
    assert text.count(mutant.text) == 1, f"{mutant.file} no longer says {mutant.text!r} once: mend this mutant"
    file.write_text(text.replace(mutant.text, mutant.instead), encoding="utf-8")
    told = _simulate(tmp_path, first=first)
    assert told.returncode == 1, f"nothing found in {SEEDS} seeds:\n{told.stdout}{told.stderr}"
    caught = re.search(r"^seed (\d+): (.*)$", told.stdout, re.MULTILINE)
    assert caught, told.stdout + told.stderr
    assert mutant.complaint in caught[2]
    assert play(int(caught[1])).failure == "", "that seed fails without the mutation, too"
    print(f"{mutant.name}: seed {caught[1]}, {caught[2]}")
    return int(caught[1])


def test_without_a_mutation_nothing_is_caught(tmp_path: Path) -> None:
    _copy(tmp_path)
    told = _simulate(tmp_path, seeds=20)
    assert told.returncode == 0, told.stdout + told.stderr


def _copy(folder: Path) -> Path:
    for package in (SIMULATION, PACKAGE):
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / PACKAGE.name


def _simulate(folder: Path, seeds: int = SEEDS, first: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "simulation",
            "run",
            "--seeds",
            f"{first}:{first + seeds}",
            "--jobs",
            "1",
            "--stop",
        ],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
