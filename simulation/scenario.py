"""Scenario files: commands and, below each, what they led to.  Text in, golden text out.

    # Rule 4: at once when max are present.
    cluster bounds=2
    ----

    start a
    ----
       0.001 server: a founded the run for 2 nodes

Lines before the first command that begin with `#` are the file's title.  `cluster` comes first and may set any number
from `Settings` by its name, `seed=N`, `durable`, `elected` (by a register) and `leases` (of that register).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from rallypoint.messages.types import Settings
from simulation.cluster import Cluster
from simulation.commands import parse_bounds, perform
from simulation.node_invariants import BrokenInvariantError
from simulation.schedule import SETTINGS, Setup

RULER = "----"


@dataclass
class Scenario:
    """A title, and commands with their expected output."""

    title: list[str] = field(default_factory=list)
    steps: list[tuple[str, list[str]]] = field(default_factory=list)

    def __str__(self) -> str:
        blocks = ["\n".join(self.title)] if self.title else []
        blocks += ["\n".join([command, RULER, *output]) for command, output in self.steps]
        return "\n\n".join(blocks) + "\n"


def parse(text: str) -> Scenario:
    """Read a scenario file."""
    scenario = Scenario()
    for block in filter(None, (block.strip("\n") for block in text.split("\n\n"))):
        lines = block.splitlines()
        if all(line.startswith("#") for line in lines):
            scenario.title += lines
            continue
        if len(lines) < 2 or lines[1] != RULER:
            raise ValueError(f"a command is followed by {RULER!r}, unlike {lines[0]!r}")
        scenario.steps.append((lines[0], lines[2:]))
    if not scenario.steps or not scenario.steps[0][0].startswith("cluster "):
        raise ValueError("the first command of a scenario is `cluster bounds=MIN:MAX …`")
    return scenario


def play(scenario: Scenario) -> Scenario:
    """The same scenario with what really happens below each command."""
    first, *commands = [command for command, _ in scenario.steps]
    cluster = parse_setup(first).cluster(talkative=True)
    played = Scenario(scenario.title, [(first, [])])
    for command in commands:
        played.steps.append((command, _output(cluster, command)))
        if played.steps[-1][1][-1:] and played.steps[-1][1][-1].startswith("INVARIANT"):
            break
    return played


def parse_setup(line: str) -> Setup:
    """What a `cluster` line asks for."""
    given = dict(word.partition("=")[::2] for word in line.split()[1:])
    setup = Setup(int(given.pop("seed", "0")), parse_bounds(given.pop("bounds")), Settings())
    setup.durable = given.pop("durable", None) is not None
    setup.elected = given.pop("elected", None) is not None
    setup.leases = given.pop("leases", None) is not None
    if given.pop("brisk", None) is not None:
        setup.settings = SETTINGS
    setup.settings = msgspec.convert({**msgspec.to_builtins(setup.settings), **given}, Settings, strict=False)
    return setup


def from_schedule(title: str, setup: Setup, commands: list[str]) -> Scenario:
    """A schedule that was played, as a scenario."""
    durable = " durable" if setup.durable else ""
    kind = " elected" * setup.elected + " leases" * setup.leases
    first = f"cluster bounds={setup.bounds} seed={setup.seed} brisk{durable}{kind}"
    return play(Scenario([f"# {title}"], [(first, []), *((command, []) for command in commands)]))


def _output(cluster: Cluster, command: str) -> list[str]:
    del cluster.log[:]
    try:
        perform(cluster, command)
    except BrokenInvariantError as exc:
        return [*cluster.log, f"INVARIANT {exc}"]
    return list(cluster.log)
