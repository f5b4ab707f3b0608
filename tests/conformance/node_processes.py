"""What a test of a backend drives: one medium, and nodes as processes.  They serve one test after another, unless they are killed."""

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
from tests.support.forked_processes import NODES, TORCH
from tests.support.node_processes import ControlledProcess, Event
from tests.support.waiting import PATIENCE_S

Flavour = tuple[str, ...]
RESERVE = 2
AT_ONCE_S = 15.0
"""On a busy machine; what is at once comes after no time-out, and those are made longer where it matters."""

_runs = count(1)


class NodeCommands(ABC):
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


P = TypeVar("P", bound=NodeCommands)


class PooledNode(ControlledProcess, NodeCommands):
    """A process that is a node in one test after another."""

    shows_stacks = True

    def __init__(self, flavour: Flavour) -> None:
        # Clocks are shifted before anything that reads them is imported.
        imported = None if "--skew" in flavour else NODES if "--without-torch" in flavour else TORCH
        ControlledProcess.__init__(self, "tests.conformance.node_program", *flavour, imported=imported)
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
        """Close the node that it was; False where that does not work, and the process is of no more use."""
        self.order("reset")
        deadline = time.monotonic() + 10.0
        with suppress(queue.Empty, EOFError):
            while self._next(max(deadline - time.monotonic(), 0.001))["event"] != "reset":
                pass
            return True
        return False


class SecondNode(NodeCommands):
    """A second node in the process of another."""

    def __init__(self, node: PooledNode, name: str) -> None:
        self.name = name
        self._node = node

    def order(self, do: str, **arguments: Any) -> None:
        self._node.order(do, who=self.name, **arguments)

    def expect(self, kind: str, timeout_s: float = PATIENCE_S, **wanted: Any) -> Event:
        return self._node.expect(kind, timeout_s, who=self.name, **wanted)


class NodePool:
    """The processes of a whole session, by what they have imported and which clock they have."""

    def __init__(self) -> None:
        self._idle: defaultdict[Flavour, list[PooledNode]] = defaultdict(list)
        self._all: list[PooledNode] = []

    def take(self, names: Sequence[str], flavour: Flavour) -> list[PooledNode]:
        idle = self._idle[flavour]
        chosen = [idle.pop() if idle else self._start(flavour) for _ in names]
        # The next test would miss a process that is killed here: others come in time, for torch takes seconds to import.
        while len(idle) < (RESERVE if "--skew" not in flavour else 0):
            idle.insert(0, self._start(flavour))
        for node, name in zip(chosen, names, strict=True):
            node.start_over(name)
        return chosen

    def _start(self, flavour: Flavour) -> PooledNode:
        self._all.append(PooledNode(flavour))
        return self._all[-1]

    def give_back(self, node: PooledNode) -> None:
        if node.process.poll() is None:
            node.resume()
            if node.resets():
                self._idle[node.flavour].append(node)
            else:
                node.kill()

    def end(self) -> None:
        for node in self._all:
            node.kill()


class BackendDriver:
    """What a test is given: a run on one backend."""

    def __init__(self, name: str, kind: Kind, medium: Medium, node_pool: NodePool) -> None:
        self.name, self.kind, self.medium = name, kind, medium
        self.run = f"run-{next(_runs)}"
        self._node_pool = node_pool
        self._chosen_nodes: list[PooledNode] = []

    def nodes(
        self, *names: str, nodes: str | int = 2, run: str = "", skew_s: float = 0.0, **given: Any
    ) -> list[PooledNode]:
        """Processes with a handler each, that have not joined yet."""
        flavour: Flavour = () if self.kind.with_torch else ("--without-torch",)
        if skew_s:
            flavour = (*flavour, "--skew", str(skew_s))
        chosen_nodes = self._node_pool.take(names, flavour)
        self._chosen_nodes += chosen_nodes
        for node in chosen_nodes:
            self._open(node, nodes, run, given)
        for node in chosen_nodes:
            node.expect("opened")
        return chosen_nodes

    def second_node(self, node: PooledNode, name: str, *, nodes: str | int = 2, **given: Any) -> SecondNode:
        """A second node in the process of another one, that has not joined yet."""
        second_node = SecondNode(node, name)
        self._open(second_node, nodes, "", given)
        second_node.expect("opened")
        return second_node

    def _open(self, node: NodeCommands, nodes: str | int, run: str, given: dict[str, Any]) -> None:
        options = self.kind.named({**self.kind.options, "node_name": node.name, **given})
        node.order(
            "open",
            backend=self.kind.backend,
            endpoint=self.medium.endpoint,
            run=f"{self.run}{run}",
            nodes=str(nodes),
            options=options,
        )

    def world(self, *names: str, nodes: str | int = 2, run: str = "", **given: Any) -> list[PooledNode]:
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

    def call_again(self, first: PooledNode, *others: PooledNode) -> None:
        """After a loss they are told, and join again.

        Where nobody is told, the first one joins all the same, because its workers have failed, and so calls the others.
        """
        if self.limit(TOLD_AT_ONCE) != UNTOLD:
            assert first.changed()["count"] >= 1
        first.join()
        for other in others:
            assert other.changed()["count"] >= 1
            other.join()

    def regrouped(self, *chosen_nodes: PooledNode) -> None:
        """They are in one world, and the order in which they are given is that of their ranks, where ranks are kept."""
        by_rank = ranked(chosen_nodes)
        assert self.limit(KEEPS_RANKS) or by_rank == list(chosen_nodes)

    def end(self) -> None:
        for node in self._chosen_nodes:
            self._node_pool.give_back(node)


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


def until_closed(node: NodeCommands) -> None:
    """Wait until the run is closed as this node sees it."""
    deadline = time.monotonic() + PATIENCE_S
    while not node.is_closed():
        assert time.monotonic() < deadline, "the run was never closed for it"
