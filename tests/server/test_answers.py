"""When a server answers heartbeats: often enough for each node, whatever the run was founded with (rules 10, 11)."""

from __future__ import annotations

import itertools

from rallypoint import protocol
from rallypoint.messages.requests import Announced, Joined, Standing
from rallypoint.messages.types import Bounds, Node, Settings
from rallypoint.server.coordinator import Coordinator

LONG = Settings(heartbeat_interval_s=1.0, heartbeat_timeout_s=30.0, last_call_s=0.0)
SHORT = Settings(heartbeat_interval_s=0.5, heartbeat_timeout_s=2.0)


def test_a_node_with_a_shorter_time_out_than_the_founder_is_answered_in_its_own_time() -> None:
    numbers = itertools.count(1)
    server = Coordinator(monotonic=0.0, mint=lambda: f"m{next(numbers)}", hold_s=0.0)
    for caller, name in ((1, "founder"), (2, "spare")):
        server.opened(caller, 0.0)
        hello = protocol.Hello(protocol.VERSION, "r", name, 1, process=name)
        server.received(caller, protocol.MAGIC + protocol.frame(hello), 0.0)
    server.received(1, protocol.frame(Joined(Node(id="founder", name="founder"), Bounds(1, 1), LONG)), 0.0)
    node = Node(id="spare", name="spare")
    server.received(2, protocol.frame(Joined(node, Bounds(1, 1), SHORT)), 0.0)
    beat = protocol.frame(Announced(node, Bounds(1, 1), Standing.SPARE, SHORT))
    now, answered = 0.0, []
    for _ in range(20):
        now += 0.25
        sent = [*server.received(2, beat, now).sends, *server.tick(now).sends]
        answered += [now] * any(caller == 2 for caller, _ in sent)
    gaps = [later - earlier for earlier, later in itertools.pairwise([0.0, *answered, now])]
    assert max(gaps) < SHORT.heartbeat_timeout_s
