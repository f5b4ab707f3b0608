"""PyTorch's `c10d` backend: the document is one key of a c10d store, torch's or ours, over TCP or in a file."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import weakref
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from rallypoint import events
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.documents import C10D_NOTHING, C10D_PREFIX, decode_document
from rallypoint.elastic.dynamic_rendezvous import (
    OPTIONS as DYNAMIC_OPTIONS,
)
from rallypoint.elastic.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    Token,
)
from rallypoint.elastic.dynamic_rendezvous import (
    create_handler as create_dynamic_handler,
)
from rallypoint.elastic.endpoints import DEFAULT_PORT
from rallypoint.elastic.lazy_names import lazy_names
from rallypoint.elastic.options import choice, flag, read_options, seconds
from rallypoint.elastic.store_probe import NotAStoreError, wait_for_store
from rallypoint.elastic.utils import _matches_machine_hostname, parse_rendezvous_endpoint
from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rallypoint.stores import FileStore as OurFileStore
from rallypoint.stores import StoreServer, TcpStore, listen
from rallypoint.stores.errors import StoreError
from rallypoint.torch_bridge import presence, stores_c10d

__all__ = [
    "DEFAULT_PORT",
    "C10dRendezvousBackend",
    "RendezvousBackend",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousParameters",
    "RendezvousStateError",
    "Token",
    "create_backend",
    "create_handler",
    "logger",
    "parse_rendezvous_endpoint",
]

__getattr__ = lazy_names(__name__, "FileStore", "NodeState", "Store", "TCPStore", "construct_and_record_rdzv_event")

logger = logging.getLogger("rallypoint")

BACKEND = "c10d"
FILE_TIMEOUT = timedelta(seconds=300)
FILE_REST_S = 50.0
PROBE_S = 2.0

STORE_TYPE = choice("store_type", ("tcp", "file"), "tcp", "which kind of store holds the run")
READ_TIMEOUT = seconds("read_timeout", 60.0, "how long a call to the TCP store may take")
IS_HOST = flag("is_host", None, "whether this process serves the TCP store")
OPTIONS = (STORE_TYPE, READ_TIMEOUT, IS_HOST)

_FAILURES = (StoreError, RuntimeError, OSError, LookupError, ValueError)
"""What the stores of ours and of torch raise when they cannot be reached."""


class C10dRendezvousBackend(RendezvousBackend):
    """The document under one key of a store; its token is the value itself.

    `hosts_store` says whether this process serves the store to the others, and so stays until they have left; None where
    no node does, or nobody knows.  `place` names the store, so that the handlers of a process share an election.  `rest_s`
    is how long the beat of a claim may rest in this store, where that is special.
    """

    def __init__(self, store: Any, run_id: str) -> None:
        if not run_id:
            raise ValueError("The run id is empty: every job needs a name of its own, such as its job id.")
        self.hosts_store: bool | None = None
        self.served: Any = None
        self.place: tuple[Any, ...] | None = None
        inner = _innermost(store)
        # Every write makes the file of torch's store longer, and every node reads all of it.
        self.rest_s = FILE_REST_S if stores_c10d.is_file_store(inner) else None
        self._given = store
        self._has_own = isinstance(inner, TcpStore) or stores_c10d.is_tcp_store(inner)
        # A connection of its own: whoever waits for a key has the other one to itself.
        self._store = store.clone() if self._has_own else store
        self._key = f"{C10D_PREFIX}{run_id}"
        self._put_place_holder()

    @property
    def name(self) -> str:
        """The backend's name."""
        return BACKEND

    @presence.in_torch_words_too
    def get_state(self) -> tuple[bytes, Token] | None:
        """The document and its token, or None."""
        # Changes nothing; and unlike `get`, it does not wait where the store was emptied.
        return self._decode(self._swap(C10D_NOTHING, C10D_NOTHING))

    @presence.in_torch_words_too
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write if the token is still that of what is there, or, without one, if nothing is."""
        if token and not isinstance(token, bytes):
            there = self.get_state()
            return None if there is None else (*there, False)
        expected, desired = token or C10D_NOTHING, b64encode(state)
        if expected == desired and self.get_state() is None:
            return None  # a store says the same of a key that is missing as of one that has this very value
        stored = self._swap(expected, desired)
        if stored == C10D_NOTHING != desired and not token:
            # Not even the place-holder is there: the store was emptied.
            self._put_place_holder()
            stored = self._swap(expected, desired)
        if stored == desired:
            return state, desired, True
        if stored == expected:
            # Nothing is there at all: a store answers so when a key that should have a value has none.
            return None
        there = self._decode(stored)
        return None if there is None else (*there, False)

    def close(self) -> None:
        """Let go of the store; its server, where this process has that, ends with the last that uses it."""
        for store in (self._store, self._given):
            if isinstance(store, (TcpStore, OurFileStore)) and store is not self.served:
                store.close()
        self._store = self._given = self.served = None

    @presence.in_torch_words_too
    def _put_place_holder(self) -> None:
        """Put the place-holder there if nothing is, as PyTorch does; a store that cannot be used says so by that."""
        self._call(lambda store: store.compare_set(self._key, "", C10D_NOTHING.decode()))

    def _swap(self, expected: bytes, desired: bytes) -> bytes:
        return self._call(lambda store: store.compare_set(self._key, expected.decode(), desired.decode()))

    def _decode(self, stored: bytes) -> tuple[bytes, Token] | None:
        return None if stored == C10D_NOTHING else (decode_document(stored, self._key), stored)

    def _call(self, action: Callable[[Any], bytes | str]) -> bytes:
        try:
            if self._store is None:
                _check_listening(self._given)
                self._store = self._given.clone()
            value = action(self._store)
        except _FAILURES as exc:
            if self._has_own:
                self._store = None  # a connection that failed is made anew for the next call
            raise RendezvousConnectionError(
                f"the store of the run cannot be used: {str(exc) or type(exc).__name__}"
            ) from exc
        return value.encode() if isinstance(value, str) else bytes(value)


def _innermost(store: Any) -> Any:
    """The store that prefixes are put before."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _check_listening(store: Any) -> None:
    """See that somebody listens where the store was: torch's client would try to connect for a minute."""
    inner = _innermost(store)
    socket.create_connection((inner.host, inner.port), PROBE_S).close()


