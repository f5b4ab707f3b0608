"""The handler on a document: PyTorch's names on any backend with two methods, with real threads."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from rallypoint import events
from rallypoint.elastic.api import RendezvousInfo, RendezvousParameters
from rallypoint.elastic.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousSettings,
    RendezvousTimeout,
    create_handler,
)
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.stores import MemoryStore, TcpStore
from tests.support.waiting import until

PATIENCE_S = 20.0


class MemoryBackend(RendezvousBackend):
    """The document in this process."""

    def __init__(self) -> None:
        self.state: bytes | None = None
        self.token = 0
        self.writes = 0
        self.is_away = False
        self.confirms = True
        self.reads_back = True
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return "memory"

    def get_state(self) -> tuple[bytes, Any] | None:
        with self._lock:
            self._check()
            return (self.state, self.token) if self.state is not None and self.reads_back else None

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        with self._lock:
            self._check()
            matches = token == self.token if self.state is not None and self.reads_back else token is None
            if matches:
                self.state, self.token, self.writes = state, self.token + 1, self.writes + 1
            if not self.confirms:
                return None
            assert self.state is not None
            return self.state, self.token, matches

    def _check(self) -> None:
        if self.is_away:
            raise RendezvousConnectionError("it is away")


class HandlerGroup:
    """Handlers on one backend, and threads that wait for them."""

    def __init__(self, store: Any) -> None:
        self.backend = MemoryBackend()
        self.store = store
        self.handlers: list[DynamicRendezvousHandler] = []
        self._pool = ThreadPoolExecutor(64)

    def handler(self, min_nodes: int = 2, max_nodes: int = 2, **settings: Any) -> DynamicRendezvousHandler:
        timeout = RendezvousTimeout(
            join=timedelta(seconds=settings.pop("join_s", PATIENCE_S)),
            last_call=timedelta(seconds=settings.pop("last_call_s", 0.3)),
            close=timedelta(seconds=settings.pop("close_s", 5.0)),
        )
        settings = {"local_addr": "127.0.0.1", "keep_alive_interval": 0.2, "keep_alive_max_attempt": 5, **settings}
        made = DynamicRendezvousHandler.from_backend(
            "run", self.store, self.backend, min_nodes, max_nodes, timeout=timeout, **settings
        )
        self.handlers.append(made)
        return made

    def join(self, *handlers: DynamicRendezvousHandler) -> list[Future[RendezvousInfo]]:
        return [self._pool.submit(handler.next_rendezvous) for handler in handlers]

    def meet(self, *handlers: DynamicRendezvousHandler) -> list[RendezvousInfo]:
        return [joining.result(PATIENCE_S) for joining in self.join(*handlers)]

    def shut_down(self, *handlers: DynamicRendezvousHandler) -> list[bool]:
        return [leaving.result(PATIENCE_S) for leaving in [self._pool.submit(h.shutdown) for h in handlers]]

    def end(self) -> None:
        for handler in self.handlers:
            handler._stop_heartbeats()
        self._pool.shutdown()


def where(info: RendezvousInfo) -> tuple[str, int]:
    assert info.bootstrap_store_info is not None
    return info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port


@pytest.fixture(params=[MemoryStore, lambda: None], ids=["store", "no store"])
def group(request: pytest.FixtureRequest) -> Iterator[HandlerGroup]:
    made = HandlerGroup(request.param())
    try:
        yield made
    finally:
        made.end()


# Settings -------------------------------------------------------------------------------------------------------------


def test_time_outs_have_pytorchs_defaults() -> None:
    timeout = RendezvousTimeout()
    seconds = [t.total_seconds() for t in (timeout.join, timeout.last_call, timeout.close, timeout.heartbeat)]
    assert seconds == [600, 30, 30, 5]


@pytest.mark.parametrize("name", ["join", "last_call", "close", "heartbeat"])
@pytest.mark.parametrize("seconds", [0, -1])
def test_a_time_out_that_is_not_positive_is_refused(name: str, seconds: int) -> None:
    with pytest.raises(
        ValueError, match=f"The {name.replace('_', ' ')} time-out is {seconds} s, but should be above 0"
    ):
        RendezvousTimeout(**{name: timedelta(seconds=seconds)})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"run_id": ""}, "The run id is empty"),
        ({"min_nodes": 0}, "min_nodes is 0"),
        ({"min_nodes": 3}, "max_nodes is 2, less than min_nodes, which is 3"),
        ({"keep_alive_interval": 0}, "a node would be lost between two beats"),
        ({"keep_alive_max_attempt": 0}, "a node would be lost between two beats"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], words: str) -> None:
    given = {"run_id": "run", "store": MemoryStore(), "backend": MemoryBackend(), "min_nodes": 1, "max_nodes": 2}
    with pytest.raises(ValueError, match=words):
        DynamicRendezvousHandler.from_backend(**{**given, **wrong})


def test_a_handler_says_what_it_was_made_with() -> None:
    handler = DynamicRendezvousHandler.from_backend("run", MemoryStore(), MemoryBackend(), 1, 2)
    settings = handler.settings
    assert isinstance(settings, RendezvousSettings)
    assert (settings.run_id, settings.min_nodes, settings.max_nodes) == ("run", 1, 2)
    assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (timedelta(seconds=5), 3)
    assert (handler.get_backend(), handler.get_run_id()) == ("memory", "run")
    with pytest.raises(AttributeError):
        settings.min_nodes = 5  # type: ignore[misc]


def test_create_handler_reads_the_options_and_leaves_others_alone() -> None:
    params = RendezvousParameters(
        "memory",
        "anywhere",
        "run",
        1,
        2,
        join_timeout="7",
        last_call_timeout=2,
        close_timeout=3,
        heartbeat_timeout="4",
        keep_alive_interval="6",
        keep_alive_max_attempt=2,
        colour="blue",
    )
    settings = create_handler(MemoryStore(), MemoryBackend(), params).settings
    timeout = settings.timeout
    seconds = [t.total_seconds() for t in (timeout.join, timeout.last_call, timeout.close, timeout.heartbeat)]
    assert seconds == [7, 2, 3, 4]
    assert (settings.keep_alive_interval.total_seconds(), settings.keep_alive_max_attempt) == (6, 2)


def test_a_handler_that_cannot_be_made_is_recorded() -> None:
    heard: list[events.Event] = []
    params = RendezvousParameters("memory", "anywhere", "run", 1, 2, join_timeout="soon")
    with events.subscribe(heard.append), pytest.raises(ValueError, match="join_timeout"):
        create_handler(MemoryStore(), MemoryBackend(), params)
    assert [(event.kind, event.run_id) for event in heard] == [("handler failed", "run")]


# Meeting --------------------------------------------------------------------------------------------------------------


def test_nodes_form_one_world_with_one_store(group: HandlerGroup) -> None:
    infos = group.meet(*[group.handler(4, 4) for _ in range(4)])
    assert sorted(info.rank for info in infos) == [0, 1, 2, 3]
    assert {info.world_size for info in infos} == {4}
    infos[0].store.set("greeting", "hello")
    assert {info.store.get("greeting") for info in infos} == {b"hello"}
    assert len({where(info) for info in infos}) == 1


def test_rank_0_serves_the_store_of_the_workers(group: HandlerGroup) -> None:
    handlers = [group.handler(), group.handler()]
    host, port = where(group.meet(*handlers)[0])
    assert handlers[0].use_agent_store
    with TcpStore(host, port, timeout=timedelta(seconds=5)) as worker:
        worker.set("rank", "0")
        assert worker.get("rank") == b"0"


def test_the_workers_store_is_not_served_where_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    group = HandlerGroup(MemoryStore())
    handlers = [group.handler(), group.handler()]
    place = where(group.meet(*handlers)[0])
    assert not handlers[0].use_agent_store
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place, 5)
    group.end()


def test_each_round_has_a_store_of_its_own(group: HandlerGroup) -> None:
    handlers = [group.handler(), group.handler()]
    first = group.meet(*handlers)
    first[0].store.set("seen", "in round 1")
    second = group.meet(*handlers)
    assert not second[0].store.check(["seen"])
    assert where(first[0]) != where(second[0])


def test_a_silent_node_is_given_up_and_the_others_regroup(group: HandlerGroup) -> None:
    a, b, c = (group.handler(2, 3) for _ in range(3))
    group.meet(a, b, c)
    assert (a.num_nodes_waiting(), b.num_nodes_waiting()) == (0, 0)
    c._stop_heartbeats()
    until(lambda: a.num_nodes_waiting() == b.num_nodes_waiting() == 1)
    assert {info.world_size for info in group.meet(a, b)} == {2}


def test_a_late_node_is_counted_and_admitted(group: HandlerGroup) -> None:
    a, b, late = (group.handler(2, 3) for _ in range(3))
    group.meet(a, b)
    (joining,) = group.join(late)
    until(lambda: a.num_nodes_waiting() == b.num_nodes_waiting() == 1)
    assert {info.world_size for info in group.meet(a, b)} == {3}
    assert joining.result(PATIENCE_S).rank == 2


def test_all_who_finish_end_the_run_and_a_spare_ends_well_with_it(group: HandlerGroup) -> None:
    a, b, spare = (group.handler(2, 2, join_s=PATIENCE_S if number < 2 else 0.5) for number in range(3))
    group.meet(a, b)
    (standing_by,) = group.join(spare)
    until(lambda: spare._member.view.stood_by)
    assert not a.is_closed()
    assert group.shut_down(a, b) == [True, True]
    with pytest.raises(RendezvousGracefulExitError):
        standing_by.result(PATIENCE_S)
    # Rank 0 has stayed for the other one, and heard of the close; that one may have left before.
    assert a.is_closed() or b.is_closed()
    assert a.shutdown()


def test_an_exception_under_way_makes_a_shutdown_a_withdrawal(group: HandlerGroup) -> None:
    a, b = group.handler(), group.handler()
    group.meet(a, b)
    try:
        raise RuntimeError("told to")
    except RuntimeError:
        assert b.shutdown()
    until(lambda: a.num_nodes_waiting() == 1)
    assert not a.is_closed()


def test_a_closed_run_is_closed_for_everybody(group: HandlerGroup) -> None:
    a, b = group.handler(), group.handler()
    group.meet(a, b)
    b.set_closed()
    until(a.is_closed)
    until(lambda: a._member.view.why != "")
    with pytest.raises(RendezvousClosedError, match=r"run 'run' is closed as failed: .* closed it"):
        a.next_rendezvous()
    b.set_closed()
    assert a.num_nodes_waiting() == 0


def test_who_waits_is_told_that_the_run_was_closed(group: HandlerGroup) -> None:
    a, other = group.handler(), group.handler()
    (joining,) = group.join(a)
    until(lambda: group.backend.state is not None)
    other.set_closed()
    with pytest.raises(RendezvousClosedError):
        joining.result(PATIENCE_S)


def test_a_join_that_times_out_says_who_was_here(group: HandlerGroup) -> None:
    lonely = group.handler(3, 3, join_s=0.5)
    with pytest.raises(RendezvousTimeoutError, match=r"1 of at least 3 nodes are here \(.*\); 2 more must come"):
        lonely.next_rendezvous()
    a, b, c = (group.handler(3, 3) for _ in range(3))
    assert {info.world_size for info in group.meet(a, b, c)} == {3}


def test_a_handler_joins_again_after_a_time_out(group: HandlerGroup) -> None:
    a, b = group.handler(join_s=2.0), group.handler()
    with pytest.raises(RendezvousTimeoutError):
        a.next_rendezvous()
    (joining,) = group.join(b)
    until(lambda: b._member.view.incarnation != "")
    assert {info.world_size for info in group.meet(a)} == {2}
    joining.result(PATIENCE_S)


def test_who_left_needs_a_new_handler(group: HandlerGroup) -> None:
    a = group.handler(1, 1)
    group.meet(a)
    assert a.shutdown()
    with pytest.raises(RendezvousError):
        a.next_rendezvous()
    assert group.meet(group.handler(1, 1))[0].world_size == 1


# The medium -----------------------------------------------------------------------------------------------------------


def test_a_backend_that_never_confirms_is_read_again(group: HandlerGroup) -> None:
    group.backend.confirms = False
    assert {info.world_size for info in group.meet(*[group.handler(3, 3) for _ in range(3)])} == {3}


def test_where_nothing_can_be_read_back_what_was_written_counts() -> None:
    group = HandlerGroup(None)
    group.backend.confirms = group.backend.reads_back = False
    alone = group.handler(1, 1)
    assert group.meet(alone)[0].world_size == 1
    group.end()


def test_a_backend_that_is_away_is_waited_for(group: HandlerGroup) -> None:
    a, b = group.handler(), group.handler()
    group.backend.is_away = True
    joinings = group.join(a, b)
    until(lambda: "it is away" in a._member.link.trouble)
    group.backend.is_away = False
    assert {joining.result(PATIENCE_S).world_size for joining in joinings} == {2}


def test_an_outage_is_no_loss(group: HandlerGroup) -> None:
    a, b = group.handler(), group.handler()
    group.meet(a, b)
    group.backend.is_away = True
    until(lambda: a._member.view.out_since is not None)
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 1.5)
    assert (a.num_nodes_waiting(), b.num_nodes_waiting()) == (0, 0)
    assert not a.is_closed()
    group.backend.is_away = False
    until(lambda: a._member.view.out_since is None)
    assert (a.num_nodes_waiting(), b.num_nodes_waiting()) == (0, 0)


def test_a_backend_that_stays_away_is_named_in_the_time_out() -> None:
    group = HandlerGroup(None)
    group.backend.is_away = True
    with pytest.raises(RendezvousTimeoutError, match=r"the backend 'memory' cannot be reached .*it is away"):
        group.handler(join_s=0.3).next_rendezvous()
    group.end()


def test_a_document_of_torch_is_refused(group: HandlerGroup) -> None:
    group.backend.state = pickle.dumps({"round": 3})
    with pytest.raises(RendezvousStateError, match="is a pickle, which is never loaded"):
        group.handler().next_rendezvous()


def test_an_error_of_ones_own_backend_reaches_who_joins(group: HandlerGroup) -> None:
    group.backend.get_state = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(ZeroDivisionError):
        group.handler().next_rendezvous()


def test_one_node_writes_while_nothing_changes_however_many_there_are() -> None:
    group = HandlerGroup(None)
    group.meet(*[group.handler(8, 8) for _ in range(8)])
    writes, began = group.backend.writes, time.monotonic()
    until(lambda: time.monotonic() - began > 2.0)
    took_s = time.monotonic() - began
    # The server's beat rises at a third of the time-out of 1 s.
    assert 2 <= group.backend.writes - writes <= 3 * took_s + 2
    group.end()


def test_stores_that_are_not_the_same_are_found_out() -> None:
    ours, theirs = HandlerGroup(MemoryStore()), HandlerGroup(MemoryStore())
    theirs.backend = ours.backend
    a, b = ours.handler(), theirs.handler()
    joinings = [*ours.join(a), *theirs.join(b)]
    assert {joining.result(PATIENCE_S).world_size for joining in joinings} == {2}
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 2.0)
    assert (a.num_nodes_waiting(), b.num_nodes_waiting()) == (0, 0)
    b._stop_heartbeats()
    until(lambda: a.num_nodes_waiting() == 1)
    ours.end()
    theirs.end()


@pytest.mark.parametrize("count", [32])
def test_many_nodes_form(group: HandlerGroup, count: int) -> None:
    infos = group.meet(*[group.handler(count, count) for _ in range(count)])
    assert sorted(info.rank for info in infos) == list(range(count))


def test_handlers_on_one_backend_share_its_threads_and_leave_none(group: HandlerGroup) -> None:
    handlers = [group.handler(4, 4) for _ in range(4)]
    group.meet(*handlers)

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("rallypoint-")]

    assert threads().count("rallypoint-register") == 1
    assert group.shut_down(*handlers) == [True] * 4
    until(lambda: "rallypoint-register" not in threads() and "rallypoint-watch" not in threads())


def test_a_handler_that_nobody_holds_falls_silent_and_is_given_up() -> None:
    group = HandlerGroup(None)
    a, b = group.handler(), group.handler()
    group.meet(a, b)
    group.handlers.remove(b)
    del b
    gc.collect()
    until(lambda: a.num_nodes_waiting() == 1)
    group.end()


def test_a_forked_child_is_told_to_make_its_own(group: HandlerGroup) -> None:
    handler = group.handler()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            handler.num_nodes_waiting()
        except RendezvousError as exc:
            os.write(writer, str(exc).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        assert b"its child by fork" in said.read()
    os.waitpid(child, 0)
