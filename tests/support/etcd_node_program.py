"""A node on etcd as a process of its own: `python -m tests.support.etcd_node_program`.  Commands and events are those of node_program."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rallypoint import events
from rallypoint.api import Place
from rallypoint.backends.etcd_v3 import ETCD_V3
from rallypoint.client.background import background
from rallypoint.client.link import Link
from rallypoint.client.member import Member
from rallypoint.client.view import State
from rallypoint.errors import RendezvousError
from rallypoint.location.elected import _drivers as drivers
from rallypoint.messages.types import Reason
from tests.support.node_program import CommandedNode, obey, say
from tests.support.waiting import until

STALL_S = 0.5


class CommandedEtcdNode(CommandedNode):
    """Joins through etcd, and can live by itself: whenever its world is over it joins the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.member: Member | None = None
        self.others: dict[str, Member] = {}
        self._files = ExitStack()
        self._is_recorded = False

    def open(self, endpoint: str, run: str, nodes: str, options: dict[str, Any]) -> tuple[Member, float]:
        low, _, high = nodes.partition(":")
        return ETCD_V3.open(endpoint, run, int(low), int(high or low), options.pop("local_addr", None), options)

    def join(self, endpoint: str, run: str, nodes: str, options: dict[str, Any]) -> None:
        member, timeout_s = self.open(endpoint, run, nodes, options)
        self.member = member
        say("joins", node=member.view.node.id)
        try:
            placed = member.join(timeout_s)
        except RendezvousError:
            member.withdraw("its join failed")
            raise
        self.placed(Place(member, timeout_s, placed))

    def join_and_stay(self, **arguments: Any) -> None:
        """Join; where that fails, the handler is not shut down."""
        member, timeout_s = self.open(**arguments)
        self.member = member
        self.placed(Place(member, timeout_s, member.join(timeout_s)))

    def make(self, **arguments: Any) -> None:
        """A handler that does not join."""
        self.member, _ = self.open(**arguments)
        say("made", node=self.member.view.node.id)

    def shut_down(self) -> None:
        assert self.member is not None, "make it first"
        say("left", done=self.member.leave(Reason.FINISHED))

    def join_beside(self, **arguments: Any) -> None:
        """Another node of this process joins, on a thread of its own."""
        name = arguments["options"]["node_name"]
        member, timeout_s = self.open(**arguments)
        self.others[name] = member
        placed = member.join(timeout_s)
        say("beside", name=name, rank=placed.rank, size=placed.size, round=placed.round)

    def finish_beside(self, name: str) -> None:
        say("left beside", name=name, done=self.others.pop(name).leave(Reason.FINISHED))

    def record(self, path: str) -> None:
        """Write down all that happens from now on: what a server here decides, and where this node stands."""
        self._files.enter_context(events.write_json_lines(Path(path)))
        self._is_recorded = True
        threading.Thread(target=self.notice_stalls, daemon=True).start()
        say("recording", path=path)

    def notice_stalls(self) -> None:
        """Write down whenever this process stood still for so long that it may have been given up."""
        pause, last = threading.Event(), time.monotonic()
        while True:
            pause.wait(0.1)
            before, last = last, time.monotonic()
            if last - before > STALL_S:
                events.record("stalled", "", "", seconds=round(last - before, 3))

    def placed(self, place: Place) -> None:
        if self._is_recorded:
            node, (incarnation, _, seal_id) = place._member.view.node, place.fence.split("/")
            details = {"rank": place.rank, "size": place.world_size, "round": place.round, "node": node.id}
            events.record("placed", place._member.run_id, "", seal_id=seal_id, incarnation=incarnation, **details)
        super().placed(place)

    def live(self) -> None:
        """Join again whenever it is time to, until the run is closed."""
        place = self.here()
        while True:
            place.changed.wait()
            if place._member.is_closed():
                break
            self.over(place)
            self.placed(place.again())
        self.over(place)
        say("ended", why=place._member.view.why)

    def again_and_live(self) -> None:
        """Join again, and go on by oneself."""
        self.again()
        self.live()

    def join_and_live(self, **arguments: Any) -> None:
        """Join, and go on by oneself."""
        self.join(**arguments)
        self.live()

    def over(self, place: Place) -> None:
        """Write down that this node's world is over, and which."""
        view = place._member.view
        assert view.world is not None, "who is told that its world is over had one"
        details = {"seal_id": view.world.seal_id, "node": view.node.id, "state": view.state.name}
        events.record("over", place._member.run_id, view.why, **details)

    def withdraw(self) -> None:
        if self._is_recorded:
            events.record("withdrew", self.here()._member.run_id, "", node=self.here()._member.view.node.id)
        super().withdraw()

    def watch(self, place: Place, fence: str) -> None:
        if not self._is_recorded:
            super().watch(place, fence)

    def standing(self) -> None:
        """Who this node is, where it stands, and whether its process serves."""
        claim_id, port = background().run(_claim())
        served = {"claim": claim_id, "port": port, "elections": len(drivers)}
        if self.member is None:
            say("standing", node="", state="", why="", out=False, **served)
            return
        view = self.member.view
        is_out = view.out_since is not None
        say("standing", node=view.node.id, state=view.state.name, why=view.why, out=is_out, **served)

    def why(self) -> None:
        """What a node that waits says about it."""
        say("why", why=self.member.why_waiting() if self.member is not None else "")

    def drop(self) -> None:
        """The connection to the server ends, as a network does that fails; the node makes another."""
        link = self.here()._member.link
        assert isinstance(link, Link)
        before = link.session.connection
        link._order(link._drop)
        until(lambda: link.session.connection > before, "it has made another")
        say("dropped")

    def calm(self) -> None:
        """Wait until there is no outage."""
        link = self.here()._member.link
        link.wait(lambda view: view.out_since is None)
        say("calm")

    def be_over(self) -> None:
        """Wait until this node knows that it is in no world."""
        link = self.here()._member.link
        link.wait(lambda view: view.state is not State.HOLDS)
        say("is over", state=link.view.state.name, why=link.view.why)

    def confess(self) -> None:
        """What its threads do: for the account of a test that fails."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = {
            names.get(ident) or str(ident): [
                f"{frame.name}:{frame.lineno}" for frame in traceback.extract_stack(top)[-5:]
            ]
            for ident, top in sys._current_frames().items()
        }
        say("confessed", stacks=stacks, why=self.member.why_waiting() if self.member is not None else "")

    def give_up(self) -> None:
        """Leave as somebody whose worker has failed."""
        say("left", done=self.here()._member.leave(Reason.GAVE_UP, "it failed"))


async def _claim() -> tuple[str, int]:
    """The claim under which this process serves, and its port; empty where it does not."""
    serving = [d._election.serving for d in drivers.values() if d._service is not None]
    return next(((each.claim.id, each.claim.port) for each in serving if each is not None), ("", 0))


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("rallypoint").setLevel(logging.INFO)  # the account of a test that fails has it
    puppet = CommandedEtcdNode()
    say("ready")
    for line in sys.stdin:
        order = json.loads(line)
        command = getattr(puppet, order.pop("do"))
        threading.Thread(target=obey, args=(command, order), daemon=True).start()


if __name__ == "__main__":
    main()
