"""What every register promises (rule 17, the port).  Another one is run through the same tests by its line in REGISTERS."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

from rallypoint.backends.c10d_stores import tcp_store
from rallypoint.backends.etcd_v2_client import make_client
from rallypoint.elastic.c10d_rendezvous_backend import C10dRendezvousBackend
from rallypoint.elastic.etcd_rendezvous_backend import EtcdRendezvousBackend
from rallypoint.etcd_client import EtcdClient
from rallypoint.location.register import Entry, Register
from rallypoint.location.registers.backend import BackendRegister
from rallypoint.location.registers.etcd_v3 import EtcdV3Register
from rallypoint.location.registers.etcd_v3_keys import RecordKeys
from rallypoint.messages.types import Bounds
from rallypoint.net import parse_endpoints
from rallypoint.record import Record, encode
from rallypoint.stores import FileStore
from rallypoint.stores.documents import ETCD_V2_FOLDER
from rallypoint.torch_bridge import stores_c10d
from simulation.memory_register import MemoryRegister
from tests.support.etcd_servers import running, shared
from tests.support.waiting import PATIENCE_S

_runs = itertools.count(1)


def record(write_id: str) -> bytes:
    """A value that a register may hold; each write of a server has an id of its own."""
    return encode(Record(run_id="run", incarnation="r1", epoch=1, round=0, write_id=write_id, bounds=Bounds(1, 2)))


ONE, TWO, THREE, LATE = (record(name) for name in ("one", "two", "three", "late"))


class Medium(Protocol):
    """A register, and what may befall its medium."""

    has_versions: bool
    """Whether it tells two writes of the same value apart."""

    def open(self) -> Register:
        """The register, as one more process sees it."""

    def empty(self) -> None:
        """The medium forgets."""

    def touch(self) -> None:
        """Somebody writes the same value anew."""


class Memory:
    """One object that all threads share."""

    has_versions = True

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._register = MemoryRegister()

    def open(self) -> Register:
        return self._register

    def empty(self) -> None:
        self._register.empty()

    def touch(self) -> None:
        self._register.touch()


class _Store:
    """A c10d store; each process has a client of its own."""

    has_versions = False

    def __init__(self) -> None:
        self._run_id = f"run-{next(_runs)}"

    def store(self) -> Any:
        raise NotImplementedError

    def open(self) -> Register:
        return BackendRegister(lambda: C10dRendezvousBackend(self.store(), self._run_id), owned=True)

    def empty(self) -> None:
        self.store().delete_key(f"torch.rendezvous.{self._run_id}")

    def touch(self) -> None:
        raise AssertionError("it cannot tell")


class OurTcpStore(_Store):
    """A store that is served here."""

    with_torch = False

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        super().__init__()
        timeout = timedelta(seconds=PATIENCE_S)
        self._served, _ = tcp_store("127.0.0.1", 0, timeout, True, with_torch=self.with_torch)

    def store(self) -> Any:
        return self._served.clone()


class TorchsTcpStore(OurTcpStore):
    """torch's store and torch's clients."""

    with_torch = True


class OurFileStore(_Store):
    """A store in a file."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        super().__init__()
        self._path = folder / "store"

    def store(self) -> Any:
        return FileStore(str(self._path), timeout=timedelta(seconds=PATIENCE_S))


class TorchsFileStore(OurFileStore):
    """torch's store in a file."""

    def store(self) -> Any:
        return stores_c10d.file_store(str(self._path))


class EtcdV2:
    """A key of etcd's."""

    has_versions = True

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._run_id = f"run-{next(_runs)}"
        endpoint = stack.enter_context(running("3.5")).members[0].endpoint
        self._client = make_client(parse_endpoints(endpoint, 2379), read_timeout_s=PATIENCE_S)

    def open(self) -> Register:
        return BackendRegister(lambda: EtcdRendezvousBackend(self._client, self._run_id, ETCD_V2_FOLDER))

    def empty(self) -> None:
        self._client.delete(f"{ETCD_V2_FOLDER}/{self._run_id}")

    def touch(self) -> None:
        self._client.write(
            f"{ETCD_V2_FOLDER}/{self._run_id}", self._client.read(f"{ETCD_V2_FOLDER}/{self._run_id}").value
        )


class EtcdV3:
    """A key of etcd's, on a lease, beside the keys of claims."""

    has_versions = True
    version = "3.5"

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._run_id, self._stack, self._endpoint = f"run-{next(_runs)}", stack, shared(self.version).endpoint
        self._prefix = f"/registers-{os.getpid()}"
        self._keys = RecordKeys(self._prefix, self._run_id)
        self._client = stack.enter_context(EtcdClient(self._endpoint))

    def open(self) -> Register:
        client = EtcdClient(self._endpoint)
        register = EtcdV3Register(client, self._prefix, self._run_id, run_ttl_s=60, serves_on=lambda: True)
        self._stack.callback(register.close)
        return register

    def empty(self) -> None:
        self._client.delete(self._keys.record)

    def touch(self) -> None:
        found = self._client.get(self._keys.record)
        assert found is not None
        self._client.put(self._keys.record, found.value, lease=found.lease)


class OldEtcdV3(EtcdV3):
    """The same in etcd 3.4."""

    version = "3.4"


