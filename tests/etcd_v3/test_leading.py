"""What a leader does when, without etcd: words in, drafts out."""

from __future__ import annotations

import threading
import time
from itertools import count

import msgspec
import pytest

from rallypoint.core import codec
from rallypoint.core.events import CloseAsked, Joined
from rallypoint.core.model import Bounds, Node, Phase, Reason, Run, Settings
from rallypoint.etcd.board import spans
from rallypoint.etcd.leader import Leader
from rallypoint.etcd.leading import Gone, Leading, Wish, Word
from rallypoint.etcd_client import EtcdNoSpaceError
from tests.etcd_v3.stage import Actor, Stage

LAST_CALL_S = 1.0


def leading() -> Leading:
    numbers = count()
    return Leading(Run(run_id="run"), lambda: f"m{next(numbers)}")


def joins(name: str, at: int) -> Word:
    settings = Settings(last_call_s=LAST_CALL_S)
    joined = Joined(Node(id=name, name=name), Bounds(2, 3), settings)
    return Word(name, codec.encode_message(joined), at, at)


def test_what_fell_due_while_the_leader_was_writing_is_due_still() -> None:
    run = leading()
    run.take([joins("a", 1), joins("b", 2)], now=10.0)
    assert run.run.world is None
    # Whatever the time is by now: nobody has looked at the run since.
    assert run.wake_at() == 10.0 + LAST_CALL_S
    run.tick(15.0)
    assert run.run.phase is Phase.SEALED
    due = run.wake_at()
    assert due is None or due > 15.0, "what was done is due no more"


def test_a_word_that_arrives_after_a_reading_that_was_without_it_is_over() -> None:
    """It was said, and its node was gone again, before the reading; the news of both arrive later."""
    run = leading()
    run.take([joins("a", 1), joins("b", 2)], now=10.0)
    here = [joins("a", 1), joins("b", 2)]
    run.take_all(here, (), 9, now=10.1)
    run.take([joins("x", 4)], now=10.2)
    assert run.run.phase is Phase.GATHERING, "all three would be a world at once, with one who is gone"
    run.take([Gone("x", 5)], now=10.3)
    run.tick(15.0)
    assert run.run.world is not None
    assert [node.id for node in run.run.world.members] == ["a", "b"]


def test_a_wish_that_arrives_after_it_was_read_and_granted_is_over() -> None:
    """Its key is gone, and so is the memory of it."""
    run = leading()
    run.take([joins("a", 1), joins("b", 2)], now=10.0)
    run.tick(15.0)
    wish = Wish("w", codec.encode_message(CloseAsked("somebody", "enough")), 3)
    here = [joins("a", 1), joins("b", 2)]
    run.take_all(here, [wish], 9, now=15.1)
    assert run.run.phase is Phase.CLOSED
    draft = run.draft(15.2)
    assert draft is not None
    assert draft.granted == ("w",)
    run.written(draft, 15.2)
    run.take([wish], now=15.3)
    again = run.draft(15.4)
    assert again is None or not again.granted


class Founder(Leader):
    """A founder in a world of its own: what lies in etcd at each of its glances, and a clock that only glances move on."""

    def __init__(self, glances: list[tuple[list[Word], int]]) -> None:
        self._linger_s, self._stopped, self._retire_after = 0.05, False, None
        self.glances, self.looked = glances, 0

    def _read_all(self, leading: Leading) -> None:
        words, revision = self.glances[min(self.looked, len(self.glances) - 1)]
        self.looked += 1
        leading.take_all(words, (), revision + self.looked, now=0.0)  # others write into this etcd all the time


def lingers(glances: list[tuple[list[Word], int]], monkeypatch: pytest.MonkeyPatch) -> tuple[Founder, Leading]:
    now = 100.0

    def sleep(for_s: float) -> None:
        nonlocal now
        now += for_s

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    founder, run = Founder(glances), leading()
    run.take([joins("a", 1)], now=0.0)
    founder._linger(run)
    return founder, run


def test_a_founder_waits_for_those_who_come_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = joins("a", 1), joins("b", 50), joins("c", 100)
    founder, run = lingers([([a], 5)] * 3 + [([a, b], 60)] * 3 + [([a, b, c], 120)], monkeypatch)
    assert (founder.looked, run.run.phase) == (7, Phase.SEALED), "all are here: the first that it publishes is a world"


def test_a_founder_does_not_take_what_others_write_for_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    founder, run = lingers([([joins("a", 1)], 5)], monkeypatch)
    assert run.run.phase is Phase.GATHERING
    assert founder.looked <= 6, "nobody came for 50 ms"


class Stubborn(Leader):
    """A leader whose writes etcd does not take; it is told of something once, and gives up after a while."""

    def __init__(self) -> None:
        self._run_id, self._run_lease, self._asked_ahead, self.is_over = "run", None, None, False
        self._wake = threading.Event()
        self._wake.set()
        self._over = lambda: None
        self.starts: list[float] = []
        self._run()

    def _is_leader(self) -> bool:
        return len(self.starts) < 4

    def _lead(self) -> None:
        self.starts.append(time.monotonic())
        raise EtcdNoSpaceError("no room")


def test_a_leader_pauses_before_it_starts_over_whatever_woke_it_last() -> None:
    starts = Stubborn().starts
    assert starts[-1] - starts[0] >= 0.3, "it asked without a pause"


def test_who_is_back_under_its_old_name_is_not_cleared_away() -> None:
    run = leading()
    run.take([joins("a", 1), joins("b", 2)], now=10.0)
    run.take([Gone("b", 3), joins("b", 4)], now=10.1)
    run.tick(15.0)
    draft = run.draft(15.0)
    assert draft is not None
    assert draft.departed == ()
    run.take([Gone("b", 5)], now=15.1)
    draft = run.draft(15.1)
    assert draft is not None
    assert draft.departed == ("b",)


def test_who_left_a_broken_world_is_not_called_lost_by_the_next_leader() -> None:
    stage = Stage(1)
    actors = [stage.arrive() for _ in range(4)]
    take_over(stage, actors[0])
    for actor in actors:
        actor.listen()
    actors[3].leave(Reason.WITHDREW)
    stage.lead()
    take_over(stage, actors[1])
    assert stage.leading is not None
    assert not [turn for turn in stage.leading.turns if turn.losses]
    assert dict(stage.leading.run.crashes.items()) == {}


def test_a_crash_counts_once_however_often_another_takes_over() -> None:
    stage = Stage(1)
    actors = [stage.arrive() for _ in range(4)]
    take_over(stage, actors[0])
    for actor in actors:
        actor.listen()
    stage.die(actors[3])
    stage.expire(actors[3])
    stage.lead()
    for actor in actors[1:3]:
        take_over(stage, actor)
        assert [(crash.name, crash.count) for crash in stage.boards[-1].crashes] == [("n4", 1)]
    stage.die(actors[0])
    stage.expire(actors[0])
    take_over(stage, actors[1])
    assert sorted((crash.name, crash.count) for crash in stage.boards[-1].crashes) == [("n1", 1), ("n4", 1)]


def take_over(stage: Stage, actor: Actor) -> None:
    """Somebody takes the run over from what is in etcd, and writes what is to be written."""
    stage.now += 1
    stage.leader_name = actor.id
    stage.adopt()
    stage.lead()


def test_ranks_that_went_together_take_little_space() -> None:
    assert spans([]) == ()
    assert spans([0, 1, 2, 5, 7, 8]) == ((0, 2), (5, 5), (7, 8))
    assert len(msgspec.json.encode(spans(range(10_000)))) < 20
