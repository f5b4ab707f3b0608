"""Which nodes are heard, and which are lost (rules 6, 10, 14)."""

from __future__ import annotations

import pytest

from rallypoint.core.events import Lost
from rallypoint.messages.types import Settings
from rallypoint.server import liveness
from rallypoint.server.liveness import Liveness

SETTINGS = Settings(reconnect_grace_s=0.15, heartbeat_timeout_s=5.0)


class Watch:
    """A server's ear, and whom it has lost when."""

    def __init__(self, *, waits_when_deaf: bool = False) -> None:
        self.waits_when_deaf = waits_when_deaf
        self.life = Liveness()
        self.now = 0.0
        self.losses: dict[str, float] = {}
        self.whys: dict[str, str] = {}

    def hear(self, *node_ids: str, connection: int = 1) -> bool:
        fresh = False
        for node_id in node_ids:
            self.life, fresh = liveness.heard(self.life, node_id, connection, SETTINGS, self.now)
        return fresh

    def end(self, *node_ids: str, connection: int = 1) -> None:
        for node_id in node_ids:
            self.life = liveness.ended(self.life, node_id, connection, SETTINGS, self.now)

    def tick(self) -> None:
        self.life, losses = liveness.tick(self.life, SETTINGS, self.now, waits_when_deaf=self.waits_when_deaf)
        self.losses.update((loss.node_id, self.now) for loss in losses)
        self.whys.update((loss.node_id, loss.why) for loss in losses)

    def wait(self, seconds: float, *alive: str, connection: int = 1) -> None:
        """Time passes, tick by tick and whenever somebody may be lost; those alive keep speaking."""
        end = self.now + seconds
        while self.now < end:
            due = liveness.wake_at(self.life)
            steps = [end, self.now + 0.25] + ([due] if due is not None and due > self.now else [])
            self.now = min(steps)
            self.hear(*alive, connection=connection)
            self.tick()


def test_who_keeps_speaking_is_never_lost() -> None:
    watch = Watch()
    watch.hear("a", "b")
    watch.wait(60, "a", "b")
    assert watch.losses == {}


def test_silence_is_a_loss_after_the_heartbeat_timeout() -> None:
    watch = Watch()
    watch.hear("a", "b")
    watch.wait(3, "a", "b")
    watch.wait(60, "b")
    assert watch.losses == {"a": pytest.approx(8)}
    assert watch.whys["a"] == "nothing was heard of it for 5.0 s"


def test_a_connection_that_ends_is_a_loss_after_the_reconnect_grace() -> None:
    watch = Watch()
    watch.hear("a", "b")
    watch.wait(1, "a", "b")
    watch.end("a")
    watch.wait(10, "b")
    assert watch.losses == {"a": pytest.approx(1.15)}
    assert watch.whys["a"] == "its connection ended and did not come back within 0.15 s"


def test_who_comes_back_within_the_grace_is_not_lost() -> None:
    watch = Watch()
    watch.hear("a", "b")
    watch.end("a")
    watch.wait(0.1, "b")
    assert watch.hear("a", connection=2)
    watch.wait(20, "b")
    assert watch.losses == {"a": pytest.approx(5.25)}  # silent nodes are looked at a few times a second


def test_the_end_of_an_older_connection_means_nothing() -> None:
    watch = Watch()
    watch.hear("a", connection=1)
    watch.hear("a", "b", connection=2)
    watch.end("a", connection=1)
    watch.wait(4)
    assert watch.losses == {}


def test_who_speaks_on_an_older_connection_is_not_heard() -> None:
    watch = Watch()
    assert watch.hear("a", connection=2)
    assert not watch.hear("a", connection=1)
    assert watch.hear("a", connection=2)


def test_a_connection_ends_once_and_only_of_a_node_that_is_known() -> None:
    watch = Watch()
    watch.end("stranger")
    watch.hear("a", "b")
    watch.end("a")
    watch.wait(0.1)
    watch.end("a")
    watch.wait(0.1)
    assert watch.losses == {"a": pytest.approx(0.15)}


# Most at once ---------------------------------------------------------------------------------------------------------


def test_when_most_go_silent_at_once_they_get_the_longer_time() -> None:
    watch = Watch()
    watch.hear("a", "b", "c", "d")
    watch.end("a", "b", "c")
    watch.wait(2, "d")
    assert watch.losses == {}
    watch.hear("a", "b", connection=2)
    watch.wait(4, "a", "b", "d")
    assert set(watch.losses) == {"c"}


