"""What a hostile caller can do to a server without sockets: little, and only to itself (rules 15, 16)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rallypoint import protocol
from rallypoint.client.identity import process_token, this_node
from rallypoint.core.model import Phase
from rallypoint.messages.requests import Announced, Joined, Left, Seat, Standing
from rallypoint.messages.types import Bounds, Node, Reason, Settings
from rallypoint.server.admission import ServerLimits
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.effects import Effects
from rallypoint.server.runs import RunInput


class Server:
    """A server without sockets, and a clock that it looks at as often as a shell does."""

    def __init__(self, **limits: Any) -> None:
        numbers = itertools.count(1)
        self.coordinator = Coordinator(
            monotonic=0.0, mint=lambda: f"m{next(numbers)}", hold_s=0.0, limits=ServerLimits(**limits)
        )
        self.now = 0.0
        self.told: dict[int, list[object]] = {}
        self.hung_up: list[int] = []

    def done(self, effects: Effects) -> None:
        for caller, data in effects.sends:
            bodies = protocol.Reader(10**9).feed(data if data.startswith(protocol.MAGIC) else protocol.MAGIC + data)
            self.told.setdefault(caller, []).extend(protocol.read(body, protocol.FROM_SERVER) for body in bodies)
        self.hung_up += [caller for caller, _ in effects.hang_ups]

    def connect(self, caller: int, node_id: str = "", run: str = "r", connection: int = 1, process: str = "p") -> None:
        self.done(self.coordinator.opened(caller, self.now))
        hello = protocol.Hello(protocol.VERSION, run if node_id else "", node_id, connection, process=process)
        self.done(self.coordinator.received(caller, protocol.MAGIC + protocol.frame(hello), self.now))

    def say(self, caller: int, *messages: object) -> None:
        self.done(self.coordinator.received(caller, b"".join(map(protocol.frame, messages)), self.now))

    def join(self, caller: int, node_id: str, low: int = 1, high: int = 1, **hints: Any) -> None:
        node = Node(id=node_id, name=node_id, address="127.0.0.1", **hints)
        self.say(caller, Joined(node, Bounds(low, high), Settings(last_call_s=0.0)))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            self.done(self.coordinator.tick(self.now))

    def goodbye(self, caller: int) -> protocol.Goodbye:
        return next(said for said in self.told[caller] if isinstance(said, protocol.Goodbye))


def test_an_exception_in_one_run_closes_it_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    for caller, run in ((1, "broken"), (2, "whole")):
        server.connect(caller, "a", run)
        server.join(caller, "a")
    runs = server.coordinator.runs
    for _ in runs.take("broken", RunInput(lambda *_: 1 / 0), server.now):  # type: ignore[arg-type]
        pass
    assert runs.known["broken"].run.phase is Phase.CLOSED
    assert "a fault of Rallypoint's: ZeroDivisionError" in server.coordinator.runs.known["broken"].run.closing.why  # type: ignore[union-attr]
    assert "cannot go on" in caplog.text
    assert runs.known["whole"].run.current is not None
    server.wait(6.0)
    assert "whole" not in runs.known, "its silent node is lost, and nobody is left in it"


@pytest.mark.parametrize("number", [0, 1, 2, 2**31])
def test_a_stranger_with_the_id_of_a_node_does_it_no_harm(number: int) -> None:
    server = Server()
    server.connect(1, "a")
    server.join(1, "a")
    server.connect(2, "a", connection=number, process="another")
    assert server.hung_up == [2]
    assert server.coordinator.knows(1)
    server.wait(2.0)
    assert server.coordinator.runs.known["r"].run.current is not None, "it is not taken for lost"
    server.connect(3, "a", connection=2)
    assert server.hung_up == [2, 1], "its own newer connection still replaces it"


def test_a_run_that_failed_while_it_recovered_ends_as_others_do() -> None:
    server = Server()
    server.coordinator.runs.fixed_hold_s = 5.0
    server.connect(1, "a")
    seat = Seat(4, "s4", 2, 0)
    node = Node(id="a", name="a", address="127.0.0.1")
    server.say(1, Announced(node, Bounds(2, 2), Standing.HOLDS, incarnation="old", seat=seat))
    runs = server.coordinator.runs
    for _ in range(2):
        for _ in runs.take("r", RunInput(lambda *_: 1 / 0), server.now):  # type: ignore[arg-type]
            pass
    server.done(server.coordinator.ended(1, server.now))
    server.wait(70.0)
    assert runs.faults == 2, "it does not fail again and again"
    assert "r" not in runs.known, "it is forgotten in the end"


def test_what_everybody_sees_of_a_node_does_not_tell_its_process() -> None:
    assert process_token() not in this_node("a").id
    assert this_node("a").id.partition(".")[2].partition("_")[0] not in process_token()


def test_many_questions_at_once_are_not_all_answered() -> None:
    server = Server(questions=64)
    server.connect(1)
    server.say(1, *(protocol.AskRuns(number) for number in range(1, 1300)))
    answers = [said for said in server.told[1] if isinstance(said, protocol.Runs)]
    assert len(answers) == 64
    assert server.goodbye(1).final
    assert "questions" in server.goodbye(1).why
    server.connect(2)
    for number in range(1, 200):
        server.say(2, protocol.AskRuns(number))
    assert server.coordinator.knows(2), "one at a time is no burst"


@pytest.mark.parametrize("node_id", ["", "a"])
def test_a_caller_that_says_hello_and_nothing_more_is_hung_up_on(node_id: str) -> None:
    server = Server(idle_s=60.0)
    server.connect(1, node_id)
    server.wait(59.0)
    server.say(1, protocol.Ping())
    server.wait(59.0)
    assert server.coordinator.knows(1)
    server.wait(2.0)
    assert not server.coordinator.knows(1)
    assert not server.goodbye(1).final


def test_a_node_that_has_left_is_idle() -> None:
    server = Server(idle_s=10.0)
    server.connect(1, "a")
    server.join(1, "a", 2, 2)
    server.say(1, Left("a", Reason.WITHDREW))
    server.wait(11.0)
    assert not server.coordinator.knows(1)


def test_a_node_that_takes_part_is_not_idle_until_it_is_lost() -> None:
    server = Server(idle_s=10.0)
    for caller in (1, 2):
        server.connect(caller, f"n{caller}")
        server.join(caller, f"n{caller}", 2, 2)
    for _ in range(10):
        server.wait(3.0)
        server.join(1, "n1", 2, 2)
    assert server.coordinator.knows(1)
    assert not server.coordinator.knows(2), "it was lost, and has said nothing since"


def test_a_node_that_was_evicted_and_says_nothing_more_is_idle() -> None:
    server = Server(idle_s=10.0)
    server.connect(1, "a")
    server.join(1, "a", 2, 2)
    server.connect(2)
    server.say(2, protocol.AskEvict(1, "r", "a"))
    server.wait(11.0)
    assert not server.coordinator.knows(1)


def test_a_stranger_with_the_id_of_a_node_that_is_away_does_not_keep_it_out() -> None:
    server = Server()
    server.connect(1, "a", process="its own")
    server.join(1, "a", 2, 2)
    server.done(server.coordinator.ended(1, server.now))
    server.connect(2, "a", connection=9, process="a stranger's")
    assert server.goodbye(2).why == "that node is in another process"
    server.connect(3, "a", connection=2, process="its own")
    server.join(3, "a", 2, 2)
    assert server.coordinator.knows(3)
    server.say(3, Left("a", Reason.WITHDREW))
    server.done(server.coordinator.ended(3, server.now))
    server.connect(4, "a", process="a newcomer's")
    assert server.coordinator.knows(4), "nobody has that id any more"


def test_a_run_that_may_have_more_nodes_than_the_server_holds_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(connections=3)
    for caller in (1, 2):
        server.connect(caller, f"n{caller}")
        server.join(caller, f"n{caller}", 2, 4)
    warning = "run 'r' is for up to 4 nodes, and this server can hold 3 (ulimit -n)"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [warning]


def test_where_the_server_is_full_the_idle_make_room() -> None:
    server = Server(connections=3)
    server.connect(1, "a")
    server.join(1, "a", 2, 2)
    server.connect(2)
    server.connect(3)
    server.connect(4, "b")
    assert server.hung_up == [2]
    server.join(4, "b", 2, 2)
    assert server.coordinator.runs.known["r"].run.current is not None
    server.connect(5, "c", "other")
    server.join(5, "c")
    assert server.hung_up == [2, 3]
    server.connect(6)
    assert server.hung_up == [2, 3, 6], "nobody who takes part goes"
    assert "3 connections are all that this server can hold" in server.goodbye(6).why


def test_pages_of_peers_with_long_names_fit_into_a_message() -> None:
    server = Server()
    for caller in range(1, 301):
        server.connect(caller, f"{caller:03}")
        server.join(caller, f"{caller:03}", 300, 300, topology="x" * 1000)
    run = server.coordinator.runs.known["r"].run
    assert run.current is not None
    known: list[int] = []
    while len(known) < 300:
        server.told[1].clear()
        server.say(1, protocol.AskPeers(1, run.current.seal_id, len(known)))
        (page,) = (said for said in server.told[1] if isinstance(said, protocol.Peers))
        assert len(protocol.frame(page)) <= protocol.FRAME_LIMIT
        known += [peer.rank for peer in page.page]
    assert known == list(range(300))


def test_a_long_name_makes_an_id_that_can_be_said() -> None:
    hello = protocol.Hello(protocol.VERSION, "r", this_node("n" * 256).id, 1)
    assert protocol.read(protocol.frame(hello)[4:], protocol.FROM_NODE) == hello


def test_a_probe_of_our_own_nodes_is_not_taken_for_a_web_browser() -> None:
    from rallypoint.net import HTTP_PROBE

    server = Server()
    server.done(server.coordinator.opened(1, 0.0))
    server.done(server.coordinator.received(1, HTTP_PROBE, 0.0))
    assert "a node that asks what listens here" in server.goodbye(1).why
