"""Documents in c10d stores, store files and etcd's API v2, as the commands see them: records and whatever else is there."""

from __future__ import annotations

import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from rallypoint.backends.etcd_v2_client import make_client
from rallypoint.messages.types import Ending
from rallypoint.record import Record, RecordedEnding, encode
from rallypoint.stores import FileStore, TcpStore
from rallypoint.stores.etcd_v2.keys import EtcdNode, Keys
from rallypoint.waiting import Deadline
from tests.support.cli_processes import answer, answer_json, refused
from tests.support.elected_service import a_claim, a_record, nobody, serving, waiting_node
from tests.support.etcd_servers import HOST, shared

PREFIX = "torch.rendezvous."
NOTHING = "Y2FuaW1hZGFt"
PICKLE = b"\x80\x04\x95\x0f\x00\x00\x00"
OLD = b'{"v":1,"kind":"rallypoint.document","body":{}}'


class Medium:
    """Where documents are put; `team` is the beginning of all run ids of this test."""

    def __init__(self, endpoint: str, put: Callable[[str, str], object], count: Callable[[], object]) -> None:
        self.endpoint = endpoint
        self.at = ("--endpoint", endpoint)
        self.put_raw = put
        self.count = count
        self.team = f"team-{uuid.uuid4().hex}/"

    def put(self, run: str, document: bytes) -> None:
        self.put_raw(f"{self.team}{run}", b64encode(document).decode())

    def put_record(self, record: Record) -> None:
        self.put_raw(record.run_id, b64encode(encode(record)).decode())

    def situations(self) -> dict[str, tuple[str, str]]:
        """The phase and the sentence of each run of this test, as `status` lists them."""
        listed = {each["run_id"]: (each["phase"], each["situation"]) for each in answer_json("status", *self.at)}
        return {name.removeprefix(self.team): told for name, told in listed.items() if name.startswith(self.team)}


@contextmanager
def _c10d(folder: Path) -> Iterator[Medium]:
    with TcpStore(HOST, 0, is_master=True, wait_for_workers=False) as store:
        yield Medium(f"c10d://{HOST}:{store.port}", lambda run, text: store.set(PREFIX + run, text), store.list_keys)


@contextmanager
def _c10d_torch(folder: Path) -> Iterator[Medium]:
    from torch.distributed import TCPStore

    store = TCPStore(HOST, 0, None, True, timedelta(seconds=30), wait_for_workers=False)
    yield Medium(f"c10d://{HOST}:{store.port}", lambda run, text: store.set(PREFIX + run, text), store.num_keys)


@contextmanager
def _file(folder: Path) -> Iterator[Medium]:
    path = folder / "store"
    with FileStore(path) as store:
        yield Medium(f"file://{path}", lambda run, text: store.set(PREFIX + run, text), path.read_bytes)


@contextmanager
def _file_torch(folder: Path) -> Iterator[Medium]:
    from torch.distributed import FileStore as TorchsFileStore

    path = folder / "store"
    store = TorchsFileStore(str(path))
    yield Medium(f"file://{path}", lambda run, text: store.set(PREFIX + run, text), path.read_bytes)


@contextmanager
def _etcd_v2(folder: Path) -> Iterator[Medium]:
    client = make_client([(HOST, shared().members[0].port)])
    keys, term = Keys.of(client), Deadline.after(30)
    yield Medium(
        f"etcd-v2://{shared().endpoint}",
        lambda run, text: keys.write(f"/torch/elastic/rendezvous/{run}", text, term),
        lambda: _changes(keys.read("/torch/elastic/rendezvous", term, recursive=True).node),
    )


def _changes(node: EtcdNode | None) -> set[tuple[str, int]]:
    """Every key with the index of its last change; etcd lists them in any order."""
    if node is None:
        return set()
    return {(node.key, node.modified)}.union(*(_changes(below) for below in node.nodes))


MEDIA = {"c10d": _c10d, "c10d-torch": _c10d_torch, "file": _file, "file-torch": _file_torch, "etcd-v2": _etcd_v2}
everywhere = pytest.mark.parametrize("medium", MEDIA, indirect=True)
once = pytest.mark.parametrize("medium", ["c10d", "etcd-v2"], indirect=True)


