"""Joins through a document that end otherwise than their thread expects: too fast for it, by another's hand, once more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rallypoint.client.view import State
from rallypoint.errors import RendezvousError
from rallypoint.stores import MemoryStore
from tests.elastic.test_dynamic_rendezvous import PATIENCE_S, Cast
from tests.support.waiting import until


@pytest.fixture
def cast() -> Iterator[Cast]:
    made = Cast(MemoryStore())
    try:
        yield made
    finally:
        made.end()


def test_a_world_that_broke_before_its_thread_looked_is_a_place_all_the_same(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = cast.handler(), cast.handler()
    waiters = slow._member.link._waiters
    wake = waiters.wake

    def wake_late() -> None:
        """As on a busy machine: the thread gets its turn when the world is over."""
        if slow._member.view.state is not State.HOLDS:
            wake()

    monkeypatch.setattr(waiters, "wake", wake_late)
    (joining,) = cast.join(slow)
    until(lambda: slow._member.view.state is State.WAITING and slow._member.link.is_connected)
    cast.meet(other)
    until(lambda: slow._member.view.state is State.HOLDS)
    try:
        raise RuntimeError("told to")
    except RuntimeError:
        assert other.shutdown()
    assert joining.result(PATIENCE_S / 2).world_size == 2
    assert slow.num_nodes_waiting() == 1


def test_a_shutdown_ends_a_join_that_is_under_way(cast: Cast) -> None:
    member, spare = cast.handler(1, 1), cast.handler(1, 1)
    cast.meet(member)
    (standing_by,) = cast.join(spare)
    until(lambda: spare._member.view.state is State.SPARE)
    cast.shut_down(spare)
    with pytest.raises(RendezvousError, match="run 'run' was left by this node: a new handler can join it again"):
        standing_by.result(PATIENCE_S / 2)
