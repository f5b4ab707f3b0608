"""A scene: one medium, and nodes that meet through it.  Processes play in one test after another, unless they are killed."""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from itertools import count
from typing import Any, TypeVar

from tests.conformance.backend_kinds import CANNOT, KEEPS_RANKS, TOLD_AT_ONCE, UNTOLD, Kind, Medium
from tests.support.node_processes import Actor, Event
from tests.support.waiting import PATIENCE_S

Flavour = tuple[str, ...]
RESERVE = 2
AT_ONCE_S = 15.0
"""On a busy machine; what is at once comes after no time-out, and those are made longer where it matters."""

_runs = count(1)


class Part(ABC):
    """A node of a run, on any backend: what it is told, and what it says."""

    name: str

    @abstractmethod
    def order(self, do: str, **arguments: Any) -> None:
        """Tell it to do something."""

    @abstractmethod
    def expect(self, kind: str, timeout_s: float = PATIENCE_S, **wanted: Any) -> Event:
        """Wait for what it says."""

    def ask(self, do: str, answer: str, **arguments: Any) -> Event:
        self.order(do, **arguments)
        return self.expect(answer)

    def join(self) -> None:
        self.order("join")

    def placed(self, **wanted: Any) -> Event:
        return self.expect("placed", **wanted)

    def changed(self) -> Event:
        return self.expect("changed")

    def failed(self, kind: str) -> str:
        """Wait for this type of error; its text."""
        return str(self.expect("error", type=kind)["text"])

    def waiting(self) -> int:
        return int(self.ask("waiting", "waiting")["count"])

    def is_closed(self) -> bool:
        return bool(self.ask("closed", "closed")["closed"])

    def serves(self) -> bool:
        """Whether its process serves the world that it is in."""
        return bool(self.ask("serving", "serving")["here"])


P = TypeVar("P", bound=Part)


class Player(Actor, Part):
    """A process that plays a node."""

    shows_stacks = True

    def __init__(self, flavour: Flavour) -> None:
        Actor.__init__(self, "tests.conformance.node_program", *flavour)
        self.flavour = flavour
        self.name = ""
        self.is_ready = False

    def expect(self, kind: str, timeout_s: float = PATIENCE_S, **wanted: Any) -> Event:
        return super().expect(kind, timeout_s, **{"who": "", **wanted})

    def start_over(self, name: str) -> None:
        self.name = name
        if not self.is_ready:
            self.expect("ready")
            self.is_ready = True
        self.heard("")
        self.seen.clear()
        self.unclaimed.clear()

    def resets(self) -> bool:
        """Let go of the node that it played; False where that does not work, and the process is of no more use."""
        self.order("reset")
        deadline = time.monotonic() + 10.0
        with suppress(queue.Empty, EOFError):
            while self._next(max(deadline - time.monotonic(), 0.001))["event"] != "reset":
                pass
            return True
        return False


class Twin(Part):
    """A second node in a player's process."""

    def __init__(self, player: Player, name: str) -> None:
        self.name = name
        self._player = player

    def order(self, do: str, **arguments: Any) -> None:
        self._player.order(do, who=self.name, **arguments)

    def expect(self, kind: str, timeout_s: float = PATIENCE_S, **wanted: Any) -> Event:
        return self._player.expect(kind, timeout_s, who=self.name, **wanted)


class Troupe:
    """The processes of a whole session, by what they have imported and which clock they have."""

    def __init__(self) -> None:
        self._idle: defaultdict[Flavour, list[Player]] = defaultdict(list)
        self._all: list[Player] = []

    def players(self, names: Sequence[str], flavour: Flavour) -> list[Player]:
        idle = self._idle[flavour]
        chosen = [idle.pop() if idle else self._start(flavour) for _ in names]
        # Whoever is killed is missed by the next test: others come in time, for torch takes seconds to import.
        while len(idle) < (RESERVE if "--skew" not in flavour else 0):
            idle.insert(0, self._start(flavour))
        for player, name in zip(chosen, names, strict=True):
            player.start_over(name)
        return chosen

    def _start(self, flavour: Flavour) -> Player:
        self._all.append(Player(flavour))
        return self._all[-1]

    def give_back(self, player: Player) -> None:
        if player.process.poll() is None:
            player.resume()
            if player.resets():
                self._idle[player.flavour].append(player)
            else:
                player.kill()

    def end(self) -> None:
        for player in self._all:
            player.kill()