@presence.in_torch_words_too
def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Any]:
    """The backend and its store, as the parameters ask for them: torch's own stores where torch is installed."""
    known, with_torch = {option.name for option in OPTIONS}, stores_c10d.has_torch()
    try:
        options = read_options(
            params.backend, {name: value for name, value in params.config.items() if name in known}, OPTIONS
        )
        if options[STORE_TYPE] == "file":
            path = (params.endpoint or "").strip() or _private_file()
            store, served = file_store(path, with_torch=with_torch), None
            backend = C10dRendezvousBackend(store, params.run_id)
            backend.place = ("file", path)
        else:
            host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
            timeout = timedelta(seconds=options[READ_TIMEOUT])
            store, served = tcp_store(host, port, timeout, options[IS_HOST], with_torch=with_torch)
            backend = hosted_backend(store, served, params.run_id)
            backend.place = ("tcp", host, port)
    except Exception as exc:
        events.record("backend failed", params.run_id, f"{type(exc).__name__}: {exc}", backend=params.backend)
        raise
    why = f"a {options[STORE_TYPE]} store {'served' if served is not None else 'used'} by this process"
    events.record("backend created", params.run_id, why, backend=params.backend, endpoint=params.endpoint)
    return backend, store


def hosted_backend(store: Any, served: Any | None, run_id: str) -> C10dRendezvousBackend:
    """The backend on a TCP store, which knows whether this process serves that store, and keeps it served."""
    backend = C10dRendezvousBackend(store, run_id)
    backend.hosts_store, backend.served = served is not None, served
    return backend


@presence.in_torch_words_too
def create_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """The creator of the backend `c10d`; an option that nobody knows is warned of, and ignored."""
    read_options(BACKEND, params.config, (*OPTIONS, *DYNAMIC_OPTIONS), lenient=True)
    backend, store = create_backend(params)
    return create_dynamic_handler(store, backend, params)


# The TCP store --------------------------------------------------------------------------------------------------------


class OpenedStore(NamedTuple):
    """A store, and the one by which this process serves it to the others; None where another process does."""

    store: Any
    served: Any | None


def tcp_store(host: str, port: int, timeout: timedelta, is_host: bool | None, *, with_torch: bool) -> OpenedStore:
    """The TCP store at this place; this process serves it if it may and nobody else does."""
    may_host = _matches_machine_hostname(host) if is_host is None else is_host
    if may_host:
        try:
            store = serve_tcp_store(host, port, timeout, with_torch=with_torch)
            return OpenedStore(store, store)
        except _FAILURES as exc:
            served = _served.get((host, port))
            if served is not None:
                # Another run or node of this process serves it; the server ends with the last that uses it.
                return OpenedStore(served.clone(), served)
            if is_host:
                raise RendezvousConnectionError(
                    f"is_host is set, but no store can be served on {host}:{port}: {_first_line(exc)}; use another "
                    f"port, or leave is_host out to connect to what is there"
                ) from exc
    return OpenedStore(use_tcp_store(host, port, timeout, with_torch=with_torch), None)


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
    except _FAILURES as exc:
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
    with suppress(ValueError):
        return str(ip_address(host.partition("%")[0]))
    with suppress(OSError, UnicodeError):
        if socket.getaddrinfo(host, None, socket.AF_INET):
            return "0.0.0.0"
    return "::"


def _first_line(exc: BaseException) -> str:
    """torch's errors go on with a trace of its own."""
    return (str(exc).splitlines() or [type(exc).__name__])[0]


# The file store -------------------------------------------------------------------------------------------------------


def file_store(path: str, *, with_torch: bool) -> Any:
    """The store in this file; the files of torch's stores and of ours are not the same."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise RendezvousError(f"the store's file {path} cannot be made: there is no folder {folder}")
    try:
        return stores_c10d.file_store(path) if with_torch else OurFileStore(path, timeout=FILE_TIMEOUT)
    except _FAILURES as exc:
        raise RendezvousConnectionError(f"the file store {path} cannot be opened: {_first_line(exc)}") from exc


def _private_file() -> str:
    try:
        handle, path = tempfile.mkstemp(prefix="rallypoint-")
    except OSError as exc:
        raise RendezvousError(
            f"no endpoint is given, and a file for the store cannot be made in {tempfile.gettempdir()}: "
            f"{exc.strerror}; give a path as the endpoint"
        ) from exc
    os.close(handle)
    return path