@pytest.fixture
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
    with ExitStack() as stack:
        yield stack.enter_context(MEDIA[request.param](tmp_path))


@everywhere
def test_where_nobody_answers_the_record_is_shown_and_nothing_is_written(medium: Medium) -> None:
    with nobody() as port:
        medium.put_record(a_record(f"{medium.team}llama", a_claim(port)))
        ended = RecordedEnding(Ending.SUCCEEDED, "all members have finished")
        medium.put_record(a_record(f"{medium.team}mistral", closing=ended))
        before = medium.count()
        found = medium.situations()
        said = refused("close", f"{medium.team}llama", *medium.at)
    assert set(found) == {"llama", "mistral"}
    assert found["llama"][1].startswith(f"no server answers: 127.0.0.1:{port} cannot be reached: Connection refused; ")
    assert "this is the record of epoch 7" in found["llama"][1]
    assert found["mistral"] == ("closed", "closed as succeeded: all members have finished")
    assert f"127.0.0.1:{port} cannot be reached" in said
    assert refused("status", f"{medium.team}other", *medium.at).startswith("there is no run ")
    assert medium.count() == before


@everywhere
def test_the_server_that_the_record_names_is_asked(medium: Medium) -> None:
    run = f"{medium.team}llama"
    with serving(run) as record:
        medium.put_record(record)
        with waiting_node(record, "node1"):
            assert "(gathering, nodes 2:3): 1 of at least 2 nodes are here (node1)" in answer("status", run, *medium.at)
        with waiting_node(record, "node2"):  # another one: they send no heartbeats, and a command takes a while
            assert answer("evict", run, "node2", *medium.at).startswith(f"node 'node2' was evicted from run {run!r}")
        told = answer("close", run, *medium.at, "--why", "the budget is spent")
        assert told == f"run {run!r}: closed as failed: the budget is spent\n"


@once
def test_documents_of_others_are_named_as_what_they_are(medium: Medium) -> None:
    medium.put("torchs", PICKLE)
    medium.put("old", OLD)
    found = medium.situations()
    assert {name: phase for name, (phase, _) in found.items()} == {"torchs": "unreadable", "old": "unreadable"}
    assert "it is a pickle, which is never loaded; a torch job may be using the same name" in found["torchs"][1]
    assert "was written by Rallypoint 0.1" in found["old"][1]
    for run, words in (("torchs", "it is a pickle"), ("old", "Rallypoint 0.1")):
        for question in (("close", f"{medium.team}{run}"), ("evict", f"{medium.team}{run}", "node1")):
            said = refused(*question, *medium.at)
            assert said.startswith(f"nothing was done to run '{medium.team}{run}' at {medium.endpoint}: ")
            assert words in said


@once
def test_what_is_no_base64_is_said_to_be_damaged(medium: Medium) -> None:
    medium.put_raw(f"{medium.team}odd", "###")
    assert "should hold base64, and begins with b'###'" in answer("status", f"{medium.team}odd", *medium.at)
    assert "should hold base64" in refused("close", f"{medium.team}odd", *medium.at)


@pytest.mark.parametrize("medium", ["c10d", "file"], indirect=True)
def test_a_place_that_is_kept_free_and_the_stores_of_rounds_are_no_runs(medium: Medium) -> None:
    document = b64encode(encode(a_record("llama"))).decode()
    medium.put_raw("empty", NOTHING)
    medium.put_raw("llama.r0123456789abcdef.4/greeting", document)
    medium.put_raw("llama.4/torchelastic/role_info/0", '{"role": "trainer"}')
    assert answer("runs", *medium.at) == f"There are no runs at {medium.endpoint}.\n"
    assert refused("status", "empty", *medium.at) == f"there is no run 'empty' at {medium.endpoint}"


def test_a_file_in_which_nothing_is_yet(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.touch()
    assert answer("runs", "--endpoint", f"file://{path}") == f"There are no runs at file://{path}.\n"
    assert path.read_bytes() == b""