class Scene:
    """What a test is given."""

    def __init__(self, name: str, kind: Kind, medium: Medium, troupe: Troupe) -> None:
        self.name, self.kind, self.medium = name, kind, medium
        self.run = f"run-{next(_runs)}"
        self._troupe = troupe
        self._players: list[Player] = []

    def nodes(
        self, *names: str, nodes: str | int = 2, run: str = "", skew_s: float = 0.0, **given: Any
    ) -> list[Player]:
        """Processes with a handler each, that have not joined yet."""
        flavour: Flavour = () if self.kind.with_torch else ("--without-torch",)
        if skew_s:
            flavour = (*flavour, "--skew", str(skew_s))
        players = self._troupe.players(names, flavour)
        self._players += players
        for player in players:
            self._open(player, nodes, run, given)
        for player in players:
            player.expect("opened")
        return players

    def twin(self, player: Player, name: str, *, nodes: str | int = 2, **given: Any) -> Twin:
        """A second node in the process of another one, that has not joined yet."""
        twin = Twin(player, name)
        self._open(twin, nodes, "", given)
        twin.expect("opened")
        return twin

    def _open(self, node: Part, nodes: str | int, run: str, given: dict[str, Any]) -> None:
        options = self.kind.named({**self.kind.options, "node_name": node.name, **given})
        node.order(
            "open",
            backend=self.kind.backend,
            endpoint=self.medium.endpoint,
            run=f"{self.run}{run}",
            nodes=str(nodes),
            options=options,
        )

    def world(self, *names: str, nodes: str | int = 2, run: str = "", **given: Any) -> list[Player]:
        """Nodes that have formed a world, by rank."""
        made = self.nodes(*names, nodes=nodes, run=run, **given)
        return self.meet(*made)

    def meet(self, *nodes: P, within_s: float = PATIENCE_S) -> list[P]:
        """Let them join; they come by rank, and are in one world that is theirs alone."""
        for node in nodes:
            node.join()
        return ranked(nodes, within_s=within_s)

    def away(self) -> AbstractContextManager[None]:
        return self.medium.away()

    def limit(self, what: str) -> str:
        """What the backend does instead, where this is something that it cannot do; else nothing."""
        return CANNOT[what].get(self.name, "")

    def long_silence(self) -> dict[str, Any]:
        """Options with so long a silence that on a busy machine too its end is not taken for `at once`."""
        silences = ("heartbeat_timeout", "lease_ttl")
        return {name: 2 * round(AT_ONCE_S) for name in silences if name in self.kind.options}

    def call_again(self, first: Player, *others: Player) -> None:
        """After a loss they are told, and join again.

        Where nobody is told, the first one joins all the same, because its workers have failed, and so calls the others.
        """
        if self.limit(TOLD_AT_ONCE) != UNTOLD:
            assert first.changed()["count"] >= 1
        first.join()
        for other in others:
            assert other.changed()["count"] >= 1
            other.join()

    def regrouped(self, *players: Player) -> None:
        """They are in one world, and the order in which they are given is that of their ranks, where ranks are kept."""
        by_rank = ranked(players)
        assert self.limit(KEEPS_RANKS) or by_rank == list(players)

    def end(self) -> None:
        for player in self._players:
            self._troupe.give_back(player)


def ranked(nodes: Sequence[P], size: int | None = None, *, within_s: float = PATIENCE_S) -> list[P]:
    """The nodes by rank, once all are placed in one world of this size; by default, in a world of theirs alone."""
    places = {node.name: node.expect("placed", within_s) for node in nodes}
    assert len({place["fence"] for place in places.values()}) == 1, places
    assert {place["size"] for place in places.values()} == {size or len(nodes)}, places
    assert len({place["rank"] for place in places.values()}) == len(nodes), places
    return sorted(nodes, key=lambda node: int(places[node.name]["rank"]))


def serving_first(nodes: Sequence[P]) -> list[P]:
    """The nodes with the one first whose process serves the world that they are in, where one does."""
    return sorted(nodes, key=lambda node: not node.serves())


def until_closed(node: Part) -> None:
    """Wait until the run is closed as this node sees it."""
    deadline = time.monotonic() + PATIENCE_S
    while not node.is_closed():
        assert time.monotonic() < deadline, "the run was never closed for it"
