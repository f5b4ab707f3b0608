"""How a server keeps its claim, has things recorded, and ends (rules 17c, 17d, 17e, 17g)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rallypoint.core.model import EndedIncarnation, Run
from rallypoint.location.actions import (
    ClaimedAgain,
    Connect,
    Doubt,
    ReadRecord,
    Recorded,
    Renewed,
    Serve,
    Stop,
    WriteRecord,
)
from rallypoint.messages.types import Ending, Reason, rank_bitmap
from rallypoint.record import Record
from tests.location.sans_io_drivers import REST_S, START, WORLD, Process, ScriptedRegister, a_claim, a_record, elected
from tests.support.run_driver import RunDriver

FIRST_RETRY_S = 0.05


def a_server(record: Record | None = None, **candidate: Any) -> tuple[Process, Run]:
    """A process that has just been elected, by epoch 1 or by the one after the record's."""
    register = ScriptedRegister()
    if record is not None:
        register.put(record)
    return elected(register, **candidate)


def sealed(run: Run) -> RunDriver:
    """The run with a world of three, which is to be recorded."""
    driver = RunDriver(2, 3, run=run)
    driver.join("a", "b", "c")
    assert driver.run.world is not None
    return driver


def wants(process: Process, run: Run, *ranks: int) -> WriteRecord:
    """The server asks for something to be recorded; the write that this makes, which is open."""
    process.serving.want(run, ranks)
    process.tick()
    assert isinstance(process.call, WriteRecord)
    return process.call


def a_server_with_a_world(**candidate: Any) -> tuple[Process, RunDriver]:
    """A server whose run has a recorded world of three."""
    process, run = a_server(**candidate)
    driver = sealed(run)
    wants(process, driver.run, 0)
    process.answer()
    process.forget()
    return process, driver


def successor_of(record: Record, claim_id: str = "c2", **fields: Any) -> Record:
    """What another process makes of a record."""
    changed = {"claim": a_claim(claim_id), "epoch": record.epoch + 1, "write_id": f"by {claim_id}", **fields}
    return msgspec.structs.replace(record, **changed)


# Recorded before told -------------------------------------------------------------------------------------------------


def test_what_a_server_wants_to_be_recorded_is_written_before_it_may_be_told() -> None:
    """Rule 17c: one write, by the token of the last one."""
    process, run = a_server()
    before = process.register.read()
    assert before is not None
    driver = sealed(run)
    write = wants(process, driver.run, 0, 2)
    assert write.token == before.token
    assert process.told == []
    process.answer()
    assert process.told == [Recorded()]
    record = process.register.record
    assert (record.world is not None, record.epoch, record.incarnation) == (True, 1, run.incarnation)
    assert record.claim is not None
    assert (record.claim.id, record.claim.ranks, record.claim.beat) == (process.serving.claim.id, (0, 2), 1)
    assert process.call is None


def test_a_write_whose_answer_was_lost_is_looked_up_by_its_id() -> None:
    """Rule 17c: it is not written twice."""
    process, run = a_server()
    write = wants(process, sealed(run).run)
    process.lose_answer(applied=True)
    assert (process.told, process.call) == ([], None)
    process.wait(FIRST_RETRY_S)
    assert process.told == [Recorded()]
    assert process.register.record == write.record


def test_a_write_that_never_arrived_is_written_again() -> None:
    """Rule 17c."""
    process, run = a_server()
    driver = sealed(run)
    write = wants(process, driver.run)
    process.lose_answer(applied=False)
    process.now += FIRST_RETRY_S
    process.tick()
    process.answer(ReadRecord)
    assert process.told == []
    process.answer(WriteRecord)
    assert process.told == [Recorded()]
    record = process.register.record
    assert record.world == write.record.world
    assert record.write_id != write.record.write_id


