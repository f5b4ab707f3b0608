"""The commands on records in etcd: they find the server of a run by its record, or show what the record says."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import pytest

from rallypoint.backends.etcd_v3_records import EtcdRecords
from rallypoint.client.admin_client import NotDoneError
from rallypoint.etcd_client import EtcdClient
from rallypoint.location.registers.etcd_v3_keys import RecordKeys
from rallypoint.messages.types import Ending
from rallypoint.record import Record, RecordedEnding, encode
from tests.support.cli_processes import answer, answer_json, refused
from tests.support.elected_service import a_claim, a_record, nobody, serving, waiting_node
from tests.support.etcd_servers import shared


class Etcd:
    """A prefix of its own in an etcd that others use as well."""

    def __init__(self, client: EtcdClient) -> None:
        self.client = client
        self.prefix = f"/{uuid.uuid4().hex}"
        self.endpoint = f"etcd://{','.join(client.endpoints)}"
        self.at = ("--endpoint", self.endpoint, "--etcd-prefix", self.prefix)

    def put(self, record: Record) -> None:
        self.client.put(RecordKeys(self.prefix, record.run_id).record, encode(record))


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    with EtcdClient(shared().endpoint) as client:
        yield Etcd(client)


def test_names_are_those_of_records_and_of_nothing_else(etcd: Etcd) -> None:
    names = sorted(["llama", "team/mistral 7", "record", *(f"run{i}" for i in range(3))])
    for run_id in names:
        keys = RecordKeys(etcd.prefix, run_id)
        for key in (keys.record, keys.claim(7), f"{keys.store('s4')}record", f"{keys.run}in/nodes/a"):
            etcd.client.put(key, b"")
    etcd.client.put(RecordKeys(f"{etcd.prefix}/deeper", "llama").record, b"")
    etcd.client.put(RecordKeys(f"{etcd.prefix}2", "another").record, b"")
    etcd.client.put(RecordKeys(etcd.prefix, "old").old_board, b"")
    assert sorted(EtcdRecords(etcd.client, etcd.prefix).names()) == names
    assert sorted(EtcdRecords(etcd.client, f"{etcd.prefix}/").names()) == names


def test_a_record_is_read_as_it_is(etcd: Etcd) -> None:
    records, record = EtcdRecords(etcd.client, etcd.prefix), a_record("team/llama")
    assert records.read("team/llama") is None
    etcd.put(record)
    assert records.read("team/llama") == encode(record)


@pytest.mark.parametrize("old", ["leader", "out/board"])
def test_keys_of_the_first_release_are_named(etcd: Etcd, old: str) -> None:
    etcd.client.put(f"{etcd.prefix}/llama/{old}", b"{}")
    words = f"run 'llama' at {etcd.endpoint}{etcd.prefix} has keys of Rallypoint 0.1 and no record"
    for question in (("status", "llama"), ("close", "llama"), ("evict", "llama", "a")):
        assert refused(*question, *etcd.at).startswith(words)
    assert answer("runs", *etcd.at) == f"There are no runs at {etcd.endpoint}{etcd.prefix}.\n"
    etcd.put(a_record("llama"))
    assert EtcdRecords(etcd.client, etcd.prefix).read("llama") is not None, "a record counts, whatever lies beside it"


def test_keys_of_the_first_release_are_said_to_expire(etcd: Etcd) -> None:
    etcd.client.put(RecordKeys(etcd.prefix, "llama").old_leader, b"")
    with pytest.raises(NotDoneError, match=r"run the same release everywhere.*expire with their leases$"):
        EtcdRecords(etcd.client, etcd.prefix).read("llama")


def test_the_commands_ask_the_server_that_the_record_names(etcd: Etcd) -> None:
    with serving("llama") as record, waiting_node(record, "node1"):
        etcd.put(record)
        first, header, row, counts = answer("status", "llama", *etcd.at).splitlines()
        assert first.startswith("run 'llama' (gathering, nodes 2:3): 1 of at least 2 nodes are here (node1)")
        assert header.split() == ["node", "rank", "standing", "address", "id"]
        assert re.fullmatch(r"node1 +waiting +127\.0\.0\.1 +node1\.1", row)
        assert counts.startswith("the server's messages so far: ")
        assert (
            answer("evict", "llama", "node1", *etcd.at)
            == "node 'node1' was evicted from run 'llama' and is kept out for 30 s\n"
        )
        told = answer("close", "llama", *etcd.at, "--why", "the budget is spent")
        assert told == "run 'llama': closed as failed: the budget is spent\n"


def test_where_nobody_answers_the_record_is_shown(etcd: Etcd) -> None:
    with nobody() as port:
        etcd.put(a_record("llama", a_claim(port)))
        etcd.put(a_record("mistral", closing=RecordedEnding(Ending.SUCCEEDED, "all members have finished")))
        etcd.client.put(RecordKeys(etcd.prefix, "other").record, b"something else")
        llama, mistral, other = answer_json("status", *etcd.at)
        table = answer("runs", *etcd.at).splitlines()
        assert f"127.0.0.1:{port} cannot be reached" in refused("close", "llama", *etcd.at)
    assert llama["situation"].startswith(f"no server answers: 127.0.0.1:{port} cannot be reached: Connection refused; ")
    assert "this is the record of epoch 7" in llama["situation"]
    assert mistral["situation"].startswith("closed as succeeded: all members have finished")
    assert other["phase"] == "unreadable"
    assert [line.split()[:2] for line in table[1:]] == [
        ["llama", "gathering"],
        ["mistral", "closed"],
        ["other", "unreadable"],
    ]
