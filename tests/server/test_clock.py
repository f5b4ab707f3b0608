"""The server's clock stands still while the server is stalled (rule 10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.messages.types import Settings
from rallypoint.server import clock, liveness
from rallypoint.server.clock import LOOK_S, AwakeClock
from rallypoint.server.liveness import Liveness

SETTINGS = Settings(reconnect_grace_s=0.15, heartbeat_timeout_s=5.0)


class Hosting:
    """A server that looks at its clock before all that it does, and can be stalled."""

    def __init__(self) -> None:
        self.monotonic = 0.0
        self.clock = AwakeClock(0.0)
        self.life = Liveness()
        self.losses: dict[str, float] = {}

    def look(self) -> float:
        self.clock, now = clock.look(self.clock, self.monotonic)
        return now

    def hear(self, *node_ids: str) -> None:
        for node_id in node_ids:
            self.life, _ = liveness.heard(self.life, node_id, 1, SETTINGS, self.look())

    def tick(self) -> None:
        self.life, losses = liveness.tick(self.life, SETTINGS, self.look())
        self.losses.update((loss.node_id, self.monotonic) for loss in losses)

    def wait(self, seconds: float, *alive: str) -> None:
        for _ in range(round(seconds / LOOK_S)):
            self.monotonic += LOOK_S
            self.hear(*alive)
            self.tick()


@given(st.lists(st.floats(0.0, 1.99 * LOOK_S)))
def test_a_clock_that_is_looked_at_often_enough_never_stands_still(gaps: list[float]) -> None:
    seen, monotonic = AwakeClock(7.0), 7.0
    for gap in gaps:
        monotonic += gap
        seen, now = clock.look(seen, monotonic)
        assert now == monotonic


@given(st.lists(st.floats(0.0, 1e6)))
def test_a_clock_never_goes_back_and_never_runs_ahead(gaps: list[float]) -> None:
    seen, monotonic, before = AwakeClock(0.0), 0.0, 0.0
    for gap in gaps:
        monotonic += gap
        seen, now = clock.look(seen, monotonic)
        assert before - 1e-6 <= now <= monotonic
        before = now


def test_a_stall_counts_as_one_look() -> None:
    seen, now = clock.look(AwakeClock(100.0), 110.0)
    assert now == 100.0 + LOOK_S
    seen, now = clock.look(seen, 110.0)
    assert now == 100.0 + LOOK_S


@pytest.mark.parametrize("first", ["a look", "messages"])
def test_a_stall_of_10_s_loses_nobody_and_gives_nobody_more_time(first: str) -> None:
    hosting = Hosting()
    hosting.hear("a", "b")
    hosting.wait(3, "a")
    hosting.monotonic += 10
    if first == "messages":
        hosting.hear("a", "a", "a")
    hosting.tick()
    assert hosting.losses == {}
    hosting.wait(10, "a")
    # Of its 5 s, b had used 3 before the stall, and the stall counts as one look.
    assert hosting.losses == {"b": 13 + 2 - LOOK_S}


def test_an_end_noticed_after_a_stall_still_has_its_grace() -> None:
    hosting = Hosting()
    hosting.hear("a", "b", "c")
    hosting.monotonic += 10
    hosting.life = liveness.ended(hosting.life, "a", 1, SETTINGS, hosting.look())
    hosting.tick()
    assert hosting.losses == {}
    hosting.wait(LOOK_S, "b", "c")
    assert hosting.losses == {"a": 10 + LOOK_S}


def test_whether_there_was_a_long_stall_a_moment_ago() -> None:
    seen, now = clock.look(AwakeClock(100.0), 100.2)
    assert not clock.just_woke(seen, 5.0, now)
    short, now = clock.look(seen, 102.0)
    assert not clock.just_woke(short, 5.0, now), "nobody hangs up for so little"
    long, woke = clock.look(short, 110.0)
    assert clock.just_woke(long, 5.0, woke)
    later, now = clock.look(long, 110.2)
    assert clock.just_woke(later, 5.0, now)
    assert not clock.just_woke(later, 5.0, woke + 5.0), "by then they are back"