def test_an_earlier_attempt_that_arrived_late_is_recognised() -> None:
    """Rule 17c: the attempt after it fails by its token, and what is there is what was wanted."""
    process, run = a_server()
    first = wants(process, sealed(run).run)
    process.lose_answer(applied=False)
    process.now += FIRST_RETRY_S
    process.tick()
    process.answer(ReadRecord)
    assert process.register.write(first.value, first.token) is not None
    process.answer(WriteRecord)
    assert process.told == []
    process.answer(ReadRecord)
    assert (process.told, process.call) == ([Recorded()], None)
    assert process.register.record == first.record


def test_what_is_wanted_meanwhile_is_not_taken_for_recorded() -> None:
    """Rule 17c: a world that was not itself written is never told."""
    process, run = a_server()
    driver = sealed(run)
    wants(process, driver.run)
    process.lose_answer(applied=True)
    driver.finish("a")
    process.serving.want(driver.run, ())
    process.now += FIRST_RETRY_S
    process.tick()
    process.answer(ReadRecord)
    assert process.told == []
    process.answer(WriteRecord)
    assert process.told == [Recorded()]
    world = process.register.record.world
    assert world is not None
    assert list(world.finished_ranks()) == [0]


def test_a_register_that_does_not_answer_is_asked_again_less_and_less_often() -> None:
    """Rule 17c: and not more than once in half a second in the long run."""
    process, run = a_server()
    wants(process, sealed(run).run)
    pauses = []
    for _ in range(7):
        process.lose_answer()
        due = process.election.wake_at()
        assert due is not None
        pauses.append(due - process.now)
        process.now = due
        process.tick()
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5])


def test_the_beat_is_raised_at_a_third_of_the_rest_and_a_write_counts_as_one() -> None:
    """Rule 17a: so that nobody takes the claim for stale."""
    process, run = a_server()
    assert process.election.wake_at() == pytest.approx(START + REST_S / 3)
    process.wait(1.0)
    wants(process, sealed(run).run)
    process.answer()
    assert process.election.wake_at() == pytest.approx(START + 1.0 + REST_S / 3)
    process.forget()
    process.wait(2 * REST_S + 0.1)
    claim = process.register.record.claim
    assert claim is not None
    assert claim.beat == 7
    assert process.told == []


def test_where_there_are_leases_nothing_is_written_while_nothing_changes() -> None:
    """Rule 17e: the claim is renewed by a read that shows it."""
    register = ScriptedRegister()
    register.claim_lives = True
    process, _ = elected(register)
    before = register.read()
    process.wait(10 * REST_S)
    assert register.read() == before
    assert process.told == []


def test_that_another_process_was_met_is_written_when_there_is_time_and_carried_on() -> None:
    """Rule 17a: its write is not awaited."""
    process, run = a_server(a_record(claim=None, met=1))
    assert process.register.record.met == 1
    process.serving.meet()
    process.tick()
    process.answer(WriteRecord)
    assert (process.register.record.epoch, process.register.record.met) == (4, 4)
    assert (process.told, process.call) == ([], None)
    wants(process, sealed(run).run)
    process.answer()
    assert process.register.record.met == 4


def test_what_was_met_under_earlier_claims_is_carried_on_by_every_write() -> None:
    """Rule 17a: otherwise the next claim would be waited for longer than it is due."""
    process, run = a_server(a_record(claim=None, met=1))
    wants(process, sealed(run).run)
    process.answer()
    assert (process.register.record.epoch, process.register.record.met) == (4, 1)


# Deposed, or claiming again -------------------------------------------------------------------------------------------


def test_a_server_is_deposed_by_an_epoch_above_its_own() -> None:
    """Rule 17d: it never writes again under that claim."""
    process, _ = a_server_with_a_world()
    process.register.put(successor_of(process.register.record))
    process.check()
    assert process.only(Stop) == Stop("another server was elected: epoch 2 came after epoch 1", 2)
    assert (process.election.serving, process.call, process.election.wake_at()) == (None, None, None)
    process.look()
    process.answer(ReadRecord)
    assert process.all(Connect) == [Connect(a_claim("c2"))]


