"""A c10d store that this process serves: several nodes and runs of the process on it, and connections that break."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rallypoint
from rallypoint.backends.c10d_stores import tcp_store
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.c10d_rendezvous_backend import C10dRendezvousBackend, create_handler
from rallypoint.errors import RendezvousConnectionError
from rallypoint.stores import PrefixStore
from tests.support.node_processes import free_port
from tests.support.waiting import PATIENCE_S

OPTIONS: dict[str, Any] = {"local_addr": "127.0.0.1", "close_timeout": 1, "quiet": True}


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Let several threads act at a time."""
    with ThreadPoolExecutor(len(acts)) as pool:
        return [doing.result(PATIENCE_S) for doing in [pool.submit(act) for act in acts]]


def within(act: Callable[[], Any]) -> Any:
    """What an act comes to that must not wait for anybody else."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(PATIENCE_S)


def test_two_nodes_of_the_process_that_serves_the_store_may_leave_one_after_the_other() -> None:
    endpoint = f"c10d://127.0.0.1:{free_port()}"
    places = at_once(*[lambda: rallypoint.join(endpoint, run="run", nodes=2, **OPTIONS)] * 2)
    # Rank 0 serves the round's store, and waits for the other one as long as it may; the host waits no longer than that.
    assert [within(place.finished) for place in places][-1]


def test_two_handlers_of_the_process_that_serves_the_store_may_shut_down_one_after_the_other() -> None:
    port = free_port()
    given: dict[str, Any] = {"local_addr": "127.0.0.1", "is_host": True, "close_timeout": 1}

    def handler() -> Any:
        params = RendezvousParameters("c10d", f"127.0.0.1:{port}", "run", 2, 2, **given)
        return create_handler(params)

    handlers = [handler(), handler()]
    assert {info.world_size for info in at_once(*[made.next_rendezvous for made in handlers])} == {2}
    assert [within(made.shutdown) for made in handlers][-1]


def test_the_store_outlives_the_run_that_began_to_serve_it() -> None:
    """Another run of this process goes on with it; with the last one it ends."""
    port = free_port()
    first, second = (rallypoint.join(f"c10d://127.0.0.1:{port}", run=run, nodes=1, **OPTIONS) for run in ("one", "two"))
    assert within(first.finished)
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S):
        pass
    assert second._member.hosts_medium
    assert within(second.finished)


@pytest.mark.parametrize("with_torch", [False, True], ids=["our store", "torch's store"])
def test_a_connection_that_broke_is_made_anew(with_torch: bool) -> None:
    timeout = timedelta(seconds=PATIENCE_S)
    served, _ = tcp_store("127.0.0.1", 0, timeout, True, with_torch=with_torch)
    before = _connections(served.port)
    backend = C10dRendezvousBackend(PrefixStore("job", served) if not with_torch else served, "run")
    written = backend.set_state(b"one")
    assert written is not None
    for inode in _connections(served.port) - before:
        _shut_down(inode)
    with pytest.raises(RendezvousConnectionError, match="the store of the run cannot be used"):
        backend.get_state()
    assert backend.get_state() == written[:2]


def _connections(port: int) -> set[int]:
    """The descriptors of this process that are connected to a port."""
    return {int(entry.name) for entry in Path("/proc/self/fd").iterdir() if _peer_port(int(entry.name)) == port}


def _peer_port(descriptor: int) -> int:
    with suppress(OSError, IndexError), socket.socket(fileno=os.dup(descriptor)) as sock:
        return int(sock.getpeername()[1])
    return 0


def _shut_down(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def test_torchs_heartbeat_of_a_moment_loses_nobody() -> None:
    """In PyTorch it is the time-out of one call."""
    params = RendezvousParameters(
        "c10d", f"127.0.0.1:{free_port()}", "run", 1, 1, local_addr="127.0.0.1", heartbeat_timeout=0.05
    )
    handler = create_handler(params)
    assert handler._member.view.settings.heartbeat_timeout_s == 1.0
    within(handler.shutdown)
