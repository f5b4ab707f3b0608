"""A node as a process of its own: `python -m tests.support.node_program`.  Commands come in, and events go out, as JSON lines."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import rallypoint
from rallypoint.api import Place
from rallypoint.client.link import Link
from rallypoint.errors import RendezvousError
from rallypoint.protocol import AskHeard
from rallypoint.stores.errors import StoreError
from tests.support.protocol_client import PATIENCE_S, ProtocolClient

_speaking = threading.Lock()


def say(event: str, **details: Any) -> None:
    """One line for the test to read."""
    with _speaking:
        print(json.dumps({"event": event, **details}), flush=True)


class CommandedNode:
    """Does what it is told: each method is a command."""

    event = "placed"

    def __init__(self) -> None:
        self.place: Place | None = None
        self.kept: list[Any] = []
        self.second: SecondCommandedNode | None = None

    def join(self, endpoint: str, run: str, nodes: str, options: dict[str, Any]) -> None:
        self.placed(rallypoint.join(endpoint, run=run, nodes=nodes, **options))

    def again(self) -> None:
        self.placed(self.here().again())

    def placed(self, place: Place) -> None:
        self.place = place
        fence, store = place.fence, f"{place.store.host}:{place.store.port}"
        say(self.event, rank=place.rank, size=place.world_size, round=place.round, fence=fence, store=store)
        threading.Thread(target=self.watch, args=(place, fence), daemon=True).start()

    def join_second(self, endpoint: str, run: str, nodes: str, options: dict[str, Any]) -> None:
        """Join with another node of this process."""
        self.second = SecondCommandedNode()
        self.second.join(endpoint, run, nodes, options)

    def watch(self, place: Place, fence: str) -> None:
        place.changed.wait()
        say("changed", fence=fence, closed=place._member.is_closed(), why=place._member.view.why)

    def waiting(self) -> None:
        member = self.here()._member
        outage = member.view.out_since is not None
        say("waiting", count=member.waiting(), closed=member.is_closed(), outage=outage)

    def peers(self) -> None:
        say("peers", peers=[[peer.rank, peer.name, peer.address] for peer in self.here().peers()])

    def set(self, key: str, value: str) -> None:
        self.here().store.set(key, value)
        say("stored", key=key)

    def get(self, key: str) -> None:
        say("value", key=key, value=self.here().store.get(key).decode())

    def check(self, key: str) -> None:
        say("checked", key=key, there=self.here().store.check([key]))

    def add(self, key: str, amount: int) -> None:
        say("sum", key=key, sum=self.here().store.add(key, amount))

    def wait_for(self, key: str) -> None:
        self.here().store.wait([key])
        say("there", key=key)

    def barrier(self, key: str, size: int) -> None:
        self.here().store.barrier(key, size)
        say("passed", key=key)

    def get_by_clone(self, key: str) -> None:
        say("value", key=key, value=self.here().store.clone().get(key).decode())

    def keep_store(self) -> None:
        self.kept.append(self.here().store)
        say("kept", round=self.here().round)

    def get_from_kept(self, key: str) -> None:
        say("value", key=key, value=self.kept[-1].get(key).decode())

    def finish(self) -> None:
        say("left", done=self.here().finished())

    def withdraw(self) -> None:
        self.here().__exit__(RuntimeError, RuntimeError("told to"), None)
        say("left", done=True)

    def close(self) -> None:
        self.here()._member.close_run()
        say("closed")

    def reach(self) -> None:
        """Put a question to the server, which waits for a connection, and say where the node stands then."""
        member = self.here()._member
        assert isinstance(member.link, Link)
        deadline = time.monotonic() + PATIENCE_S
        while not member.link.ask(AskHeard, deadline - time.monotonic()).number:
            pass  # the connection ended before the answer came
        say("reached", round=self.here().round, state=member.view.state.value)

    def serving(self) -> None:
        """Whether this process serves the run."""
        place = self.here()
        seal_id, ranks = place._member.link.session.server_ranks
        say("serving", serves=place.fence.endswith(f"/{seal_id}") and place.rank in ranks)

    def clock(self) -> None:
        say("clock", monotonic=time.monotonic())

    def bide(self, seconds: float) -> None:
        """Let time pass, unless there is news."""
        news = self.here().changed.wait(seconds)
        say("bided", news=news)

    def outage(self, seconds: float) -> None:
        """Wait until the server has been away for so long."""
        link = self.here()._member.link
        link.wait(lambda view: view.out_since is not None)
        since = link.view.out_since
        assert since is not None, "it is away"
        link.wait(lambda _: False, since + seconds)
        say("outage", still=link.view.out_since is not None)

    def step(self, endpoint: str, run: str, until: str) -> None:
        """Join by hand up to a step, and stay there."""
        host, _, port = endpoint.rpartition(":")
        if until == "before connect":
            self.kept.append(socket.socket())
        else:
            wire = ProtocolClient(host, int(port))
            self.kept.append(wire)
            for name, action in wire.steps(run, "half-way", min_nodes=2, max_nodes=3):
                if name == until:
                    break
                action()
        say("there", step=until)

    def here(self) -> Place:
        if self.place is None:
            raise RuntimeError("join first")
        return self.place


class SecondCommandedNode(CommandedNode):
    """Another node of the same process; of its changes nobody hears."""

    event = "second placed"

    def watch(self, place: Place, fence: str) -> None:
        """Nobody listens."""


def obey(command: Callable[..., None], arguments: dict[str, Any]) -> None:
    try:
        command(**arguments)
    except (RendezvousError, StoreError, TimeoutError, ValueError, OSError) as exc:
        say("error", type=type(exc).__name__, text=str(exc))


def run(commanded: CommandedNode) -> None:
    """Obey the commands that come in, until there are no more."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    say("ready")
    for line in sys.stdin:
        order = json.loads(line)
        command = getattr(commanded, order.pop("do"))
        threading.Thread(target=obey, args=(command, order), daemon=True).start()


def main() -> None:
    run(CommandedNode())


if __name__ == "__main__":
    main()
