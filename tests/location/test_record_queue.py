"""What a server may tell while a write of its record is in flight, and after a pause (rules 17c, 17e)."""

from __future__ import annotations

import itertools

import pytest

from rallypoint import protocol
from rallypoint.client.session import Session
from rallypoint.client.view import State
from rallypoint.core.changes import Durability
from rallypoint.core.model import Run
from rallypoint.messages.notices import Broken, KeepWaiting, Placed, RunClosed, StandBy
from rallypoint.messages.types import Bounds, Reason
from rallypoint.record import of
from rallypoint.server.effects import ToRecord
from rallypoint.server.run_state import Output, RunState
from rallypoint.server.runs import AppliedInput, Change, HostedRuns, RunInput
from tests.location.sans_io_drivers import SETTINGS, START, Server, state_of

NONE, FINISH, SEAL = Durability.NONE, Durability.FINISH, Durability.SEAL_OR_CLOSE
TWO = Bounds(2, 2)

# The queue ------------------------------------------------------------------------------------------------------------


class Queue:
    """A run whose inputs are named, and what was told of them."""

    def __init__(self, *, keeps_records: bool = True) -> None:
        numbers = itertools.count(1)
        self.now = START
        self.runs = HostedRuns(START, lambda: str(next(numbers)), keeps_records=keeps_records, elected=True)
        self.runs.restore(Run(run_id="run", incarnation="r1"), 1, START)
        self.told: list[str] = []
        self.times: list[float] = []
        self.answered: list[int] = []

    def take(self, name: str, durability: Durability) -> None:
        """Something happens that must be recorded, or need not."""

        def change(state: RunState, now: float, mint: str) -> Output:
            return Output(state, why=name, durability=durability)

        self._input(change)

    def ask(self, number: int) -> None:
        """Somebody asks whether all before has been taken."""
        self._input(None, number)

    def _input(self, change: Change | None, asked: int = 0) -> None:
        self._tell(list(self.runs.take("run", RunInput(change, None, int(bool(asked)), asked), self.now)))

    def recorded(self) -> None:
        """The record is written."""
        self._tell(list(self.runs.recorded("run", self.now)))

    def _tell(self, turns: list[AppliedInput]) -> None:
        self.told += [turn.output.why for turn in turns if turn.output.why]
        self.times += [turn.now for turn in turns]
        self.answered += [turn.taken.asked for turn in turns if turn.taken.asked]

    def writes(self) -> int:
        """How many writes were asked for since the last time."""
        count = len(self.runs.to_record)
        self.runs.to_record.clear()
        return count


@pytest.mark.parametrize("durability", [FINISH, SEAL])
def test_what_must_be_recorded_is_told_after_it(durability: Durability) -> None:
    """Rule 17c: a server that dies before its write is applied has told nobody."""
    queue = Queue()
    queue.take("seal", durability)
    assert (queue.told, queue.writes()) == ([], 1)
    queue.recorded()
    assert (queue.told, queue.writes()) == (["seal"], 0)


@pytest.mark.parametrize("durability", [FINISH, SEAL])
def test_a_server_that_keeps_no_records_tells_at_once(durability: Durability) -> None:
    """Rule 17c is for those who keep some."""
    queue = Queue(keeps_records=False)
    queue.take("seal", durability)
    assert (queue.told, queue.writes()) == (["seal"], 0)


def test_what_need_not_be_recorded_is_told_at_once() -> None:
    """Rule 17c: a loss, for one."""
    queue = Queue()
    queue.take("loss", NONE)
    assert (queue.told, queue.writes()) == (["loss"], 0)


def test_while_a_write_is_in_flight_inputs_queue_and_are_taken_in_order() -> None:
    """Rule 17c: nothing is decided on top of what is not recorded."""
    queue = Queue()
    queue.take("seal", SEAL)
    for name in ("one", "two", "three"):
        queue.take(name, NONE)
    assert (queue.told, queue.writes()) == ([], 1)
    queue.recorded()
    assert (queue.told, queue.writes()) == (["seal", "one", "two", "three"], 0)


def test_several_finishes_share_one_write() -> None:
    """Rule 17c: those who came while another one was written, and what came between them."""
    queue = Queue()
    queue.take("first", FINISH)
    queue.writes()
    for name, durability in [("second", FINISH), ("loss", NONE), ("third", FINISH)]:
        queue.take(name, durability)
    queue.recorded()
    assert (queue.told, queue.writes()) == (["first"], 1)
    queue.recorded()
    assert (queue.told[1:], queue.writes()) == (["second", "loss", "third"], 0)


