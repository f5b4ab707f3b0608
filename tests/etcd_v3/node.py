"""A node on etcd as a process of its own: `python -m tests.etcd_v3.node`.  Commands and events are those of tests.faults."""

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
from rallypoint.client.identity import this_node
from rallypoint.core.model import Bounds, Reason, Role, Settings
from rallypoint.elastic.place import Place
from rallypoint.errors import RendezvousError
from rallypoint.etcd import leader
from rallypoint.etcd.member import EtcdMember
from rallypoint.etcd_client import EtcdClient, Tls, User
from rallypoint.etcd_client.conductor import Watcher
from rallypoint.etcd_client.hub import Hub
from rallypoint.etcd_client.hub import _hubs as hubs
from tests.faults.node import Puppet, obey, say

DIES_WITHIN_S = 600.0
STALL_S = 1.0


class EtcdPuppet(Puppet):
    """Joins through etcd, and can live by itself: whenever its world is over it joins the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.member: EtcdMember | None = None
        self._files = ExitStack()
        self._is_recorded = False

    def join(self, endpoint: str, run: str, nodes: str, options: dict[str, Any]) -> None:
        member = self.member = self._member(endpoint, run, nodes, options)
        timeout_s = options.get("join_timeout", 40.0)
        say("joins", node=member.view.node.id)
        try:
            placed = member.join(timeout_s)
        except RendezvousError:
            member.leave(Reason.WITHDREW, "its join failed", patience_s=0.0)
            raise
        self.placed(Place(member, timeout_s, placed))

    def _member(self, endpoint: str, run: str, nodes: str, options: dict[str, Any]) -> EtcdMember:
        low, _, high = nodes.partition(":")
        leader.RUN_LEASE_S = options.get("run_lease", leader.RUN_LEASE_S)
        tls = Tls(options["cacert"], options.get("cert"), options.get("key")) if "cacert" in options else None
        user = User(*options["user"]) if "user" in options else None
        client = EtcdClient(endpoint, tls=tls, user=user, timeout_s=options.get("timeout", 10.0), spread=False)
        settings = Settings(
            last_call_s=options.get("last_call_timeout", 0.3),
            regroup_s=options.get("regroup_timeout", 60.0),
            closed_ttl_s=options.get("closed_ttl", 60.0),
            outage_grace_s=options.get("outage_grace", 300.0),
            crash_pause_s=0.0,
        )
        node = this_node(options["node_name"], role=Role(options.get("role", "member")))
        return EtcdMember(
            client,
            options.get("prefix", "/test"),
            run,
            Bounds(int(low), int(high or low)),
            settings,
            node,
            lease_ttl_s=options.get("lease_ttl", 2),
            call_s=10.0,
            close_s=options.get("close_timeout", 30.0),
        )

    def record(self, path: str) -> None:
        """Write down all that happens from now on: what a leader here decides, and where this node stands."""
        self._files.enter_context(events.write_json_lines(Path(path)))
        self._is_recorded = True
        threading.Thread(target=self.notice_stalls, daemon=True).start()
        say("recording", path=path)

    def notice_stalls(self) -> None:
        """Write down whenever this process stood still for so long that its lease may have ended."""
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
        self.over(self.here())
        super().withdraw()

    def watch(self, place: Place, fence: str) -> None:
        if not self._is_recorded:
            super().watch(place, fence)

    def standing(self) -> None:
        """Who this node is, and where it stands."""
        view = self.here()._member.view
        say("standing", node=view.node.id, state=view.state.name, why=view.why, out=view.out_since is not None)

    def lease(self) -> None:
        """Wait until the node's lease has been renewed once more."""
        assert self.member is not None, "join first"
        link: Any = self.member.link
        lease = link._lease
        before, pause = lease.renewal.until, threading.Event()
        for _ in range(3000):
            if lease.renewal.until > before or lease.lost.is_set():
                break
            pause.wait(0.02)
        say("renewed", lost=lease.lost.is_set(), gained=lease.renewal.until > before)

    def way(self) -> None:
        """Which member of etcd it asks, and how often it has fetched a token."""
        hub = self._hub()
        say("way", endpoint=hub.rotation.current, logins=hub.logins)

    def log_in(self, after: int) -> None:
        """Wait until it has fetched a token more often than that."""
        hub, pause = self._hub(), threading.Event()
        while hub.logins <= after:
            pause.wait(0.02)
        say("logged in", logins=hub.logins)

    def _hub(self) -> Hub:
        assert self.member is not None, "join first"
        return self.member._client._open

    def patience(self) -> None:
        """Wait until there is news; how long etcd had been away by then, and whether it still is."""
        place = self.here()
        place.changed.wait()
        now, since = time.monotonic(), place._member.view.out_since
        say("patience", out=since is not None, away_s=0.0 if since is None else now - since, at=now)

    def confess(self) -> None:
        """What its threads do, and where its watches stand: for the account of a test that fails."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = {
            names.get(ident) or str(ident): [
                f"{frame.name}:{frame.lineno}" for frame in traceback.extract_stack(top)[-5:]
            ]
            for ident, top in sys._current_frames().items()
        }
        watches: list[str] = []
        for hub, _ in hubs.values():
            watcher = hub.part(Watcher)
            at = watcher._stream.endpoint if watcher._stream is not None else "nowhere"
            for watched in watcher._book.watches:
                held = watcher._mailboxes[watched].items.qsize()
                watches.append(f"{watched.key!r} {watched.phase.name} next {watched.next_revision} {held} held at {at}")
        say("confessed", stacks=stacks, watches=watches)

    def give_up(self) -> None:
        """Leave as somebody whose worker has failed."""
        say("left", done=self.here()._member.leave(Reason.GAVE_UP, "it failed"))


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("rallypoint").setLevel(logging.INFO)  # the account of a test that fails has it
    puppet = EtcdPuppet()
    say("ready")
    for line in sys.stdin:
        order = json.loads(line)
        command = getattr(puppet, order.pop("do"))
        threading.Thread(target=obey, args=(command, order), daemon=True).start()


if __name__ == "__main__":
    main()