def test_a_deposed_server_learns_so_by_its_next_write_at_the_latest() -> None:
    """Rule 17d: that write fails, and what was wanted is never told."""
    process, driver = a_server_with_a_world()
    process.register.put(successor_of(process.register.record))
    driver.finish("a")
    wants(process, driver.run)
    process.answer(WriteRecord)
    process.answer(ReadRecord)
    assert [type(action) for action in process.told] == [Stop]
    assert process.register.record.write_id == "by c2"


def test_a_server_that_was_deposed_claims_above_every_epoch_that_it_saw() -> None:
    """Rule 17a: also if the register forgot its successor."""
    process, _ = a_server()
    process.register.put(successor_of(process.register.record, epoch=9))
    process.check()
    process.register.empty()
    process.forget()
    process.look()
    process.settle()
    assert process.only(Serve).record.epoch == 10


@pytest.mark.parametrize("claim", [None, a_claim("c2")])
def test_a_server_is_deposed_by_an_incarnation_that_it_knows_nothing_of(claim: Any) -> None:
    """Rule 17d: whatever its epoch; the register was emptied, and others have sealed a world since."""
    process, _ = a_server(a_record(claim=None))
    process.register.put(a_record(incarnation="r7", epoch=1, claim=claim))
    process.check()
    assert process.only(Stop).epoch == 1


def test_a_run_that_was_only_founded_anew_does_not_depose_a_server() -> None:
    """Rule 17d: the register was emptied, and a fresh node that knew nothing claimed it; nothing came of it yet."""
    process, _ = a_server(a_record(claim=None))
    process.register.put(a_record(incarnation="r7", epoch=1, round=0, world=None, claim=a_claim("c2")))
    process.check()
    process.answer(WriteRecord)
    assert process.register.record.incarnation == "r1"


def test_the_incarnation_before_its_own_does_not_depose_a_server() -> None:
    """Rule 17d: the register was set back."""
    last = EndedIncarnation("r0", Ending.FAILED)
    process, _ = a_server(a_record(claim=None, last=last))
    process.register.put(a_record(incarnation="r0", epoch=2, round=3))
    process.check()
    process.answer(WriteRecord)
    assert process.told == [ClaimedAgain(5)]
    assert process.register.record.incarnation == "r1"


def test_a_server_is_deposed_by_a_higher_round_than_its_own() -> None:
    """Rule 17d: the register forgot the epochs, and others have gone on with the incarnation since."""
    process, _ = a_server(a_record(claim=None, world=WORLD), incarnation="r1", seal_id="s4", ranks=(0,))
    process.register.put(a_record(epoch=1, round=5, claim=a_claim("c2")))
    process.check()
    assert process.all(ClaimedAgain) == []
    assert len(process.all(Stop)) == 1


def test_a_server_whose_register_was_emptied_claims_again_and_keeps_its_memory() -> None:
    """Rule 17d: the same claim id, and an epoch above its own."""
    process, _ = a_server_with_a_world()
    before = process.register.record
    process.register.empty()
    process.check()
    write = process.call
    assert isinstance(write, WriteRecord)
    assert write.token is None
    process.answer()
    assert process.told == [ClaimedAgain(2)]
    after = process.register.record
    assert (after.epoch, after.world, after.incarnation) == (2, before.world, before.incarnation)
    assert after.claim is not None
    assert (after.claim.id, after.claim.ranks) == (process.serving.claim.id, (0,))


@pytest.mark.parametrize("epoch", [1, 3, 4])
def test_a_server_claims_again_where_the_register_shows_a_lower_epoch_or_its_own_otherwise(epoch: int) -> None:
    """Rule 17d: another one wrote it, or the register was set back."""
    process, _ = a_server(a_record(claim=None))
    process.register.put(a_record(epoch=epoch, claim=a_claim("c0"), write_id="by another"))
    process.check()
    process.answer(WriteRecord)
    assert process.told == [ClaimedAgain(5)]
    claim = process.register.record.claim
    assert claim is not None
    assert (process.register.record.epoch, claim.id) == (5, process.serving.claim.id)