def test_what_came_before_a_finish_is_not_withheld_with_it() -> None:
    """Rule 17c: it stands on recorded state."""
    queue = Queue()
    queue.take("seal", SEAL)
    queue.take("loss", NONE)
    queue.take("finish", FINISH)
    queue.recorded()
    assert queue.told == ["seal", "loss"]


def test_a_seal_ends_what_one_write_may_contain() -> None:
    """Rule 17c: two seals in one write, and the first was never recorded."""
    queue = Queue()
    queue.take("finish", FINISH)
    for name, durability in [("other", FINISH), ("seal", SEAL), ("close", SEAL), ("loss", NONE)]:
        queue.take(name, durability)
    told = []
    for _ in range(3):
        assert queue.writes() == 1
        queue.told.clear()
        queue.recorded()
        told.append(list(queue.told))
    assert told == [["finish"], ["other", "seal"], ["close", "loss"]]
    assert queue.writes() == 0


def test_a_question_is_answered_in_its_turn() -> None:
    """Rule 17c: an acknowledgement must not overtake the write of what it acknowledges."""
    queue = Queue()
    queue.ask(1)
    assert queue.answered == [1]
    queue.take("finish", FINISH)
    queue.ask(2)
    queue.take("close", SEAL)
    queue.ask(3)
    assert queue.answered == [1]
    queue.recorded()
    assert (queue.told, queue.answered) == (["finish"], [1, 2])
    queue.recorded()
    assert (queue.told, queue.answered) == (["finish", "close"], [1, 2, 3])


def test_a_second_answer_of_the_register_means_nothing() -> None:
    """Rule 17c: nothing is in flight."""
    queue = Queue()
    queue.take("seal", SEAL)
    queue.recorded()
    queue.now += 1.0
    queue.recorded()
    queue.take("loss", NONE)
    assert (queue.told, queue.times[-1]) == (["seal", "loss"], START + 1.0)


def test_the_runs_clock_stands_while_a_write_is_in_flight() -> None:
    """Rule 17c: no time-out runs out over a register that is slow."""
    queue = Queue()
    queue.now += 1.0
    queue.take("seal", SEAL)
    queue.now += 7.0
    queue.take("loss", NONE)
    queue.recorded()
    queue.now += 0.5
    queue.take("join", NONE)
    assert queue.times == [START + 1.0, START + 1.0, START + 1.5]


def test_a_run_that_is_suspended_takes_nothing_and_asks_for_no_write() -> None:
    """Rule 17e: after a pause the claim is checked before every answer."""
    queue = Queue()
    queue.runs.suspend(queue.now)
    queue.take("loss", NONE)
    queue.now += 2.0
    assert (queue.told, queue.writes()) == ([], 0)
    queue._tell(list(queue.runs.resume("run", queue.now)))
    assert (queue.told, queue.times, queue.writes()) == (["loss"], [START], 0)


def test_a_write_that_was_in_flight_when_the_run_was_suspended_is_awaited_still() -> None:
    """Rule 17e: that the claim stands does not say that the write was done."""
    queue = Queue()
    queue.take("seal", SEAL)
    queue.runs.suspend(queue.now)
    queue._tell(list(queue.runs.resume("run", queue.now)))
    assert queue.told == []
    queue.recorded()
    assert queue.told == ["seal"]


# A server and its nodes -----------------------------------------------------------------------------------------------


def finished_ranks(record: ToRecord) -> list[int]:
    """Which ranks a record has as finished."""
    world = of(record.run, epoch=record.epoch, write_id="w").world
    assert world is not None
    return list(world.finished_ranks())


def with_a_world(server: Server, *names: str) -> list[Session]:
    """Nodes with a world that is recorded."""
    sessions = server.join(*names)
    server.recorded()
    assert all(state_of(session) is State.HOLDS for session in sessions)
    server.records.clear()
    return sessions


def test_nobody_hears_of_a_seal_before_it_is_recorded() -> None:
    """Rule 17c: neither its members, nor who asks for the state of the run."""
    server = Server(bounds=TWO)
    server.join("a", "b")
    assert [record.epoch for record in server.records] == [1]
    assert (server.told("a", Placed), server.told("b", Placed), server.run.world) == ([], [], None)
    server.recorded()
    assert [placed.rank for name in "ab" for placed in server.told(name, Placed)] == [0, 1]
    assert server.records[0].run.world == server.run.world
    assert len(server.records) == 1


