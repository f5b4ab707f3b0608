"""Drives the core for one run: a test says what happens, then looks at what each node was told.

Every step is held to what is always true of a run (`check.complaints`), so each test that plays here checks that too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from rallypoint.core import transition
from rallypoint.core.changes import Step
from rallypoint.core.events import Event, Lost, TimePassed
from rallypoint.core.model import Phase, Run, World
from rallypoint.messages.notices import NodeNotice
from rallypoint.messages.requests import Announced, CloseAsked, Joined, Left, Seat, Standing
from rallypoint.messages.types import Bounds, Node, Reason, Settings
from rallypoint.ranking import POLICIES, RankPolicy
from rallypoint.server.run_state import spell_out
from simulation.check import complaints

S = TypeVar("S")


def member(node_id: str, **hints: Any) -> Node:
    """A node that is called as it is known: `a`, or `a.2` for the second process on host `a`."""
    return Node(id=node_id, name=hints.pop("name", node_id.partition(".")[0]), **hints)


class RunDriver:
    """A run, its clock, and what came of the last step."""

    def __init__(
        self,
        low: int = 2,
        high: int | None = None,
        *,
        run: Run | None = None,
        policies: Mapping[str, RankPolicy] = POLICIES,
        **settings: Any,
    ) -> None:
        self.bounds = Bounds(low, high or low)
        self.settings = Settings(**settings)
        self.policies = policies
        self.run = run or Run(run_id="run")
        self.now = 100.0
        self.minted = 0
        self.step = Step(self.run)

    # What happens.

    def take(self, event: Event) -> None:
        """One event."""
        self.settle(transition.step(self.run, event, self.now, self.mint(), self.policies))

    def join(self, *node_ids: str, seat: Seat | None = None, incarnation: str = "", **hints: Any) -> None:
        """Nodes ask for a place, one after another."""
        for node_id in node_ids:
            self.take(Joined(member(node_id, **hints), self.bounds, self.settings, incarnation, seat))

    def join_again(self, *node_ids: str) -> None:
        """Members ask for a place after the world that they had."""
        for node_id in node_ids:
            self.join(node_id, seat=self.seat(node_id), incarnation=self.run.incarnation)

    def announce(self, node_id: str, standing: Standing, **said: Any) -> None:
        """A node says how it stands, by default in the world that the run knows it in."""
        known = self.run.world is not None and node_id in self.run.ranks
        if "seat" not in said:
            said["seat"] = self.seat(node_id) if known else None
        said.setdefault("incarnation", self.run.incarnation)
        said.setdefault("bounds", self.bounds)
        self.take(Announced(member(node_id), standing=standing, settings=self.settings, **said))

    def leave(self, node_id: str, reason: Reason, why: str = "") -> None:
        """A node leaves for good; a member speaks of its world."""
        seal_id = self.run.world.seal_id if self.run.world is not None else ""
        self.take(Left(node_id, reason, seal_id, why))

    def finish(self, *node_ids: str) -> None:
        """Members have done their work."""
        for node_id in node_ids:
            self.leave(node_id, Reason.FINISHED)

    def lose(self, *node_ids: str) -> None:
        """The server gives nodes up."""
        for node_id in node_ids:
            self.take(Lost(node_id, "it fell silent"))

    def close(self, by: str = "somebody", **asked: Any) -> None:
        """Somebody closes the run."""
        self.take(CloseAsked(by, **asked))

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.take(TimePassed())

    def mint(self) -> str:
        """A text that was never given before."""
        self.minted += 1
        return str(self.minted)

    def settle(self, step: Step) -> None:
        """Look at a step and go on from it."""
        wrong = list(complaints(step.run))
        assert not wrong, f"{wrong} after: {step.why}"
        self.step, self.run = step, step.run

    # What came of it.

    @property
    def phase(self) -> Phase:
        """Where the run stands."""
        return self.run.phase

    @property
    def why(self) -> str:
        """The reason of the last step."""
        return self.step.why

    @property
    def world(self) -> World:
        """The current world."""
        assert self.run.current is not None, f"the run is {self.run.phase.value}: {self.why}"
        return self.run.current

    @property
    def ranked(self) -> list[str]:
        """The ids of the members of the current world, by rank."""
        return [node.id for node in self.world.members]

    def seat(self, node_id: str) -> Seat:
        """A node's place in the last world."""
        world = self.run.world
        assert world is not None, "nothing was sealed yet"
        return Seat(world.round, world.seal_id, world.size, self.run.ranks[node_id])

    def heard(self, node_id: str) -> list[NodeNotice]:
        """What a node was told in the last step."""
        return [what for to, what in self.sends if to == node_id]

    @property
    def sends(self) -> list[tuple[str, NodeNotice]]:
        """What everybody was told in the last step."""
        return [sent for notice in self.step.notices for sent in spell_out(notice)]

    def answer(self, node_id: str, kind: type[S]) -> S:
        """The last that a node was told in the last step, which must be of this kind."""
        heard = self.heard(node_id)
        assert heard, f"{node_id} was told nothing: {self.why}"
        assert isinstance(heard[-1], kind), f"{node_id} was told {heard[-1]}"
        return heard[-1]

    def situation(self) -> str:
        """Where the run stands, in words."""
        return transition.situation(self.run, self.now)


def sealed(low: int = 2, high: int | None = None, *, members: str = "ab", **settings: Any) -> RunDriver:
    """A driver with a world of these members, sealed a moment ago."""
    driver = RunDriver(low, high, **settings)
    driver.join(*members)
    if driver.phase is not Phase.SEALED:
        driver.wait(driver.settings.last_call_s)
    assert sorted(driver.ranked) == sorted(members), f"the world is {driver.ranked}: {driver.why}"
    return driver
