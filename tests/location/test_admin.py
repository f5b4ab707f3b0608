"""Rule 17j: `status`, `runs`, `close` and `evict` find servers by a register; where nobody answers, the record is shown."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from rallypoint.client.admin_client import AdminClient, NotDoneError
from rallypoint.core.model import EndedIncarnation
from rallypoint.errors import RendezvousConnectionError
from rallypoint.location.register_admin import RegisterAdminClient
from rallypoint.messages.types import Ending, RecordedWorld, rank_bitmap
from rallypoint.protocol import PAGE_SIZE, Status
from rallypoint.record import Record, RecordedEnding, encode
from rallypoint.report import RunLine
from tests.support.elected_service import (
    SECRET,
    a_claim,
    a_record,
    hanging_up_when_asked,
    nobody,
    serving,
    waiting_node,
)

RUN = "llama"


class MemoryRecords:
    """Records in memory: each reading of a run takes the next of its values, the last of them again and again."""

    where = "the register of a test"

    def __init__(self, *records: Record | None, **others: bytes) -> None:
        self._values: dict[str, list[bytes | None]] = {run_id: [value] for run_id, value in others.items()}
        for record in records:
            run_id = RUN if record is None else record.run_id
            self._values.setdefault(run_id, []).append(None if record is None else encode(record))
        self.readings = 0
        self.is_closed = False

    def names(self) -> list[str]:
        return list(self._values)

    def read(self, run_id: str) -> bytes | None:
        self.readings += 1
        values = self._values.get(run_id, [None])
        return values[0] if len(values) == 1 else values.pop(0)

    def close(self) -> None:
        self.is_closed = True


def line_of(status: Status) -> RunLine:
    assert status.run is not None
    return status.run


def situation(record: Record) -> str:
    """What is told of a run that nobody serves."""
    return line_of(RegisterAdminClient(MemoryRecords(record)).status(RUN)).situation


# Where the server answers ---------------------------------------------------------------------------------------------


def test_the_server_that_the_record_names_is_asked() -> None:
    with serving(RUN) as record, waiting_node(record, "a"), RegisterAdminClient(MemoryRecords(record)) as admin:
        status = admin.status(RUN)
        assert [(node.name, node.standing) for node in status.nodes] == [("a", "waiting")]
        assert line_of(status).situation.startswith("1 of at least 2 nodes are here (a)")
        assert status.messages, "they are the server's own"
        told = admin.evict(RUN, "a", 90.0, "its disk is full")
        assert told == "node 'a' was evicted from run 'llama' and is kept out for 1 min 30 s"
        assert admin.status(RUN).nodes == ()
        assert [(node.name, node.why) for node in admin.status(RUN).kept_out] == [("a", "its disk is full")]
        assert admin.lift(RUN, "a") == "node 'a' may join run 'llama' again"
        assert admin.status(RUN).kept_out == ()
        admin.close_run(RUN, "the budget is spent")
        assert line_of(admin.status(RUN)).situation == "closed as failed: the budget is spent"


def test_what_the_server_refuses_is_told_in_its_words() -> None:
    with (
        serving(RUN) as record,
        pytest.raises(NotDoneError, match=r"there is no node 'b' in run 'llama' \(it has nobody\)"),
    ):
        RegisterAdminClient(MemoryRecords(record)).evict(RUN, "b")


def test_every_address_of_the_server_is_tried() -> None:
    with serving(RUN) as served:
        assert served.claim is not None
        claim = a_claim(served.claim.port, addresses=("127.0.0.2", "no-such-host.invalid", "x..y", "127.0.0.1"))
        assert RegisterAdminClient(MemoryRecords(a_record(RUN, claim))).status(RUN).messages


def test_a_wrong_secret_sends_one_back_to_the_register() -> None:
    with serving(RUN) as record:
        assert record.claim is not None
        stale = a_record(RUN, a_claim(record.claim.port, secret="that of an older claim"), epoch=6)
        records = MemoryRecords(stale, record)
        assert RegisterAdminClient(records).status(RUN).messages
        assert records.readings == 2


@pytest.mark.parametrize("claimed", [True, False])
def test_a_server_that_is_gone_sends_one_back_to_the_register(claimed: bool) -> None:
    with serving(RUN) as record, nobody() as port:
        stale = a_record(RUN, a_claim(port) if claimed else None, epoch=6)
        admin = RegisterAdminClient(MemoryRecords(stale, record))
        admin.close_run(RUN, "the budget is spent")
        assert line_of(admin.status(RUN)).situation == "closed as failed: the budget is spent"


def test_the_register_is_read_twice_at_most() -> None:
    """Where servers change faster than one can ask, the last record that was read is shown."""
    with nobody() as port, nobody() as other:
        records = MemoryRecords(*(a_record(RUN, a_claim(each), epoch=each) for each in (port, other, port, other)))
        told = line_of(RegisterAdminClient(records).status(RUN)).situation
        assert f"127.0.0.1:{other} cannot be reached" in told
        assert f"the record of epoch {other}" in told
        assert records.readings == 2


# Where nobody answers -------------------------------------------------------------------------------------------------


def test_without_a_record_there_is_no_run() -> None:
    admin = RegisterAdminClient(MemoryRecords())
    for ask in (admin.status, admin.close_run, lambda run_id: admin.evict(run_id, "a")):
        with pytest.raises(NotDoneError, match=r"^there is no run 'llama' at the register of a test$"):
            ask(RUN)


def test_a_record_that_is_deleted_meanwhile_is_no_run() -> None:
    with nobody() as port, pytest.raises(NotDoneError, match="there is no run 'llama'"):
        RegisterAdminClient(MemoryRecords(a_record(RUN, a_claim(port)), None)).status(RUN)


def test_where_nobody_answers_the_record_is_shown() -> None:
    world = RecordedWorld(4, "s4", 3, rank_bitmap([1]))
    with nobody() as port:
        status = RegisterAdminClient(MemoryRecords(a_record(RUN, a_claim(port), world=world))).status(RUN)
    assert status.bounds == "2:3"
    assert status.nodes == ()
    assert line_of(status) == RunLine(
        RUN,
        "sealed",
        4,
        0,
        f"no server answers: 127.0.0.1:{port} cannot be reached: Connection refused; this is the record of epoch 7: round "
        f"4 was sealed with 3 nodes; rank 1 has finished; if nodes of this run are left, one of them takes over within "
        f"seconds",
    )


def test_the_last_record_that_was_read_is_shown() -> None:
    with nobody() as port:
        closed = a_record(RUN, a_claim(port), closing=RecordedEnding(Ending.FAILED, "it crashed"))
        status = RegisterAdminClient(MemoryRecords(a_record(RUN, a_claim(port)), closed)).status(RUN)
    assert line_of(status).phase == "closed"


def test_the_secret_is_not_shown() -> None:
    with nobody() as port:
        assert SECRET not in str(RegisterAdminClient(MemoryRecords(a_record(RUN, a_claim(port)))).status(RUN))


def test_every_address_that_was_tried_is_named() -> None:
    with nobody() as port:
        told = situation(a_record(RUN, a_claim(port, addresses=("127.0.0.2", "::1"))))
    assert f"127.0.0.2:{port} cannot be reached: " in told
    assert f"[::1]:{port} cannot be reached: " in told


@pytest.mark.parametrize(
    ("fields", "phase", "told"),
    [
        ({"round": 0}, "gathering", "no world was ever sealed"),
        ({}, "gathering", "no world is sealed"),
        (
            {"last": EndedIncarnation("r0", Ending.FAILED, "it crashed")},
            "gathering",
            "no world is sealed; its last incarnation was closed as failed: it crashed",
        ),
        (
            {"world": RecordedWorld(4, "s4", 1)},
            "sealed",
            "round 4 was sealed with 1 node, none of which has finished",
        ),
        (
            {"world": RecordedWorld(4, "s4", 3, rank_bitmap([0, 2]), broken=True)},
            "gathering",
            "round 4 was sealed with 3 nodes, and broke; ranks 0, 2 have finished",
        ),
        (
            {"world": RecordedWorld(4, "s4", 3, rank_bitmap(range(3)))},
            "sealed",
            "round 4 was sealed with 3 nodes, all of which have finished",
        ),
        (
            {"bounds": {"min": 1, "max": 99}, "world": RecordedWorld(4, "s4", 99, rank_bitmap([0, 1, 2, 7, 9, 10]))},
            "sealed",
            "round 4 was sealed with 99 nodes; ranks 0-2, 7, 9-10 have finished",
        ),
        (
            {"bounds": {"min": 1, "max": 99}, "world": RecordedWorld(4, "s4", 99, rank_bitmap(range(0, 99, 2)))},
            "sealed",
            f"round 4 was sealed with 99 nodes; ranks {', '.join(map(str, range(0, 32, 2)))} and more have finished",
        ),
    ],
)
def test_a_run_that_nobody_serves(fields: Mapping[str, Any], phase: str, told: str) -> None:
    record = a_record(RUN, **fields)
    line = line_of(RegisterAdminClient(MemoryRecords(record)).status(RUN))
    assert line.phase == phase
    assert line.situation == (
        f"no process serves this run; this is the record of epoch 7: {told}; if nodes of this run are left, one of them "
        f"takes over within seconds"
    )


def test_a_run_that_has_ended_says_how() -> None:
    record = a_record(RUN, closing=RecordedEnding(Ending.SUCCEEDED, "all members have finished"))
    assert line_of(RegisterAdminClient(MemoryRecords(record)).status(RUN)).phase == "closed"
    assert situation(record) == ("closed as succeeded: all members have finished")


def test_nothing_is_changed_where_nobody_answers() -> None:
    with nobody() as port:
        admin = RegisterAdminClient(MemoryRecords(a_record(RUN, a_claim(port))))
        for ask in (admin.close_run, lambda run_id: admin.evict(run_id, "a")):
            with pytest.raises(NotDoneError) as caught:
                ask(RUN)
            assert str(caught.value) == (
                f"nothing was done to run 'llama' at the register of a test: no server answers: 127.0.0.1:{port} cannot be "
                f"reached: Connection refused; if nodes of this run are left, one of them takes over within seconds: ask "
                f"again then; if none is left, there is nothing to change"
            )


def test_a_run_that_has_ended_is_not_changed() -> None:
    record = a_record(RUN, closing=RecordedEnding(Ending.FAILED, "it crashed"))
    with pytest.raises(NotDoneError, match=r"its record says that it closed as failed: it crashed$"):
        RegisterAdminClient(MemoryRecords(record)).close_run(RUN)


def test_a_change_whose_answer_is_lost_is_not_asked_for_again() -> None:
    """The node that was evicted may be back under its name by then, and would be evicted twice."""
    with hanging_up_when_asked() as (port, asked), serving(RUN) as other:
        records = MemoryRecords(a_record(RUN, a_claim(port), epoch=6), other)
        with pytest.raises(
            NotDoneError, match=r"it is not known whether run 'llama' is without 'a': the server at .* ended"
        ):
            RegisterAdminClient(records).evict(RUN, "a")
        assert len(asked) == 1
        assert records.readings == 1


def test_a_question_whose_answer_is_lost_is_asked_again() -> None:
    with hanging_up_when_asked() as (port, asked), serving(RUN) as other:
        records = MemoryRecords(a_record(RUN, a_claim(port), epoch=6), other)
        assert RegisterAdminClient(records).status(RUN).messages
        assert len(asked) == 1


def test_what_is_no_record_is_shown_as_that() -> None:
    admin = RegisterAdminClient(MemoryRecords(llama=b"something else"))
    line = line_of(admin.status(RUN))
    assert (line.phase, line.nodes) == ("unreadable", 0)
    assert "delete it" in line.situation
    with pytest.raises(NotDoneError, match=r"nothing was done to run 'llama' at the register of a test: .*delete it"):
        admin.close_run(RUN)


# All runs -------------------------------------------------------------------------------------------------------------


def test_all_runs_are_listed_each_by_who_knows_it() -> None:
    with serving("b") as served, waiting_node(served, "a"), nobody() as port:
        records = MemoryRecords(a_record("c", a_claim(port)), served, a_record("a"), d=b"something else")
        runs = RegisterAdminClient(records).runs()
        statuses = RegisterAdminClient(records).statuses()
    assert runs.total == 4
    assert [(line.run_id, line.phase, line.nodes) for line in runs.runs] == [
        ("a", "gathering", 0),
        ("b", "gathering", 1),
        ("c", "gathering", 0),
        ("d", "unreadable", 0),
    ]
    assert runs.runs[1].situation.startswith("1 of at least 2 nodes are here (a)")
    assert [line_of(status).run_id for status in statuses] == ["a", "b", "c", "d"]


def test_a_register_without_runs_has_none() -> None:
    assert RegisterAdminClient(MemoryRecords()).runs().runs == ()


def test_a_run_that_ends_while_all_are_listed_is_left_out() -> None:
    runs = RegisterAdminClient(MemoryRecords(None, a_record("a"))).runs()
    assert (runs.total, [line.run_id for line in runs.runs]) == (1, ["a"])


def test_of_very_many_runs_the_first_are_listed() -> None:
    records = MemoryRecords(*(a_record(f"run{i:03d}") for i in reversed(range(PAGE_SIZE + 10))))
    runs = RegisterAdminClient(records).runs()
    assert runs.total == PAGE_SIZE + 10
    assert len(runs.runs) == PAGE_SIZE
    assert runs.runs[0].run_id == "run000"


def test_servers_are_asked_at_the_same_time() -> None:
    """One that does not answer costs its time once, however many there are."""
    together = threading.Barrier(8)

    class Meeting(MemoryRecords):
        def read(self, run_id: str) -> bytes | None:
            together.wait(10.0)
            return super().read(run_id)

    records = Meeting(*(a_record(f"run{i}", closing=RecordedEnding(Ending.FAILED, "it crashed")) for i in range(8)))
    assert len(RegisterAdminClient(records).runs().runs) == 8


def test_trouble_with_the_register_is_told() -> None:
    class Away(MemoryRecords):
        def read(self, run_id: str) -> bytes | None:
            raise RendezvousConnectionError("etcd is away")

    admin = RegisterAdminClient(Away(a_record(RUN)))
    for ask in (admin.runs, admin.statuses, lambda: admin.status(RUN), lambda: admin.close_run(RUN)):
        with pytest.raises(RendezvousConnectionError, match="etcd is away"):
            ask()


def test_the_register_is_closed_with_its_admin_client() -> None:
    records = MemoryRecords()
    with RegisterAdminClient(records):
        assert not records.is_closed
    assert records.is_closed


# An administrator by itself --------------------------------------------------------------------------------------------------


def test_an_administrator_without_the_secret_is_told_where_to_find_it() -> None:
    with serving(RUN) as record:
        assert record.claim is not None
        where = f"127.0.0.1:{record.claim.port}"
        with pytest.raises(RendezvousConnectionError) as caught:
            AdminClient("127.0.0.1", record.claim.port)
    assert str(caught.value) == (
        f"the server at {where} wants a token: name its file by --token-file, or put it into RALLYPOINT_TOKEN; if it is "
        f"part of a job that elects its server, name the register by which its nodes find it, as --endpoint "
        f"etcd://HOST:PORT, c10d://HOST:PORT or file:///PATH"
    )


def test_an_administrator_with_a_wrong_secret_is_turned_away() -> None:
    with serving(RUN) as record:
        assert record.claim is not None
        with pytest.raises(
            RendezvousConnectionError, match="does not know the secret of the claim: another one was meant"
        ):
            AdminClient("127.0.0.1", record.claim.port, secret="another")


def test_a_server_without_a_secret_does_not_mind_one() -> None:
    with serving(RUN, secret="") as record:
        assert record.claim is not None
        with AdminClient("127.0.0.1", record.claim.port, secret="another") as admin:
            assert [line.run_id for line in admin.runs().runs] == [RUN]
            assert [line_of(status).run_id for status in admin.statuses()] == [RUN]