def test_nobody_hears_of_a_close_before_it_is_recorded() -> None:
    """Rule 17c: and its acknowledgement follows."""
    server = Server(bounds=TWO)
    session, _ = with_a_world(server, "a", "b")
    server.say(session, session.close_run())
    assert (server.told("b", RunClosed), session.is_heard) == ([], False)
    server.recorded()
    assert len(server.told("b", RunClosed)) == 1
    assert session.is_heard


def test_finishes_that_come_while_one_is_written_share_the_next_write() -> None:
    """Rule 17c: each is acknowledged after its own write."""
    server = Server(bounds=Bounds(4, 4))
    sessions = with_a_world(server, *"abcd")
    for session in sessions[:3]:
        server.say(session, session.leave(Reason.FINISHED))
    assert [finished_ranks(record) for record in server.records] == [[0]]
    server.recorded()
    assert [session.is_heard for session in sessions[:3]] == [True, False, False]
    assert [finished_ranks(record) for record in server.records] == [[0], [0, 1, 2]]
    server.recorded()
    assert [session.is_heard for session in sessions[:3]] == [True, True, True]
    assert len(server.records) == 2


def test_welcomes_and_pongs_pass_while_a_write_is_in_flight() -> None:
    """Rule 17c: otherwise nodes take a healthy server for dead."""
    server = Server(bounds=TWO)
    a, _ = server.join("a", "b")
    late = server.session("c")
    server.connect(late)
    assert (late.welcomed, len(server.told("c", protocol.Welcome))) == (True, 1)
    server.say(late, late.join(server.now, 60.0))
    server.say(a, a.beat(server.now))
    for name in ("a", "c"):
        assert isinstance(server.heard[name][-1], protocol.Pong)
    server.recorded()
    assert (state_of(a), len(server.told("c", StandBy))) == (State.HOLDS, 1)


def test_questions_about_what_is_recorded_are_answered_while_a_write_is_in_flight() -> None:
    """Rule 17c: from the recorded state."""
    server = Server(bounds=TWO)
    a, b = with_a_world(server, "a", "b")
    server.say(a, a.leave(Reason.FINISHED))
    assert b.view.world is not None
    seal_id, answers = b.view.world.seal_id, list[protocol.Answer]()
    server.say(b, b.ask(lambda number: protocol.AskPeers(number, seal_id), answers.append))
    assert [type(answer) for answer in answers] == [protocol.Peers]


def test_who_waits_is_told_after_2_s_that_the_record_is_awaited() -> None:
    """Rule 17c: the sentence is the answer to those who wait for a place."""
    server = Server(bounds=TWO)
    sessions = server.join("a", "b")
    server.wait(2.25)
    server.beat()
    for session in sessions:
        why = "what was decided is being recorded, and the record has not been confirmed for 2.2 s"
        assert server.told(session.view.node.id, KeepWaiting)[-1].why == why
        assert session.view.why == why
    server.recorded()
    assert [state_of(session) for session in sessions] == [State.HOLDS, State.HOLDS]


def test_who_waits_is_not_troubled_with_a_record_that_takes_less_than_2_s() -> None:
    """Rule 17c: a pong is enough."""
    server = Server(bounds=TWO)
    server.join("a", "b")
    server.wait(1.75)
    server.beat()
    assert isinstance(server.heard["a"][-1], protocol.Pong)
    assert server.told("b", KeepWaiting) == []


def test_who_holds_a_world_is_not_told_to_wait_for_a_record() -> None:
    """Rule 17c: a pong is all that it needs."""
    server = Server(bounds=TWO)
    a, b = with_a_world(server, "a", "b")
    server.say(a, a.leave(Reason.FINISHED))
    server.wait(3.0)
    server.say(b, b.beat(server.now))
    assert isinstance(server.heard["b"][-1], protocol.Pong)


def test_nobody_is_lost_for_the_time_that_a_write_takes() -> None:
    """Rule 17c: the run's clock stands; the silence counts from the end of the write on."""
    server = Server(bounds=TWO)
    a, _ = server.join("a", "b")
    server.wait(3 * SETTINGS.heartbeat_timeout_s)
    server.recorded()
    server.wait(SETTINGS.heartbeat_timeout_s - 0.5)
    assert server.run.current is not None
    server.say(a, a.beat(server.now))
    server.wait(1.0)
    assert server.run.current is None


def test_a_loss_is_told_when_the_write_that_is_in_flight_is_done() -> None:
    """Rule 17c: inputs queue, the end of a connection too."""
    server = Server(bounds=Bounds(1, 3))
    a, b, c = server.join("a", "b", "c")
    server.recorded()
    server.say(a, a.leave(Reason.FINISHED))
    server.hang_up(b)
    server.wait(1.0)
    assert state_of(c) is State.HOLDS
    server.recorded()
    server.wait(0.5)
    assert state_of(c) is State.BROKEN


