"""Threads that join, leave and are interrupted, in the very moments that matter: the loop is held still meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from rallypoint.client.background import background
from rallypoint.client.identity import this_node
from rallypoint.client.link import Link
from rallypoint.client.locator import Target
from rallypoint.client.session import Session
from rallypoint.client.view import State, View
from rallypoint.errors import RendezvousError
from rallypoint.location.fixed import FixedLocator
from rallypoint.location.member import LocatedMember
from rallypoint.messages.types import Bounds, Settings
from tests.support.node_processes import free_port
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def member() -> Iterator[Callable[[str, int], LocatedMember]]:
    """Makes members of one run, which are connected."""
    made: list[LocatedMember] = []
    port = free_port()

    def make(name: str, nodes: int) -> LocatedMember:
        locator = FixedLocator("127.0.0.1", port, "run")
        made.append(LocatedMember(locator, "run", Bounds(nodes, nodes), Settings(), this_node(name)))
        until(lambda: made[-1].link.is_connected)
        return made[-1]

    yield make
    for each in made:
        each.withdraw("the test is over")


@contextmanager
def loop_standing_still() -> Iterator[Callable[[], None]]:
    """Hold the background loop until the given function is called, or the block ends."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        goes_on.wait(PATIENCE_S)

    background().call(stand)
    assert stands.wait(PATIENCE_S)
    try:
        yield goes_on.set
    finally:
        goes_on.set()


def test_a_node_that_leaves_before_its_join_was_sent_is_in_no_world(
    member: Callable[[str, int], LocatedMember], pool: ThreadPoolExecutor
) -> None:
    other, leaver = member("a", 2), member("b", 2)
    waiting = pool.submit(other.join, PATIENCE_S)
    until(lambda: other.view.state is State.WAITING)
    with loop_standing_still():
        joining = pool.submit(leaver.join, PATIENCE_S)
        until(lambda: leaver.link.is_joining)
        leaving = pool.submit(leaver.withdraw, "it was told to")
        until(lambda: leaver._left)
    leaving.result(PATIENCE_S)
    with pytest.raises(RendezvousError, match="was left by this node"):
        joining.result(PATIENCE_S)
    third = member("c", 2)
    third.join(PATIENCE_S)
    names = [peer.name for peer in third.peers()]
    assert (sorted(names), waiting.result(PATIENCE_S).round) == (["a", "c"], 1)


class SilentLocator:
    """Finds nothing, and counts how often it was asked."""

    hosts_medium = False

    def __init__(self) -> None:
        self.asked = 0

    async def find(self, seeker: Any) -> Target:
        self.asked += 1
        never: Future[Target] = Future()
        import asyncio

        return await asyncio.wrap_future(never)

    def where(self) -> str:
        return "nowhere"

    def explain(self, trouble: str) -> str:
        return trouble

    def beat(self, seeker: Any) -> None: ...


def test_a_join_right_behind_a_refusal_tries_again() -> None:
    locator: Any = SilentLocator()
    view = View(node=this_node("a"), bounds=Bounds(1, 1), settings=Settings())
    link = Link(locator, Session("run", view), prepare=lambda node, _: node, reborn=lambda node: node)
    link.connect()
    until(lambda: locator.asked == 1)
    with loop_standing_still():
        background().call(lambda: link.refuse(RuntimeError("the register said no")))
        link.join(PATIENCE_S, lambda: False)
    until(lambda: locator.asked == 2, "it looks for the server once more")
    assert (link.refusal, link.view.state) == (None, State.WAITING)
    link.close()


def interrupted_when(function: str, caller: str, act: Callable[[], object]) -> None:
    """Run something in this thread, and let Ctrl-C arrive when one function is entered from another."""

    def look(frame: FrameType, event: str, arg: object) -> None:
        before = frame.f_back
        if event == "call" and frame.f_code.co_name == function and before and before.f_code.co_name == caller:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    sys.setprofile(look)
    try:
        with pytest.raises(KeyboardInterrupt):
            act()
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)


def test_a_join_that_was_interrupted_before_it_was_ordered_can_be_repeated(
    member: Callable[[str, int], LocatedMember],
) -> None:
    node = member("a", 1)
    interrupted_when("_order", "join", lambda: node.join(PATIENCE_S))
    assert node.join(PATIENCE_S).size == 1


def test_a_join_that_is_interrupted_is_taken_back_also_where_the_loop_makes_it_just_then(
    member: Callable[[str, int], LocatedMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = member("a", 2)
    is_joining: Callable[[Link], bool] = vars(Link)["is_joining"].fget
    with loop_standing_still() as go_on:

        def interrupt(*_: object) -> bool:
            monkeypatch.undo()
            monkeypatch.setattr(Link, "is_joining", property(looked_at))
            raise KeyboardInterrupt

        def looked_at(link: Link) -> bool:
            """The loop makes the join while the interrupted thread looks."""
            go_on()
            until(lambda: not is_joining(link))
            return is_joining(link)

        monkeypatch.setattr(Link, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            node.join(PATIENCE_S)
    until(lambda: node.view.state is State.IDLE, "the node does not wait any more")