def test_a_record_that_was_written_anew_as_it_was_is_its_own_still() -> None:
    """Rule 17d: only its token is another."""
    process, driver = a_server_with_a_world()
    process.register.touch()
    driver.finish("a")
    wants(process, driver.run)
    process.answer(WriteRecord)
    process.answer(ReadRecord)
    process.answer(WriteRecord)
    assert process.told == [Recorded()]
    assert process.register.record.epoch == 1


def test_a_server_claims_above_a_higher_epoch_that_a_hello_named_and_nobody_confirms() -> None:
    """Rule 17d: the register forgot the claim that the node has seen."""
    process, run = a_server()
    process.serving.hear_epoch(run.incarnation, 6)
    process.tick()
    process.answer(ReadRecord)
    process.answer(WriteRecord)
    assert process.told == [ClaimedAgain(7)]
    assert process.register.record.epoch == 7
    process.serving.hear_epoch(run.incarnation, 6)
    process.tick()
    assert process.call is None


def test_a_higher_epoch_that_the_register_confirms_deposes_the_server() -> None:
    """Rule 17d: before it has heard of its successor by itself."""
    process, run = a_server()
    process.register.put(successor_of(process.register.record))
    process.serving.hear_epoch(run.incarnation, 2)
    process.tick()
    process.answer(ReadRecord)
    assert process.only(Stop).epoch == 2


def test_the_epochs_of_another_incarnation_mean_nothing() -> None:
    """Rule 17d: each counts its own."""
    process, _ = a_server()
    process.serving.hear_epoch("another", 6)
    process.tick()
    assert process.call is None


@pytest.mark.parametrize("call", ["read", "write"])
def test_a_server_whose_lease_is_gone_claims_again(call: str) -> None:
    """Rule 17d: others take its claim for stale, and it lives."""
    register = ScriptedRegister()
    register.claim_lives = True
    process, run = elected(register)
    register.claim_lives = False
    if call == "read":
        process.check()
    else:
        wants(process, sealed(run).run)
        process.answer(WriteRecord)
        process.answer(ReadRecord)
    register.claim_lives = True
    process.answer(WriteRecord)
    assert process.all(ClaimedAgain) == [ClaimedAgain(2)]
    process.settle()
    assert (register.record.epoch, process.call) == (2, None)


def test_to_claim_again_after_a_stale_read_fails_by_the_token() -> None:
    """Rule 17d: compare-and-set protects a successor that the read did not show."""
    process, _ = a_server()
    stale = a_record(epoch=1, incarnation=process.serving.record.incarnation, round=0, claim=None)
    process.register.put(stale)
    process.changed()
    process.open_call(ReadRecord)
    entry = process.register.read()
    process.register.put(successor_of(process.serving.record))
    process.do(process.election.read(entry, process.now))
    process.answer(WriteRecord)
    process.answer(ReadRecord)
    assert [type(action) for action in process.told] == [Stop]
    assert process.register.record.write_id == "by c2"


def test_what_was_wanted_is_recorded_after_the_server_has_claimed_again() -> None:
    """Rule 17d: it keeps its nodes and its memory."""
    process, driver = a_server_with_a_world()
    process.register.empty()
    driver.finish("b")
    wants(process, driver.run)
    process.settle()
    assert process.told == [ClaimedAgain(2), Recorded()]
    world = process.register.record.world
    assert world is not None
    assert list(world.finished_ranks()) == [1]


def test_a_record_that_cannot_be_read_is_not_overwritten_by_a_server() -> None:
    """Rule 17d: something else uses that name; the server goes on reading until it is in doubt."""
    process, _ = a_server()
    entry = process.register.read()
    assert entry is not None
    assert process.register.write(b"no record", entry.token) is not None
    process.check()
    process.wait(2 * REST_S)
    read = process.register.read()
    assert read is not None
    assert read.value == b"no record"
    assert [type(action) for action in process.told] == [Doubt]