def test_most_that_never_come_back_are_lost_after_the_longer_time() -> None:
    watch = Watch()
    watch.hear("a", "b", "c")
    watch.end("a", "b")
    watch.wait(20, "c")
    assert watch.losses == {"a": pytest.approx(5), "b": pytest.approx(5)}


def test_half_of_a_run_is_not_most_of_it() -> None:
    watch = Watch()
    watch.hear("a", "b")
    watch.end("a")
    watch.wait(1, "b")
    assert watch.losses == {"a": pytest.approx(0.15)}


def test_a_lone_node_gets_no_longer_time() -> None:
    watch = Watch()
    watch.hear("a")
    watch.end("a")
    watch.wait(1)
    assert watch.losses == {"a": pytest.approx(0.15)}


# Forgotten ------------------------------------------------------------------------------------------------------------


def test_who_left_for_good_is_not_lost() -> None:
    watch = Watch()
    watch.hear("a", "b")
    watch.life = liveness.forget(watch.life, "a")
    watch.life = liveness.forget(watch.life, "nobody")
    watch.wait(20, "b")
    assert watch.losses == {}


def test_who_ended_and_then_left_does_not_count_among_the_silent() -> None:
    watch = Watch()
    watch.hear("a", "b", "c", "d")
    watch.end("a", "b")
    watch.life = liveness.forget(watch.life, "a")
    watch.life = liveness.forget(watch.life, "d")
    watch.wait(1, "c")
    assert watch.losses == {"b": pytest.approx(0.15)}


def test_nobody_is_due_where_nobody_was_heard() -> None:
    watch = Watch()
    assert liveness.wake_at(watch.life) is None
    watch.hear("a")
    assert liveness.wake_at(watch.life) == 5.0


def test_a_run_is_deserted_when_most_are_silent_on_open_connections() -> None:
    """Rule 17e: and then when the last of them has been silent for the time-out."""
    settings = Settings(heartbeat_interval_s=1.0, heartbeat_timeout_s=5.0)
    life = Liveness()
    for node_id, at in (("a", 0.0), ("b", 0.5), ("c", 4.0)):
        life, _ = liveness.heard(life, node_id, 1, settings, at)
    lost = (Lost("a", "it was silent"),)
    assert liveness.deserted_at(life, lost, settings, 5.0) == 5.5
    spoke, _ = liveness.heard(life, "b", 1, settings, 4.5)
    assert liveness.deserted_at(spoke, lost, settings, 5.0) is None
    ended = liveness.ended(life, "a", 1, settings, 4.5)
    assert liveness.deserted_at(ended, lost, settings, 5.0) is None


def deaf(*node_ids: str) -> Watch:
    """A server that has heard nobody for a minute, and nobody's connection has ended."""
    watch = Watch(waits_when_deaf=True)
    watch.hear(*node_ids)
    watch.wait(10, *node_ids)
    watch.wait(60)
    return watch


RETURN_S = SETTINGS.heartbeat_timeout_s + SETTINGS.reconnect_backoff_s


def test_a_server_that_hears_nobody_at_all_gives_up_nobody() -> None:
    watch = deaf("a", "b", "c")
    assert watch.losses == {}
    watch.end("a", "b")  # what they did meanwhile arrives now
    watch.hear("c", connection=2)
    watch.wait(RETURN_S - 1, "c", connection=2)
    watch.wait(60, "a", "b", "c", connection=2)
    assert watch.losses == {}


def test_who_does_not_come_back_with_the_others_is_lost() -> None:
    watch = deaf("a", "b")
    watch.hear("a", connection=2)
    back = watch.now
    watch.wait(RETURN_S + 1, "a", connection=2)
    assert watch.losses == {"b": pytest.approx(back + RETURN_S, abs=0.5)}


def test_nobody_is_waited_for_longer_than_workers_run_on() -> None:
    watch = deaf("a", "b")
    watch.wait(SETTINGS.outage_grace_s)
    assert set(watch.losses) == {"a", "b"}


def test_a_newcomer_is_heard_too_so_that_those_who_are_gone_are_lost() -> None:
    watch = deaf("a", "b")
    watch.hear("new")
    watch.wait(RETURN_S + 1, "new")
    assert set(watch.losses) == {"a", "b"}


def test_processes_that_end_are_lost_although_nobody_is_left() -> None:
    watch = Watch(waits_when_deaf=True)
    watch.hear("a", "b")
    watch.wait(10, "a", "b")
    watch.end("a", "b")
    watch.wait(SETTINGS.heartbeat_timeout_s + 1)
    assert set(watch.losses) == {"a", "b"}
