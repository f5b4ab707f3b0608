"""Schedules that broke an earlier version of the election, the queue or the session (rule 17)."""

from __future__ import annotations

from rallypoint.location.actions import Bind, Doubt, Ended, ReadRecord, Unbind, WriteRecord
from rallypoint.messages.notices import KeepWaiting
from rallypoint.messages.types import Bounds, Ending
from rallypoint.record import RecordedEnding
from tests.location.sans_io_drivers import REST_S, WORLD, Process, ScriptedRegister, Server, a_claim, a_record
from tests.location.test_election import MEMBER, looking, was_welcomed
from tests.location.test_serving import a_server, sealed, wants


def test_who_waits_and_beats_every_second_is_told_that_the_record_is_awaited() -> None:
    """Rule 17c: `received` takes the same announcement for a mere beat, because `hosted.run` stands while it is written."""
    server = Server(bounds=Bounds(2, 2))
    server.join("a", "b")
    for _ in range(6):
        server.wait(1.0)
        server.beat()
    assert any("the record has not been confirmed" in said.why for said in server.told("b", KeepWaiting))


def test_a_claim_that_welcomed_again_after_a_refusal_is_not_taken_when_a_connection_ends() -> None:
    """Rule 17a: `welcomed` does not clear `_refused`; the server lives and a connection was lost, nothing more."""
    process = was_welcomed(a_record())
    process.failed(a_claim(), refused=True)
    process.welcomed(a_claim(), 3)
    process.settle()
    process.now += 60.0
    process.failed(a_claim(), refused=False)
    process.answer(ReadRecord)
    assert not isinstance(process.call, Bind)


def test_an_answer_that_came_after_rest_s_does_not_lift_the_doubt_for_a_moment() -> None:
    """Rule 17e: [Doubt(""), Recorded, Doubt("...")]: between the two, the coordinator may seal."""
    process, run = a_server()
    wants(process, sealed(run).run)
    process.now += REST_S
    process.tick()
    assert len(process.all(Doubt)) == 1
    process.answer(WriteRecord)
    assert Doubt("") not in process.told


def test_a_port_that_was_bound_is_given_back_when_the_incarnation_turns_out_to_have_ended() -> None:
    """Rule 17h: `Ended` is returned without `Unbind`."""
    process = looking(a_record(world=WORLD, claim=None), **MEMBER)
    process.answer(Bind)
    process.register.put(a_record(world=WORLD, closing=RecordedEnding(Ending.SUCCEEDED), epoch=4))
    process.answer(WriteRecord)
    process.answer(ReadRecord)
    assert len(process.all(Ended)) == 1
    assert process.all(Unbind) == [Unbind()]


def test_the_stagger_is_kept_the_second_time_where_the_register_did_not_change() -> None:
    """Rule 17b: `_delayed` is kept by token, and on media with leases the token rests; later all claim at once."""
    register = ScriptedRegister()
    register.claim_lives = False
    register.put(a_record(world=WORLD))
    process = Process(register, **{**MEMBER, "ranks": (2,)})
    process.look()
    process.answer(ReadRecord)
    register.claim_lives = True
    process.welcomed(a_claim(), 3)
    process.now += 60.0
    register.claim_lives = False
    process.look()
    process.answer(ReadRecord)
    assert process.call is None


def test_a_claim_whose_answer_is_lost_while_the_process_leaves_is_removed() -> None:
    """Rule 17g: leave during the claim's write, then `away`: nobody looks whether it was written."""
    process = looking(None)
    process.answer(Bind)
    process.leave()
    process.lose_answer(applied=True)
    process.wait(10.0)
    assert process.register.record.claim is None