# In doubt -------------------------------------------------------------------------------------------------------------


def loses_the_register(process: Process, seconds: float) -> None:
    """No call is answered for some time."""
    until = process.now + seconds
    while (due := process.election.wake_at()) is not None and max(due, process.now + 0.001) <= until:
        process.now = max(due, process.now + 0.001)
        process.tick()
        if process.call is not None:
            process.lose_answer()
    process.now = until


def test_a_server_that_could_not_renew_its_claim_for_its_rest_is_in_doubt_and_says_so_once() -> None:
    """Rule 17e: until a read, watch or write shows it."""
    process, _ = a_server()
    loses_the_register(process, REST_S - 0.01)
    assert process.told == []
    loses_the_register(process, 3 * REST_S)
    doubt = process.only(Doubt)
    assert doubt.why.startswith("the claim could not be renewed for 5.")
    assert process.serving.is_in_doubt
    process.forget()
    process.wait(1.0)
    assert process.told == [Doubt("")]
    assert not process.serving.is_in_doubt


def test_a_server_comes_into_doubt_also_while_its_call_is_open() -> None:
    """Rule 17e: a register that never answers renews nothing."""
    process, run = a_server()
    wants(process, sealed(run).run)
    assert process.election.wake_at() == START + REST_S
    process.now = START + REST_S
    process.tick()
    assert [type(action) for action in process.told] == [Doubt]
    assert process.election.wake_at() == float("inf")
    process.lose_answer(applied=True)
    process.wait(FIRST_RETRY_S)
    assert process.told[1:] == [Doubt(""), Recorded()]


def test_a_claim_is_renewed_as_of_the_moment_that_the_register_was_asked() -> None:
    """Rule 17e: and not as of the answer, which says nothing of what came after the question."""
    process, run = a_server()
    process.wait(1.0)
    wants(process, sealed(run).run)
    process.now += 2.0
    process.answer()
    assert process.serving.renewed_at == START + 1.0
    assert process.serving.doubt_at() == START + 1.0 + REST_S


def test_a_deposed_server_is_not_renewed_by_what_it_reads() -> None:
    """Rule 17e: only by what shows its own claim."""
    process, _ = a_server()
    process.now += 1.0
    process.register.empty()
    process.check()
    assert process.serving.renewed_at == START
    process.answer(WriteRecord)
    assert process.serving.renewed_at == START + 1.0


def test_after_a_pause_only_what_the_register_is_asked_after_it_renews_the_claim() -> None:
    """Rule 17e: an answer from before the pause says nothing of it."""
    process, run = a_server()
    wants(process, sealed(run).run)
    process.now += 4.0
    process.serving.renew(process.now)
    process.tick()
    process.answer(WriteRecord)
    assert process.told == [Recorded()]
    process.now += 0.1
    process.answer(ReadRecord)
    assert process.told == [Recorded(), Renewed(START + 4.0)]


def test_a_read_from_before_a_pause_does_not_renew_the_claim() -> None:
    """Rule 17e."""
    process, _ = a_server()
    process.changed()
    process.now += 4.0
    process.serving.renew(process.now)
    process.tick()
    process.answer(ReadRecord)
    assert process.told == []
    process.answer(ReadRecord)
    assert process.told == [Renewed(START + 4.0)]


def test_a_server_that_was_deposed_in_its_pause_is_not_renewed() -> None:
    """Rule 17e: it learns so before it answers anybody."""
    process, _ = a_server()
    process.register.put(successor_of(process.register.record))
    process.now += 7.0
    process.serving.renew(process.now)
    process.tick()
    process.answer(ReadRecord)
    assert (process.all(Renewed), len(process.all(Stop))) == ([], 1)


