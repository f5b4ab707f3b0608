"""How a process finds the server of its run, or becomes it (rules 17a, 17b, 17f, 17h)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rallypoint.core.model import EndedIncarnation, Phase, Predecessor
from rallypoint.location.actions import Bind, Connect, Ended, ReadRecord, Serve, Stop, Unbind, WriteRecord
from rallypoint.messages.types import Ending, RecordedWorld, rank_bitmap
from rallypoint.record import Claim, Record, RecordedEnding, decode
from tests.location.sans_io_drivers import REST_S, SETTINGS, START, WORLD, Process, ScriptedRegister, a_claim, a_record

POLL_S = SETTINGS.heartbeat_interval_s / 2
MEMBER: dict[str, Any] = {"incarnation": "r1", "round": 4, "seal_id": "s4", "ranks": (0,)}


def register_with(record: Record | None = None) -> ScriptedRegister:
    register = ScriptedRegister()
    if record is not None:
        register.put(record)
    return register


def looking(record: Record | None, **candidate: Any) -> Process:
    """A process that has read this record in search of a server."""
    process = Process(register_with(record), **candidate)
    process.look()
    process.answer(ReadRecord)
    return process


def beat(register: ScriptedRegister) -> None:
    """The server that the record names shows that it lives."""
    record = register.record
    assert record.claim is not None
    claim = msgspec.structs.replace(record.claim, beat=record.claim.beat + 1)
    register.put(msgspec.structs.replace(record, claim=claim, write_id=f"beat {claim.beat}"))


def was_welcomed(record: Record, **candidate: Any) -> Process:
    """A process whose node is with the server that this record names."""
    assert record.claim is not None
    process = looking(record, **candidate)
    process.welcomed(record.claim, record.epoch)
    process.forget()
    return process


def own(process: Process) -> Claim:
    """The claim by which a process serves, which is in the register."""
    claim = process.only(Serve).claim
    shown = process.register.record.claim
    assert shown is not None
    assert shown.id == claim.id
    assert process.all(Connect)[-1].claim == claim
    return claim


# Finding nobody -------------------------------------------------------------------------------------------------------


def test_who_finds_no_record_binds_a_port_claims_and_serves() -> None:
    """Rule 17a: nobody hears of the claim before it is written."""
    process = looking(None)
    process.answer(Bind)
    write = process.call
    assert isinstance(write, WriteRecord)
    assert process.all(Serve) == []
    process.answer(WriteRecord)
    claim = own(process)
    assert (claim.addresses, claim.port, claim.rest_s, claim.secret) == (("host-a",), 29400, REST_S, "the secret of a")
    assert (process.register.record, write.token) == (decode(write.value), None)
    assert process.register.record.epoch == 1
    assert process.only(Serve).run.incarnation == process.register.record.incarnation


def test_who_finds_a_record_without_a_claim_claims_with_the_next_epoch() -> None:
    """Rule 17a."""
    process = looking(a_record(world=WORLD, claim=None), **MEMBER)
    process.settle()
    own(process)
    assert (process.register.record.epoch, process.register.record.world) == (4, WORLD)


def test_a_claim_is_above_any_epoch_that_the_process_was_ever_welcomed_under() -> None:
    """Rule 17a: the register was set back."""
    process = was_welcomed(a_record(epoch=7, met=7))
    process.register.put(a_record(epoch=2, claim=None))
    process.look()
    process.settle()
    own(process)
    assert process.register.record.epoch == 8


def test_losers_connect_to_the_winner_and_give_their_port_back() -> None:
    """Rule 17a."""
    register = ScriptedRegister()
    first, second = Process(register, "a"), Process(register, "b")
    for process in (first, second):
        process.look()
        process.answer(ReadRecord)
        process.answer(Bind)
    first.answer(WriteRecord)
    second.answer(WriteRecord)
    second.answer(ReadRecord)
    claim = register.record.claim
    assert claim == own(first)
    assert (second.only(Connect), second.all(Unbind)) == (Connect(claim), [Unbind()])
    assert second.all(Serve) == []


def test_a_claim_whose_answer_was_lost_is_recognised_by_reading() -> None:
    """Rule 17c: the process does not wait for itself to become stale."""
    process = looking(None)
    process.answer(Bind)
    process.lose_answer(applied=True)
    assert process.all(Serve) == []
    process.wait(0.1)
    own(process)
    assert process.register.record.epoch == 1


def test_a_claim_that_was_not_written_is_written_once_more() -> None:
    """Rule 17a."""
    process = looking(None)
    process.answer(Bind)
    process.lose_answer(applied=False)
    process.wait(0.1)
    own(process)
    assert process.register.record.epoch == 1


@pytest.mark.parametrize("taken", [False, True])
def test_the_late_answer_to_a_claim_is_read_again_first(taken: bool) -> None:
    """Rule 17a: after so long the claim may have been taken for stale already."""
    process = looking(None)
    process.answer(Bind)
    write = process.open_call(WriteRecord)
    entry = process.register.write(write.value, write.token)
    if taken:
        process.register.put(a_record(claim=a_claim("c2")))
    process.now += REST_S / 2 + 0.1
    process.do(process.election.wrote(entry, process.now))
    assert process.all(Serve) == []
    process.answer(ReadRecord)
    assert len(process.all(Serve)) == (not taken)
    assert process.all(Unbind) == ([Unbind()] if taken else [])


# Finding a claim ------------------------------------------------------------------------------------------------------


def test_who_finds_a_claim_connects_to_it_and_reads_on_while_the_connection_is_tried() -> None:
    """Rule 17a: a changed record ends the attempt."""
    process = looking(a_record())
    assert process.told == [Connect(a_claim())]
    assert process.election.why == "the server at 10.0.0.1, port 29400, is being reached"
    assert process.election.wake_at() == START + POLL_S
    process.forget()
    process.register.put(a_record(epoch=4, claim=a_claim("c2")))
    process.wait(POLL_S)
    assert process.told == [Connect(a_claim("c2"))]


def test_nothing_is_read_once_a_node_is_welcomed() -> None:
    """Rule 17a: a node reads when it has heard nothing from its server, and the register costs O(1) a round."""
    process = looking(a_record())
    process.welcomed(a_claim(), 3)
    assert process.election.wake_at() is None
    process.changed()
    process.tick()
    assert process.call is None


def test_a_claim_whose_beat_rests_is_taken() -> None:
    """Rule 17a: no connection tells, because a frozen server still accepts them."""
    process = looking(a_record())
    process.wait(REST_S)
    assert process.all(Serve) == []
    process.wait(2 * POLL_S)
    own(process)
    assert process.register.record.epoch == 4


def test_a_claim_that_beats_is_never_taken() -> None:
    """Rule 17a: a node that cannot reach a living claim waits."""
    process = looking(a_record())
    for _ in range(30):
        process.failed(a_claim())
        process.wait(2.0)
        beat(process.register)
    assert process.all(Serve) == []


@pytest.mark.parametrize("lives", [True, False])
def test_a_claim_whose_lease_is_gone_is_taken_at_once(lives: bool) -> None:
    """Rule 17a."""
    register = register_with(a_record())
    register.claim_lives = lives
    process = Process(register)
    process.look()
    process.settle()
    process.wait(3 * REST_S if lives else 0.0)
    assert len(process.all(Serve)) == (not lives)


def test_a_claim_that_had_welcomed_this_process_and_refuses_it_is_taken() -> None:
    """Rule 17a: by a read after that, and without a wait for the beat."""
    process = was_welcomed(a_record())
    process.failed(a_claim(), refused=True)
    assert process.election.refused_by == "c1"
    assert process.told == []
    process.answer(ReadRecord)
    process.settle()
    own(process)


def test_a_read_from_before_the_refusal_does_not_make_a_claim_stale() -> None:
    """Rule 17a: the server may have moved on since that read was started."""
    process = was_welcomed(a_record())
    process.failed(a_claim(), refused=False)
    process.now += 0.1
    process.failed(a_claim(), refused=True)
    process.answer(ReadRecord)
    assert process.all(Connect) == [Connect(a_claim())]
    process.register.put(a_record(epoch=4, claim=a_claim("c2")))
    process.wait(POLL_S)
    assert process.all(Connect)[-1] == Connect(a_claim("c2"))
    assert process.all(Serve) == []


def test_a_server_that_refused_and_then_beats_is_alive() -> None:
    """Rule 17a: the claimant waits for its turn, and reads once more before it claims."""
    process = was_welcomed(a_record(world=WORLD), **{**MEMBER, "ranks": (2,)})
    process.failed(a_claim(), refused=True)
    process.answer(ReadRecord)
    assert process.all(Connect) == []
    beat(process.register)
    process.wait(0.1)
    assert process.only(Connect).claim.beat == 1
    assert process.election.refused_by == ""


def test_a_refusal_by_a_claim_that_never_welcomed_this_process_tells_nothing() -> None:
    """Rule 17a: a server may claim an address that only this node cannot reach."""
    process = looking(a_record())
    for _ in range(9):
        process.failed(a_claim(), refused=True)
        process.wait(POLL_S)
    assert process.election.refused_by == ""
    assert process.all(Serve) == []


def tries_in_vain(record: Record, seconds: float, **candidate: Any) -> Process:
    """A process that cannot reach a living claim for some time, and says so with every attempt."""
    process = looking(record, **candidate)
    process.failed(a_claim())
    process.settle()
    until = process.now + seconds
    while process.now < until and not process.all(Serve):
        process.wait(min(POLL_S, until - process.now))
        if not process.all(Serve):
            beat(process.register)
            process.failed(a_claim())
            process.settle()
    return process


@pytest.mark.parametrize(("met", "wait_s"), [(2, 5.0), (1, 10.0), (0, 20.0)])
def test_a_claim_that_nobody_has_met_may_be_taken_when_it_was_tried_in_vain(met: int, wait_s: float) -> None:
    """Rule 17a: a server claims an address that nobody can reach; each claim in vain doubles the wait."""
    assert tries_in_vain(a_record(met=met), wait_s - 0.1).all(Serve) == []
    process = tries_in_vain(a_record(met=met), wait_s + 2 * POLL_S)
    own(process)
    assert process.register.record.met == met


def test_a_claim_that_another_process_has_met_is_not_taken_for_want_of_an_answer() -> None:
    """Rule 17a: the one that cannot reach it waits."""
    assert tries_in_vain(a_record(met=3), 120.0).all(Serve) == []


@pytest.mark.parametrize("ranks", [(), (0,), (1,)], ids=["no rank", "a finished rank", "an unfinished rank"])
def test_where_there_is_a_world_only_an_unfinished_rank_takes_a_claim_in_vain(ranks: tuple[int, ...]) -> None:
    """Rule 17a."""
    record = a_record(met=2, world=RecordedWorld(4, "s4", 3, rank_bitmap([0])))
    process = tries_in_vain(record, 20.0, **{**MEMBER, "ranks": ranks})
    assert len(process.all(Serve)) == (ranks == (1,))


def test_the_attempts_before_a_welcome_do_not_count() -> None:
    """Rule 17a: in vain is from the first failure since."""
    process = tries_in_vain(a_record(met=2), 4.0)
    process.welcomed(a_claim(), 3)
    beat(process.register)
    process.failed(a_claim())
    process.wait(4.0)
    assert process.all(Serve) == []


# Not claiming ---------------------------------------------------------------------------------------------------------


def test_who_may_not_claim_waits_says_so_and_keeps_trying() -> None:
    """Rule 17a: `is_host=false` claims nothing."""
    process = looking(None, is_host=False)
    assert process.election.why == "nobody serves this run, and this node may not"
    assert (process.told, process.election.is_content) == ([], False)
    process.wait(10.0)
    assert (process.all(Serve), process.all(Connect)) == ([], [])
    process.register.put(a_record())
    process.wait(POLL_S)
    assert process.only(Connect) == Connect(a_claim())


def test_who_may_not_claim_goes_on_trying_a_stale_claim() -> None:
    """Rule 17a: nobody else may be there to take it, and the server may continue."""
    process = looking(a_record(), is_host=False)
    process.wait(2 * REST_S)
    process.forget()
    process.wait(POLL_S)
    assert process.told == [Connect(a_claim())]
    assert process.election.why == "nobody serves this run, and this node may not"


def test_a_node_that_leaves_without_anything_to_deliver_claims_nothing() -> None:
    """Rule 17a: its reason was acknowledged."""
    process = looking(None, leaving=True)
    process.wait(10.0)
    assert process.all(Serve) == []
    assert process.election.why == "nobody serves this run, and this node leaves it"


def test_a_node_that_leaves_with_something_to_deliver_claims_last() -> None:
    """Rule 17a: after 2 s, where nobody else has."""
    process = looking(None, leaving=True, delivers=True)
    process.wait(1.9)
    assert process.all(Serve) == []
    process.wait(0.2)
    own(process)


def test_a_process_whose_last_node_has_left_looks_for_nobody() -> None:
    """Rule 17g."""
    process = looking(None)
    process.answer(Bind)
    process.lose_answer()
    process.leave()
    assert process.told == [Unbind()]
    process.look()
    process.tick()
    assert (process.call, process.election.wake_at()) == (None, None)


def test_a_port_that_was_bound_too_late_is_given_back() -> None:
    """Rule 17g: the last node left meanwhile."""
    process = looking(None)
    process.leave()
    process.answer(Bind)
    assert (process.told, process.call) == ([Unbind()], None)


def test_a_claim_that_was_written_while_the_last_node_left_is_removed_before_anybody_trusts_it() -> None:
    """Rule 17g."""
    process = looking(None)
    process.answer(Bind)
    process.leave()
    process.answer(WriteRecord)
    process.answer(WriteRecord)
    assert process.register.record.claim is None
    assert (process.all(Serve), process.only(Stop).handed_over) == ([], True)
    process.look()
    assert (process.call, process.election.wake_at()) == (None, None)


# Order ----------------------------------------------------------------------------------------------------------------


def test_the_second_rank_waits_and_claims_where_the_first_did_not() -> None:
    """Rule 17b: it reads once more before it does."""
    process = looking(a_record(world=WORLD, claim=None), **{**MEMBER, "ranks": (1,)})
    assert (process.told, process.election.is_content) == ([], False)
    assert process.election.wake_at() == pytest.approx(START + 0.03)
    assert process.election.why == "nobody serves this run: other nodes may claim it first"
    process.now += 0.03
    process.tick()
    process.answer(ReadRecord)
    process.settle()
    own(process)


def test_a_host_claims_without_a_stagger_and_connects_where_another_serves() -> None:
    """Rule 17a: `is_host=true`."""
    process = looking(a_record(world=WORLD, claim=None), is_host=True)
    process.settle()
    own(process)
    assert looking(a_record(world=WORLD), is_host=True).only(Connect) == Connect(a_claim())


def test_a_changed_record_ends_the_wait() -> None:
    """Rule 17b: the first rank has claimed."""
    process = looking(a_record(world=WORLD, claim=None), **{**MEMBER, "ranks": (2,)})
    process.now += 0.01
    process.register.put(a_record(epoch=4, world=WORLD, claim=a_claim("c2")))
    process.changed()
    process.answer(ReadRecord)
    assert process.only(Connect) == Connect(a_claim("c2"))
    process.wait(1.0)
    assert process.all(Serve) == []


def test_a_record_that_changed_and_has_no_claim_again_starts_the_wait_over() -> None:
    """Rule 17b: those who were first may be first once more."""
    process = looking(a_record(world=WORLD, claim=None), **{**MEMBER, "ranks": (2,)})
    process.now += 0.05
    process.register.put(a_record(epoch=4, world=WORLD, claim=None))
    process.changed()
    process.answer(ReadRecord)
    assert process.election.wake_at() == pytest.approx(START + 0.05 + 0.06)


# Taking over ----------------------------------------------------------------------------------------------------------


def hold_s(process: Process) -> float:
    """How long the run that a process serves waits for the ranks of its world."""
    run = process.only(Serve).run
    assert run.phase is Phase.RECOVERING
    assert run.hold_ends is not None
    return run.hold_ends - process.now


def test_the_hold_is_short_where_the_claim_was_removed() -> None:
    """Rule 17f: every node has noticed."""
    process = looking(a_record(world=WORLD, claim=None), **MEMBER)
    process.settle()
    assert hold_s(process) == SETTINGS.reconnect_backoff_s
    assert process.only(Serve).run.predecessor is None


def test_the_hold_is_short_and_the_ranks_of_the_server_are_lost_where_its_address_refused() -> None:
    """Rule 17f: after the reconnect grace."""
    process = was_welcomed(a_record(world=WORLD, claim=a_claim(ranks=(0,))), **{**MEMBER, "ranks": (1,)})
    process.failed(a_claim(), refused=True)
    process.settle()
    assert hold_s(process) == SETTINGS.reconnect_backoff_s
    until = process.now + SETTINGS.reconnect_grace_s
    assert process.only(Serve).run.predecessor == Predecessor("s4", (0,), until)


@pytest.mark.parametrize("silent_s", [4.0, 6.0])
def test_where_the_claim_is_only_stale_others_may_not_have_noticed(silent_s: float) -> None:
    """Rule 17f: the hold allows for two reads; the server's ranks are lost once it was silent for long enough."""
    member = {**MEMBER, "ranks": (1,), "heard_at": START}
    process = was_welcomed(a_record(world=WORLD, claim=a_claim(ranks=(0,))), **member)
    process.register.claim_lives = False
    process.now += silent_s
    process.look()
    process.settle()
    assert hold_s(process) == pytest.approx(SETTINGS.hold_s + 2 * POLL_S)
    until = max(START + SETTINGS.heartbeat_timeout_s, process.now + SETTINGS.reconnect_grace_s)
    assert process.only(Serve).run.predecessor == Predecessor("s4", (0,), until)


