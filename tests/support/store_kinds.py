"""The stores that the contract is tested on: what opens each of them, and what each is known to lack."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

from rallypoint.etcd_client import EtcdClient
from rallypoint.stores import EtcdV3Store, FileStore, MemoryStore, PrefixStore, Store, StoreServer, TcpStore, listen
from tests.support.etcd_servers import shared
from tests.support.etcd_tools import fresh, user_of

# For what is expected to happen; never awaited in full by a test that passes.
SOON = timedelta(seconds=30)
SOON_S = SOON.total_seconds()
# For what is expected not to happen.
BRIEFLY = timedelta(milliseconds=20)

# What opens one more handle on a store.
Open = Callable[[], Store]
F = TypeVar("F", bound=Callable[..., object])


class Kind(NamedTuple):
    """One kind of store.  Whatever is acquired for it goes onto the stack."""

    make: Callable[[ExitStack], Open]
    # What it does not do; tests that need one of these do not run on it.
    lacks: frozenset[str] = frozenset()
    # Whether its waiters stand in a `KeyValues` of this process, where a test can count them.
    watched: bool = True


class Handles:
    """Opens handles on one store, as many as a test needs, and closes them."""

    def __init__(self, kind: Kind, stack: ExitStack) -> None:
        self.watched = kind.watched
        self.open: Open = kind.make(stack)


def needs(*features: str) -> Callable[[F], F]:
    """Marks a test that does not run on kinds which lack one of the features."""

    def mark(test: F) -> F:
        test.needs = frozenset(features)  # type: ignore[attr-defined]
        return test

    return mark


def under(kind: Kind, *prefixes: str, lacks: frozenset[str] = frozenset()) -> Kind:
    """The same store under prefixes, the outermost first."""

    def make(stack: ExitStack) -> Open:
        open_below = kind.make(stack)

        def open_store() -> Store:
            store = open_below()
            for prefix in prefixes:
                store = PrefixStore(prefix, store)
            return store

        return open_store

    # Prefixes count towards the length of a key, and a barrier under one is counted as torch's PrefixStore does it.
    return kind._replace(make=make, lacks=kind.lacks | {"limits", "barrier key"} | lacks)


def _memory(stack: ExitStack) -> Open:
    return MemoryStore(SOON).clone


def start_server(stack: ExitStack) -> StoreServer:
    """A server of ours in a thread of this process."""
    server = StoreServer()
    server.start_in_thread(listen("127.0.0.1"))
    stack.callback(server.stop)
    return server


def clients_of(port: int, stack: ExitStack) -> Open:
    """Clients of ours."""
    return lambda: stack.enter_context(TcpStore("127.0.0.1", port, timeout=SOON))


def _file(stack: ExitStack) -> Open:
    path = Path(stack.enter_context(TemporaryDirectory())) / "store"
    return lambda: stack.enter_context(FileStore(path, timeout=SOON))


@functools.cache
def etcd_v3_client(version: str, size: int) -> EtcdClient:
    """A client of a cluster that all tests share, and that they share as well."""
    client = user_of(shared(version, size))
    atexit.register(client.close)
    return client


def etcd_v3(version: str, size: int) -> Kind:
    """Stores on etcd v3, each under a prefix of its own."""

    def make(stack: ExitStack) -> Open:
        client, prefix = etcd_v3_client(version, size), f"contract/{fresh()}"
        return lambda: EtcdV3Store(client, prefix, timeout=SOON)

    return Kind(make, watched=False)


MEMORY = Kind(_memory, frozenset({"limits"}))
# As torch's FileStore it says of every key that it deleted it.
FILE = Kind(_file, frozenset({"delete"}))
TCP = Kind(lambda stack: clients_of(start_server(stack).port, stack))
ETCD_V3 = etcd_v3("3.4", 1)