# Leaving --------------------------------------------------------------------------------------------------------------


def leaves(process: Process, run: Run | None) -> Record:
    """The process of a server leaves: the record that its one write makes."""
    before = process.register.read()
    assert before is not None
    process.leave(run)
    write = process.call
    assert isinstance(write, WriteRecord)
    assert write.token == before.token
    process.answer()
    assert process.only(Stop).handed_over
    assert process.call is None
    return process.register.record


def test_a_server_hands_over_with_one_guarded_write_and_writes_nothing_after_it() -> None:
    """Rule 17g: the epoch and the world stay, and the claim goes."""
    process, driver = a_server_with_a_world()
    before = process.register.record
    after = leaves(process, driver.run)
    assert after == msgspec.structs.replace(before, claim=None, write_id=after.write_id)
    assert after.write_id != before.write_id
    process.forget()
    process.look()
    process.changed()
    process.wait(10 * REST_S)
    assert (process.told, process.call, process.election.wake_at()) == ([], None, None)
    assert process.register.record == after


def test_one_write_removes_the_claim_and_marks_the_world_broken_and_the_ranks_that_are_gone() -> None:
    """Rule 17g: a server whose node withdraws hands over at once."""
    process, driver = a_server_with_a_world()
    driver.leave("a", Reason.WITHDREW)
    driver.join_again("b")
    world = leaves(process, driver.run).world
    assert world is not None
    assert (world.broken, world.gone) == (True, rank_bitmap([0]))


def test_a_rank_that_finished_is_marked_before_its_server_hands_over() -> None:
    """Rule 17g: it is recorded first, and the world is not broken by it."""
    process, driver = a_server_with_a_world()
    driver.finish("a")
    process.serving.want(driver.run, ())
    process.leave(driver.run)
    process.answer(WriteRecord)
    assert process.told == [Recorded()]
    process.answer(WriteRecord)
    record = process.register.record
    assert record.claim is None
    assert record.world is not None
    assert (list(record.world.finished_ranks()), record.world.broken) == ([0], False)


def test_a_world_that_was_never_recorded_is_not_recorded_by_a_handover() -> None:
    """Rule 17c: only what is recorded counts."""
    process, run = a_server()
    driver = sealed(run)
    driver.lose("a")
    assert leaves(process, driver.run).world is None


def test_a_break_of_another_world_than_the_recorded_one_is_not_recorded_by_a_handover() -> None:
    """Rule 17c."""
    process, driver = a_server_with_a_world()
    recorded = process.register.record.world
    driver.lose("a")
    driver.join_again("b", "c")
    driver.lose("b")
    assert leaves(process, driver.run).world == recorded


def test_a_handover_does_not_remove_the_claim_of_a_successor() -> None:
    """Rule 17g: an unguarded removal would."""
    process, driver = a_server_with_a_world()
    process.register.put(successor_of(process.register.record))
    process.leave(driver.run)
    process.answer(WriteRecord)
    process.answer(ReadRecord)
    assert process.only(Stop).handed_over
    assert process.register.record.write_id == "by c2"
    process.look()
    assert process.call is None


@pytest.mark.parametrize("applied", [False, True])
def test_a_handover_whose_answer_was_lost_is_looked_up(applied: bool) -> None:
    """Rule 17g."""
    process, driver = a_server_with_a_world()
    process.leave(driver.run)
    process.lose_answer(applied=applied)
    assert process.told == []
    process.wait(FIRST_RETRY_S)
    assert process.only(Stop).handed_over
    assert process.register.record.claim is None


def test_a_server_that_leaves_an_emptied_register_claims_nothing_again() -> None:
    """Rule 17g: the register names it no longer."""
    process, driver = a_server_with_a_world()
    process.register.empty()
    process.leave(driver.run)
    process.answer(WriteRecord)
    process.answer(ReadRecord)
    assert process.only(Stop).handed_over
    assert (process.call, process.register.read()) == (None, None)