def test_a_server_that_still_answers_has_time_to_renew_a_claim_that_went_stale() -> None:
    """Rule 17e: the medium stood still, and the lease of a healthy server ended with that."""
    process = was_welcomed(a_record(world=WORLD, claim=a_claim(ranks=(0,))), **{**MEMBER, "ranks": (1,)})
    process.register.claim_lives = False
    began = process.now
    for step in range(1, 4):
        process.now = began + step * SETTINGS.heartbeat_timeout_s / 3
        process.candidate = msgspec.structs.replace(process.candidate, heard_at=process.now)
        process.look()
        process.answer(ReadRecord)
    assert process.election.serving is None
    process.now += SETTINGS.heartbeat_timeout_s / 2
    process.candidate = msgspec.structs.replace(process.candidate, heard_at=process.now)
    process.look()
    process.settle()
    assert process.election.serving is not None


# Closed ---------------------------------------------------------------------------------------------------------------

FAILED = EndedIncarnation("r1", Ending.FAILED, "too few")


@pytest.mark.parametrize(
    "record",
    [
        a_record(world=WORLD, closing=RecordedEnding(Ending.FAILED, "too few")),
        a_record(world=WORLD, closing=RecordedEnding(Ending.FAILED, "too few"), claim=None),
        a_record(incarnation="r2", last=FAILED),
        a_record(incarnation="r2", last=FAILED, claim=None),
    ],
    ids=["closed", "closed, without a claim", "the last one", "the last one, without a claim"],
)
def test_a_member_of_an_incarnation_that_has_ended_needs_no_server_to_know_it(record: Record) -> None:
    """Rule 17h: it is in the record."""
    process = looking(record, **MEMBER)
    assert process.told == [Ended(FAILED)]
    assert (process.call, process.election.wake_at()) == (None, None)


