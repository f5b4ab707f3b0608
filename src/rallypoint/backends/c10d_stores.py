"""Opening c10d stores: torch's own or ours, over TCP or in a file."""

from __future__ import annotations

import asyncio
import logging
import socket
import weakref
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from rallypoint.client.background import background
from rallypoint.client.dialing import look_up
from rallypoint.errors import RendezvousConnectionError, RendezvousError
from rallypoint.net import is_address, is_this_machine
from rallypoint.stores import FileStore, StoreServer, TcpStore, listen
from rallypoint.stores.c10d_document import FAILURES
from rallypoint.stores.store_probe import NotAStoreError, wait_for_store
from rallypoint.torch_bridge import stores_c10d
from rallypoint.waiting import interruptible

log = logging.getLogger("rallypoint.c10d")

FILE_TIMEOUT = timedelta(seconds=300)


def tcp_store(
    host: str, port: int, timeout: timedelta, is_host: bool | None, *, with_torch: bool
) -> tuple[Any, Any | None]:
    """The TCP store at this place, and the one by which this process serves it to others; None where another does.

    This process serves it if it may and nobody else does.
    """
    may_host = _is_here(host, port) if is_host is None else is_host
    if may_host:
        try:
            store = serve_tcp_store(host, port, timeout, with_torch=with_torch)
            return store, store
        except FAILURES as exc:
            served = _served.get((host, port))
            if served is not None:
                # Another run or node of this process serves it; the server ends with the last that uses it.
                return served.clone(), served
            if is_host:
                raise RendezvousConnectionError(
                    f"is_host is set, but no store can be served on {host}:{port}: {_first_line(exc)}; use another "
                    f"port, or leave is_host out to connect to what is there"
                ) from exc
    return use_tcp_store(host, port, timeout, with_torch=with_torch), None


def _is_here(host: str, port: int) -> bool:
    """Whether the endpoint is this machine, once its name is known; a name service that hangs is not waited for."""
    try:
        background().run(look_up(host, port))
    except asyncio.TimeoutError as exc:
        raise RendezvousConnectionError(f"no c10d store is looked for at {host}:{port} yet: {exc}") from exc
    except (OSError, UnicodeError) as exc:
        log.debug("%s is not found: %s", host, exc)  # whoever connects there says so
    return is_this_machine(host)


def use_tcp_store(host: str, port: int, timeout: timedelta, *, with_torch: bool) -> Any:
    """A client of the TCP store at this place, which may start later; RendezvousConnectionError says what is there."""
    timeout_s = timeout.total_seconds()
    try:
        wait_for_store(host, port, timeout_s)
        if with_torch:
            return stores_c10d.tcp_store(host, port, timeout)
        return TcpStore(host, port, timeout=timeout, wait_for_workers=False)
    except NotAStoreError as exc:
        raise RendezvousConnectionError(f"no c10d store answers at {host}:{port}; {exc}") from exc
    except FAILURES as exc:
        raise RendezvousConnectionError(
            f"no c10d store answered at {host}:{port} within {timeout_s:g} s: {_first_line(exc)}; is the node that "
            f"serves it running, and does its port let nodes in?"
        ) from exc


# What this process serves: several handlers of one process may insist on hosting, and the first of them does.
_served: WeakValueDictionary[tuple[str, int], Any] = WeakValueDictionary()


def serve_tcp_store(host: str, port: int, timeout: timedelta, *, with_torch: bool) -> Any:
    """A TCP store that this process serves: bound first, so that a port that is taken is known before anything else."""
    listener = listen(_bind_address(host), port)
    port = listener.getsockname()[1]
    if with_torch:
        store = stores_c10d.tcp_store(host, port, timeout, listener)
    else:
        server = StoreServer()
        server.start_in_thread(listener)
        store = _HostedStore(host, port, timeout=timeout, wait_for_workers=False)
        store.server = server
        weakref.finalize(store, server.stop)
    _served[host, port] = store
    return store


class _HostedStore(TcpStore):
    """A store of ours whose server lives as long as it does."""

    server: StoreServer | None = None

    def close(self) -> None:
        super().close()
        if self.server is not None:
            self.server.stop()


def _bind_address(host: str) -> str:
    """The address to serve on: an address as it was given; all of them for a name, which may be another to others."""
    if host == "localhost":
        return "127.0.0.1"
    if is_address(host):
        return host
    with suppress(OSError, UnicodeError):
        families = {family for family, *_ in interruptible(lambda: socket.getaddrinfo(host, None))}
        if socket.AF_INET in families and (len(families) == 1 or not socket.has_dualstack_ipv6()):
            return "0.0.0.0"
    return "::"


def _first_line(exc: BaseException) -> str:
    """torch's errors go on with a trace of its own."""
    return (str(exc).splitlines() or [type(exc).__name__])[0]


def file_store(path: str, *, with_torch: bool) -> Any:
    """The store in this file; the files of torch's stores and of ours are not the same."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise RendezvousError(f"the store's file {path} cannot be made: there is no folder {folder}")
    try:
        return stores_c10d.file_store(path) if with_torch else FileStore(path, timeout=FILE_TIMEOUT)
    except FAILURES as exc:
        raise RendezvousConnectionError(f"the file store {path} cannot be opened: {_first_line(exc)}") from exc
