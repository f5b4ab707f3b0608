"""Joins through a document that end otherwise than their thread expects: too fast for it, by another's hand, once more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rallypoint.client.view import State
from rallypoint.errors import RendezvousError
from rallypoint.stores import MemoryStore
from tests.elastic.test_dynamic_rendezvous import PATIENCE_S, HandlerGroup
from tests.support.waiting import until


@pytest.fixture
def group() -> Iterator[HandlerGroup]:
    made = HandlerGroup(MemoryStore())
    try:
        yield made
    finally:
        made.end()


def test_a_world_that_broke_before_its_thread_looked_is_a_place_all_the_same(
    group: HandlerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = group.handler(), group.handler()
    waiters = slow._member.link._waiters
    wake = waiters.wake

    def wake_late() -> None:
        """As on a busy machine: the thread gets its turn when the world is over."""
        if slow._member.view.state is not State.HOLDS:
            wake()

    monkeypatch.setattr(waiters, "wake", wake_late)
    (joining,) = group.join(slow)
    until(lambda: slow._member.view.state is State.WAITING and slow._member.link.is_connected)
    group.meet(other)
    until(lambda: slow._member.view.state is State.HOLDS)
    try:
        raise RuntimeError("told to")
    except RuntimeError:
        assert other.shutdown()
    assert joining.result(PATIENCE_S / 2).world_size == 2
    assert slow.num_nodes_waiting() == 1


def test_a_shutdown_ends_a_join_that_is_under_way(group: HandlerGroup) -> None:
    member, spare = group.handler(1, 1), group.handler(1, 1)
    group.meet(member)
    (standing_by,) = group.join(spare)
    until(lambda: spare._member.view.state is State.SPARE)
    group.shut_down(spare)
    with pytest.raises(RendezvousError, match="run 'run' was left by this node: a new handler can join it again"):
        standing_by.result(PATIENCE_S / 2)
