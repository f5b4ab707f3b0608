"""A node that lives by itself: it joins again whenever its world is over, and writes down all that happens.

For programs of nodes such as `etcd_node_program`; commands and events are those of node_program.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rallypoint import events
from rallypoint.api import Place
from rallypoint.backends.membership import MemberBackend
from rallypoint.client.member import Member
from rallypoint.errors import RendezvousError
from tests.support.node_program import CommandedNode, say

STALL_S = 0.5


class LivingNode(CommandedNode):
    """Joins through a backend, and goes on by itself when it is told to live."""

    backend: MemberBackend

    def __init__(self) -> None:
        super().__init__()
        self.member: Member | None = None
        self._files = ExitStack()
        self._is_recorded = False

    def open(self, endpoint: str, run: str, nodes: str, options: dict[str, Any]) -> tuple[Member, float]:
        low, _, high = nodes.partition(":")
        local_addr = options.pop("local_addr", None)
        return self.backend.open(endpoint, run, int(low), int(high or low), local_addr, options)

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