def test_the_ending_of_another_incarnation_is_not_ones_own() -> None:
    """Rule 17h."""
    process = looking(a_record(incarnation="r9", last=EndedIncarnation("r8", Ending.FAILED)), **MEMBER)
    assert process.told == [Connect(a_claim())]
    process = looking(a_record(incarnation="r9", closing=RecordedEnding(Ending.FAILED)), **MEMBER)
    assert process.told == [Connect(a_claim())]


@pytest.mark.parametrize("incarnation", ["", "r1"])
def test_a_fresh_node_that_finds_a_closed_record_without_a_living_claim_founds_the_next_incarnation(
    incarnation: str,
) -> None:
    """Rule 17h: also one that was told of the incarnation that ended, and was never in a world of it."""
    closed = a_record(world=WORLD, closing=RecordedEnding(Ending.FAILED, "too few"), claim=None)
    process = looking(closed, incarnation=incarnation)
    process.settle()
    run = process.only(Serve).run
    assert (run.phase, run.last) == (Phase.GATHERING, FAILED)
    assert run.incarnation not in ("", "r1")


def test_a_fresh_node_that_finds_a_closed_record_asks_its_living_server() -> None:
    """Rule 17h: it answers for `closed_ttl`."""
    process = looking(a_record(world=WORLD, closing=RecordedEnding(Ending.FAILED, "too few")))
    assert process.told == [Connect(a_claim())]


# The register itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_a_register_that_cannot_be_reached_is_asked_again_less_and_less_often(chance: float) -> None:
    """Rule 17a: it says so, and no more than once a second in the long run."""
    process = Process(ScriptedRegister(), chance=chance)
    process.look()
    pauses = []
    for _ in range(8):
        process.lose_answer()
        due = process.election.wake_at()
        assert due is not None
        pauses.append(due - process.now)
        process.now = due
        process.tick()
    share = 0.5 + chance / 2
    assert pauses == pytest.approx([share * pause for pause in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0)])
    assert process.election.why == "the register does not tell who serves: timed out"
    assert process.told == []


def test_a_record_that_cannot_be_read_is_said_and_never_overwritten() -> None:
    """Rule 17a: something else may use that name, and the operator is told what to do."""
    register = ScriptedRegister()
    assert register.write(b"no record", None) is not None
    process = Process(register)
    process.look()
    process.settle()
    process.wait(30.0)
    assert "delete it" in process.election.why
    assert process.told == []
    register.put(a_record())
    process.wait(1.0)
    assert process.all(Connect)[-1] == Connect(a_claim())
