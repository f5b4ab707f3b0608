"""A register on a user's own backend: what it makes of answers, errors and documents of others."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.location.register import RegisterRefusedError
from rallypoint.location.registers.backend import BackendRegister
from rallypoint.messages.types import Bounds
from rallypoint.record import Claim, Record, encode
from tests.support.waiting import PATIENCE_S, until


class Backend:
    """One document in this process, with two methods."""

    def __init__(self) -> None:
        self.state: bytes | None = None
        self.token = 0
        self.reads = 0
        self.confirms = True
        self.problem: Exception | None = None
        self.closed = 0

    def get_state(self) -> tuple[bytes, Any] | None:
        self.reads += 1
        self._check()
        return None if self.state is None else (self.state, self.token)

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        self._check()
        matches = token == (None if self.state is None else self.token)
        if matches:
            self.state, self.token = state, self.token + 1
        if not self.confirms or self.state is None:
            return None
        return self.state, self.token, matches

    def close(self) -> None:
        self.closed += 1

    def _check(self) -> None:
        if self.problem is not None:
            raise self.problem


def record(write_id: str, *, claimed: bool = False) -> bytes:
    claim = Claim("c1", ("127.0.0.1",), 4000, 5.0) if claimed else None
    bounds = Bounds(1, 2)
    return encode(
        Record(run_id="run", incarnation="r1", epoch=1, round=0, write_id=write_id, bounds=bounds, claim=claim)
    )


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def register(backend: Backend) -> BackendRegister:
    return BackendRegister(lambda: backend)


def test_a_write_that_is_not_confirmed_is_read_back(backend: Backend, register: BackendRegister) -> None:
    backend.confirms = False
    first = register.write(record("one"), None)
    assert first is not None
    assert register.write(record("two"), first.token + 7) is None
    second = register.write(record("two"), first.token)
    assert second == register.read()


def test_where_nothing_can_be_read_back_only_a_first_write_counts(backend: Backend, register: BackendRegister) -> None:
    backend.set_state = lambda state, token=None: None  # type: ignore[method-assign]
    assert register.write(record("one"), None) is not None
    assert register.write(record("two"), 3) is None


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (pickle.dumps({"round": 3}), "it is a pickle, which is never loaded; a torch job may be using the same name"),
        (b'{"v":1,"body":{"kind":"rallypoint.document","run":{}}}', "was written by Rallypoint 0.1"),
        (b"hello", "the record cannot be read"),
    ],
)
def test_what_somebody_else_wrote_is_final_and_stays(
    backend: Backend, register: BackendRegister, state: bytes, words: str
) -> None:
    backend.state = state
    with pytest.raises(RegisterRefusedError, match=words) as caught:
        register.read()
    assert isinstance(caught.value.problem, RendezvousStateError)
    assert register.write(record("one"), None) is None
    assert backend.state == state


def test_an_error_of_the_users_own_is_final_and_handed_on(backend: Backend, register: BackendRegister) -> None:
    backend.problem = ZeroDivisionError("oops")
    with pytest.raises(RegisterRefusedError) as caught:
        register.read()
    assert caught.value.problem is backend.problem


def test_a_backend_that_is_out_of_reach_is_tried_again_and_not_closed(
    backend: Backend, register: BackendRegister
) -> None:
    backend.problem = RendezvousConnectionError("it is away")
    with pytest.raises(RendezvousConnectionError, match="it is away"):
        register.read()
    backend.problem = None
    assert register.read() is None
    register.close()
    assert backend.closed == 0


def test_a_backend_of_its_own_is_opened_anew_where_it_is_lost() -> None:
    opened: list[Backend] = []

    def open_backend() -> Backend:
        opened.append(Backend())
        return opened[-1]

    register = BackendRegister(open_backend, owned=True)
    assert opened == []
    assert register.read() is None
    opened[0].problem = RendezvousConnectionError("its server was restarted")
    with pytest.raises(RendezvousConnectionError):
        register.read()
    assert register.read() is None
    register.close()
    assert [backend.closed for backend in opened] == [1, 1]


def test_one_that_lives_in_this_process_is_not_let_go(backend: Backend) -> None:
    register = BackendRegister(lambda: backend, owned=True)
    backend.hosts_store = True  # type: ignore[attr-defined]
    register.read()
    assert register.is_hosted_here
    backend.problem = RendezvousConnectionError("too slow")
    with pytest.raises(RendezvousConnectionError):
        register.read()
    assert backend.closed == 0


def test_the_server_does_not_read_while_it_waits(backend: Backend, register: BackendRegister) -> None:
    """Rule 17: it is the one that writes, and its beats show whether the claim stands."""
    entry = register.write(record("one", claimed=True), None)
    assert entry is not None
    reads = backend.reads
    assert register.wait(entry.token, 0.2) is None
    assert backend.reads == reads
    register.resign()
    assert register.wait(entry.token, 0.2) is None
    assert backend.reads > reads


def test_a_wait_can_be_ended(backend: Backend, register: BackendRegister) -> None:
    entry = register.write(record("one", claimed=True), None)
    assert entry is not None
    waiting = threading.Thread(target=register.wait, args=(entry.token, 10 * PATIENCE_S))
    waiting.start()
    until(lambda: not register._stopped.is_set())
    while waiting.is_alive():
        register.stop_waiting()
        waiting.join(0.01)


def test_a_medium_that_tells_of_changes_is_asked_to(backend: Backend, register: BackendRegister) -> None:
    asked: list[tuple[Any, float]] = []

    def wait_for_change(token: Any, timeout_s: float) -> None:
        asked.append((token, timeout_s))
        if len(asked) == 2:
            backend.token += 1

    entry = register.write(record("one"), None)
    assert entry is not None
    backend.wait_for_change = wait_for_change  # type: ignore[attr-defined]
    assert register.wait(entry.token, PATIENCE_S) == entry.token + 1
    assert [token for token, _ in asked] == [entry.token] * 2


@pytest.mark.parametrize("problem", [ConnectionResetError("gone"), TimeoutError("slow"), OSError("odd")])
def test_an_error_of_the_system_is_a_backend_out_of_reach(
    backend: Backend, register: BackendRegister, problem: Exception
) -> None:
    backend.problem = problem
    with pytest.raises(RendezvousConnectionError, match="the backend cannot be reached") as caught:
        register.read()
    assert not isinstance(caught.value, RegisterRefusedError)


def test_torchs_own_errors_count_as_ours(backend: Backend, register: BackendRegister) -> None:
    from torch.distributed.elastic import rendezvous as torchs

    backend.problem = torchs.RendezvousConnectionError("a blip")
    with pytest.raises(RendezvousConnectionError, match="a blip") as caught:
        register.read()
    assert not isinstance(caught.value, RegisterRefusedError)
    backend.problem = torchs.RendezvousStateError("damaged")
    with pytest.raises(RegisterRefusedError) as refused:
        register.read()
    assert isinstance(refused.value.problem, RendezvousStateError)


def test_a_register_that_is_closed_opens_nothing_again() -> None:
    opened: list[Backend] = []

    def open_backend() -> Backend:
        opened.append(Backend())
        return opened[-1]

    register = BackendRegister(open_backend, owned=True)
    assert register.read() is None
    register.stop_waiting()
    register.close()
    assert register.wait(None, PATIENCE_S) is None
    with pytest.raises(RendezvousConnectionError, match="the register is closed"):
        register.read()
    assert len(opened) == 1


def test_a_close_that_fails_does_not_hide_why_the_backend_was_lost(backend: Backend) -> None:
    register = BackendRegister(lambda: backend, owned=True)
    register.read()
    backend.close = lambda: 1 / 0  # type: ignore[method-assign,assignment]
    backend.problem = RendezvousConnectionError("it is away")
    with pytest.raises(RendezvousConnectionError, match="it is away"):
        register.read()
