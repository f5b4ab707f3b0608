"""A node on etcd as a process of its own: `python -m tests.support.etcd_node_program`.  Commands and events are those of node_program."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from functools import partial
from typing import Any

from rallypoint.api import Place
from rallypoint.backends import etcd_v3_client
from rallypoint.backends.etcd_v3 import ETCD_V3
from rallypoint.client.background import background
from rallypoint.client.link import Link
from rallypoint.client.member import Member
from rallypoint.client.view import State
from rallypoint.etcd_client import EtcdClient
from rallypoint.location.elected import _drivers as drivers
from rallypoint.messages.types import Reason
from tests.support.living_node import LivingNode
from tests.support.node_program import obey, say
from tests.support.waiting import until


class CommandedEtcdNode(LivingNode):
    """Joins through etcd."""

    backend = ETCD_V3

    def __init__(self) -> None:
        super().__init__()
        self.others: dict[str, Member] = {}

    def begin_with_the_first(self) -> None:
        """Talk to the first member of the list while it answers; otherwise a client begins with any of them."""
        etcd_v3_client.EtcdClient = partial(EtcdClient, spread=False)  # type: ignore[attr-defined, assignment]
        say("begins with the first")

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

    def again_and_live(self) -> None:
        """Join again, and go on by oneself."""
        self.again()
        self.live()

    def standing(self) -> None:
        """The node's identity, where it stands, and whether its process serves."""
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
    node = CommandedEtcdNode()
    say("ready")
    for line in sys.stdin:
        order = json.loads(line)
        command = getattr(node, order.pop("do"))
        threading.Thread(target=obey, args=(command, order), daemon=True).start()


if __name__ == "__main__":
    main()