# In doubt and after a pause -------------------------------------------------------------------------------------------


def test_a_server_in_doubt_seals_nothing_says_so_and_seals_when_it_has_renewed_its_claim() -> None:
    """Rule 17e."""
    server = Server(bounds=TWO)
    server.perform(server.coordinator.set_doubt("the claim could not be renewed", server.now))
    sessions = server.join("a", "b")
    assert (server.records, server.run.world) == ([], None)
    assert sessions[1].view.why == "the claim could not be renewed"
    server.perform(server.coordinator.set_doubt("", server.now))
    assert len(server.records) == 1


def test_a_server_in_doubt_tells_a_loss_at_once() -> None:
    """Rule 17e."""
    server = Server(bounds=TWO)
    a, b = with_a_world(server, "a", "b")
    server.perform(server.coordinator.set_doubt("the claim could not be renewed", server.now))
    server.hang_up(a)
    server.wait(0.5)
    assert (len(server.told("b", Broken)), state_of(b)) == (1, State.BROKEN)


def a_paused_server(pause_s: float = 4.0) -> tuple[Server, Session]:
    """A server with a world of two that was stopped for some time; `a` has hung up meanwhile, and `b` is here."""
    server = Server(bounds=TWO, pause_s=2.5)
    a, b = with_a_world(server, "a", "b")
    assert not server.coordinator.must_renew
    server.now += pause_s
    server.hang_up(a)
    return server, b


def beats(server: Server, session: Session, seconds: int) -> None:
    """Time passes, and a node is heard every second."""
    for _ in range(seconds):
        server.say(session, session.beat(server.now))
        server.wait(1.0)


def test_after_a_pause_a_server_tells_no_loss_before_its_claim_is_renewed() -> None:
    """Rule 17e: another one may serve by now."""
    server, b = a_paused_server()
    assert server.coordinator.must_renew
    beats(server, b, 15)
    assert state_of(b) is State.HOLDS
    server.renewed(server.now)
    beats(server, b, 6)
    assert (len(server.told("b", Broken)), state_of(b)) == (1, State.BROKEN)


def test_after_a_short_pause_a_server_goes_on() -> None:
    """Rule 17e: within half of its rest nobody can have taken its claim for stale."""
    server, b = a_paused_server(pause_s=2.0)
    assert not server.coordinator.must_renew
    beats(server, b, 1)
    assert state_of(b) is State.BROKEN


def test_after_a_pause_a_server_places_nobody_before_its_claim_is_renewed() -> None:
    """Rule 17e: it checks its claim before every answer; pongs and welcomes pass."""
    server = Server(bounds=TWO, pause_s=2.5)
    server.join("a")
    server.now += 4.0
    server.join("b")
    assert (server.records, server.told("b", KeepWaiting)) == ([], [])
    assert [type(message) for message in server.heard["b"]] == [protocol.Welcome, protocol.Pong]
    server.renewed(server.now)
    assert len(server.records) == 1


def test_what_the_register_was_asked_before_the_pause_renews_nothing() -> None:
    """Rule 17e: nor what it was asked between two pauses."""
    server, b = a_paused_server()
    woke = server.now
    server.renewed(woke - 0.5)
    beats(server, b, 1)
    server.now += 4.0
    server.tick()
    server.renewed(woke)
    beats(server, b, 15)
    assert state_of(b) is State.HOLDS
    server.renewed(server.now)
    beats(server, b, 6)
    assert state_of(b) is State.BROKEN


def test_a_write_that_is_confirmed_after_a_pause_is_told_when_the_claim_is_renewed() -> None:
    """Rule 17e: it was recorded, and a successor may have gone on from it since."""
    server = Server(bounds=TWO, pause_s=2.5)
    server.join("a", "b")
    server.now += 4.0
    server.recorded()
    assert server.told("a", Placed) == []
    server.renewed(server.now)
    assert len(server.told("a", Placed)) == 1


def test_a_claim_that_is_renewed_does_not_tell_what_is_not_recorded_yet() -> None:
    """Rule 17c: in whichever order the two answers come."""
    server = Server(bounds=TWO, pause_s=2.5)
    server.join("a", "b")
    server.now += 4.0
    server.tick()
    server.renewed(server.now)
    assert server.told("a", Placed) == []
    server.recorded()
    assert len(server.told("a", Placed)) == 1