REGISTERS: list[Callable[[ExitStack, Path], Medium]] = [
    Memory,
    OurTcpStore,
    TorchsTcpStore,
    OurFileStore,
    TorchsFileStore,
    EtcdV2,
    EtcdV3,
    OldEtcdV3,
]


VERSIONED: list[Callable[[ExitStack, Path], Medium]] = [Memory, EtcdV2, EtcdV3, OldEtcdV3]
"""Those that tell two writes of the same value apart; elsewhere the token is the value, and no two of a server are the same."""


@pytest.fixture(params=REGISTERS, ids=lambda factory: factory.__name__)
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
    factory: Callable[[ExitStack, Path], Medium] = request.param
    with ExitStack() as stack:
        yield factory(stack, tmp_path)


def written(register: Register, value: bytes, after: Entry | None = None) -> Entry:
    """A write that must succeed."""
    entry = register.write(value, after and after.token)
    assert entry is not None, "another writer was first"
    return entry


def test_an_empty_register_is_read_as_nothing(medium: Medium) -> None:
    """Rule 17a: a node that finds no record may claim."""
    assert medium.open().read() is None


def test_what_was_written_is_read_with_the_token_of_its_write(medium: Medium) -> None:
    """Rule 17c: a lost answer is resolved by reading."""
    first, second = medium.open(), medium.open()
    entry = written(first, ONE)
    assert entry.value == ONE
    assert second.read() == entry
    assert second.read() == entry


def test_of_two_who_find_nothing_one_writes_first(medium: Medium) -> None:
    """Rule 17a: losers connect to the winner."""
    first, second = medium.open(), medium.open()
    entry = written(first, ONE)
    assert second.write(TWO, None) is None
    assert second.read() == entry


def test_of_two_who_read_the_same_one_writes_first(medium: Medium) -> None:
    """Rule 17d: a write after a stale read fails."""
    first, second = medium.open(), medium.open()
    stale = written(first, ONE)
    entry = written(second, TWO, stale)
    assert first.write(THREE, stale.token) is None
    assert first.read() == entry
    assert written(first, THREE, entry).value == THREE


def test_each_write_has_a_token_of_its_own(medium: Medium) -> None:
    """Rule 17d: a guard that does not change with the claim lets a late write pass."""
    register = medium.open()
    entries = [written(register, ONE)]
    for number in range(3):
        value = ONE if medium.has_versions else record(f"write-{number}")
        entries.append(written(register, value, entries[-1]))
    assert all(one.token != other.token for one in entries for other in entries if one is not other)


def test_a_token_from_before_the_register_was_emptied_fits_nothing(medium: Medium) -> None:
    """Rule 17d: nor does it fit what is written after that."""
    register = medium.open()
    before = written(register, ONE)
    medium.empty()
    assert register.read() is None
    assert register.write(LATE, before.token) is None
    after = written(register, TWO)
    assert register.write(LATE, before.token) is None
    assert register.read() == after


@pytest.mark.parametrize("medium", VERSIONED, indirect=True)
def test_a_token_from_before_the_value_was_written_anew_fits_no_more(medium: Medium) -> None:
    """Rule 17d: a server that finds its own record with another token writes by that one."""
    register = medium.open()
    before = written(register, ONE)
    medium.touch()
    assert register.write(TWO, before.token) is None
    now = register.read()
    assert now is not None
    assert now.value == ONE
    assert written(register, TWO, now).value == TWO


def test_a_wait_for_what_has_changed_already_is_none(medium: Medium) -> None:
    """Rule 17b: a change between a read and the wait for the next one is not missed."""
    register = medium.open()
    first = written(register, ONE)
    assert register.wait(None, PATIENCE_S) is not None
    second = written(register, TWO, first)
    assert register.wait(first.token, PATIENCE_S) is not None
    medium.empty()
    assert register.wait(second.token, PATIENCE_S) is not None
    assert register.read() is None


def test_a_wait_ends_with_its_time_where_nothing_changes(medium: Medium) -> None:
    """Rule 17b."""
    register = medium.open()
    register.wait(None, 0.01)
    entry = written(register, ONE)
    register.wait(entry.token, 0.01)
    assert register.read() == entry


CHANGES = [(made, change) for made in REGISTERS for change in ("write", "empty")]


@pytest.mark.parametrize(
    ("medium", "change"), [*CHANGES, *((made, "touch") for made in VERSIONED)], indirect=["medium"]
)
def test_a_wait_ends_when_another_thread_changes_the_register(medium: Medium, change: str) -> None:
    """Rule 17b: a changed record ends the wait."""
    register = medium.open()
    before = written(register, ONE)
    waits, over = threading.Event(), threading.Event()

    def wait() -> None:
        waits.set()
        medium.open().wait(before.token, 10 * PATIENCE_S)
        over.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waits.wait(PATIENCE_S)
    assert not over.wait(0.05)
    if change == "write":
        written(register, TWO, before)
    elif change == "empty":
        medium.empty()
    else:
        medium.touch()
    assert over.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


def test_of_many_threads_one_writes_first(medium: Medium) -> None:
    """Rule 17a: all of them read the same, and each writes a claim."""
    before = written(medium.open(), ONE)
    start, won = threading.Barrier(8), []

    def write(number: int) -> None:
        register = medium.open()
        start.wait(PATIENCE_S)
        if register.write(record(f"claim-{number}"), before.token) is not None:
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    entry = medium.open().read()
    assert entry is not None
    assert [record(f"claim-{number}") for number in won] == [entry.value]
