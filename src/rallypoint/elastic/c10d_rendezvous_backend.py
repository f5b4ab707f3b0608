"""PyTorch's `c10d` backend: the document is one key of a c10d store, torch's or ours, over TCP or in a file."""

from __future__ import annotations

import binascii
import os
import socket
import tempfile
import weakref
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from rallypoint import events
from rallypoint.elastic.api import RendezvousParameters
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
from rallypoint.elastic.options import choice, flag, read_options, seconds
from rallypoint.elastic.store_probe import NotAStoreError, wait_for_store
from rallypoint.elastic.utils import _matches_machine_hostname, parse_rendezvous_endpoint
from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rallypoint.stores import StoreServer, TcpStore, listen
from rallypoint.stores.errors import StoreError
from rallypoint.torch_bridge import stores_c10d

__all__ = ["DEFAULT_PORT", "C10dRendezvousBackend", "create_backend", "create_handler"]

DEFAULT_PORT = 29400
BACKEND = "c10d"
FILE_TIMEOUT = timedelta(seconds=300)

STORE_TYPE = choice("store_type", ("tcp", "file"), "tcp", "which kind of store holds the run")
READ_TIMEOUT = seconds("read_timeout", 60.0, "how long a call to the TCP store may take")
IS_HOST = flag("is_host", None, "whether this process serves the TCP store")
OPTIONS = (STORE_TYPE, READ_TIMEOUT, IS_HOST)

# A store's `get` waits for a key that is missing, so the key is never missing: this stands there before anything does.
# It is the value that torch's nodes put there, so that they and ours see an empty place alike.
_NOTHING = b"Y2FuaW1hZGFt"

_FAILURES = (StoreError, RuntimeError, OSError, LookupError)
"""What the stores of ours and of torch raise when they cannot be reached."""


class C10dRendezvousBackend(RendezvousBackend):
    """The document under one key of a store; its token is the value itself.

    `hosts_store` says that this process serves the store to the others, and so stays until they have left.
    """

    def __init__(self, store: Any, run_id: str) -> None:
        if not run_id:
            raise ValueError("The run id is empty: every job needs a name of its own, such as its job id.")
        self.hosts_store = False
        self._store = store
        self._key = f"torch.rendezvous.{run_id}"

    @property
    def name(self) -> str:
        """The backend's name."""
        return BACKEND

    def get_state(self) -> tuple[bytes, Token] | None:
        """The document and its token, or None."""
        # Puts the place-holder there if nothing is, and reads what is there if something is.
        return _decode(self._call(lambda: self._store.compare_set(self._key, "", _NOTHING.decode())))

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write if the token is still that of what is there, or, without one, if nothing is."""
        if token is not None and not isinstance(token, bytes):
            there = self.get_state()
            return None if there is None else (*there, False)
        desired = b64encode(state)
        if token is None or token == desired:
            # A store says the same of a key that is missing as of one that has this very value.
            self._call(lambda: self._store.compare_set(self._key, "", _NOTHING.decode()))
        expected = _NOTHING if token is None else token
        stored = self._call(lambda: self._store.compare_set(self._key, expected.decode(), desired.decode()))
        if stored == desired:
            return state, desired, True
        if stored == expected:
            # Nothing is there at all: a store answers so when a key that should have a value has none.
            return None
        there = _decode(stored)
        return None if there is None else (*there, False)

    def _call(self, action: Callable[[], bytes | str]) -> bytes:
        try:
            value = action()
        except _FAILURES as exc:
            raise RendezvousConnectionError(
                f"the store of the run cannot be used: {str(exc) or type(exc).__name__}"
            ) from exc
        return value.encode() if isinstance(value, str) else bytes(value)


def _decode(stored: bytes) -> tuple[bytes, Token] | None:
    if stored == _NOTHING:
        return None
    try:
        return b64decode(stored, validate=True), stored
    except (binascii.Error, ValueError) as exc:
        raise RendezvousStateError(
            f"the document of the run is damaged: it should be base64, and begins with {stored[:40]!r}; something else "
            f"writes to its key: use another run id or another store"
        ) from exc


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Any]:
    """The backend and its store, as the parameters ask for them: torch's own stores where torch is installed."""
    known = {option.name for option in OPTIONS}
    try:
        options = read_options(
            params.backend, {name: value for name, value in params.config.items() if name in known}, OPTIONS
        )
        if options[STORE_TYPE] == "file":
            store, hosts = _file_store(params), False
        else:
            store, hosts = _tcp_store(params, options[READ_TIMEOUT], options[IS_HOST])
        backend = C10dRendezvousBackend(store, params.run_id)
    except Exception as exc:
        events.record("backend failed", params.run_id, f"{type(exc).__name__}: {exc}", backend=params.backend)
        raise
    backend.hosts_store = hosts
    why = f"a {options[STORE_TYPE]} store {'served' if hosts else 'used'} by this process"
    events.record("backend created", params.run_id, why, backend=params.backend, endpoint=params.endpoint)
    return backend, store


def create_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """The creator of the backend `c10d`; an option that nobody knows is a ValueError."""
    read_options(BACKEND, params.config, (*OPTIONS, *DYNAMIC_OPTIONS))
    backend, store = create_backend(params)
    return create_dynamic_handler(store, backend, params)


# The TCP store --------------------------------------------------------------------------------------------------------


def _tcp_store(params: RendezvousParameters, timeout_s: float, is_host: bool | None) -> tuple[Any, bool]:
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    timeout = timedelta(seconds=timeout_s)
    may_host = _matches_machine_hostname(host) if is_host is None else is_host
    if may_host:
        try:
            return serve_tcp_store(host, port, timeout), True
        except _FAILURES as exc:
            if is_host and (host, port) not in _served:
                raise RendezvousConnectionError(
                    f"is_host is set, but no store can be served on {host}:{port}: {_first_line(exc)}; use another "
                    f"port, or leave is_host out to connect to what is there"
                ) from exc
    return use_tcp_store(host, port, timeout), False


def use_tcp_store(host: str, port: int, timeout: timedelta) -> Any:
    """A client of the TCP store at this place, which may start later; RendezvousConnectionError says what is there."""
    timeout_s = timeout.total_seconds()
    try:
        wait_for_store(host, port, timeout_s)
        if stores_c10d.has_torch():
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


def serve_tcp_store(host: str, port: int, timeout: timedelta) -> Any:
    """A TCP store that this process serves: bound first, so that a port that is taken is known before anything else."""
    listener = listen(_bind_address(host), port)
    port = listener.getsockname()[1]
    if stores_c10d.has_torch():
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


def _file_store(params: RendezvousParameters) -> Any:
    path = (params.endpoint or "").strip() or _private_file()
    folder = Path(path).parent
    if not folder.is_dir():
        raise RendezvousError(f"the store's file {path} cannot be made: there is no folder {folder}")
    try:
        return _open_file(path)
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


def _open_file(path: str) -> Any:
    if stores_c10d.has_torch():
        return stores_c10d.file_store(path)
    from rallypoint.stores.file import FileStore

    return FileStore(path, timeout=FILE_TIMEOUT)
