"""The kinds of stores that torch has a part in, as the contract's tests know them."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.support.remote_stores import RemoteStore, store_process
from tests.support.store_kinds import SOON, Kind, Open, clients_of, start_server, under

# What torch's client does not do.
CLIENT = frozenset(
    {
        "words",  # its messages are not ours
        "checked arguments",  # and what it refuses, it refuses with other errors
        "keys of any bytes",  # it cannot list them
        "no time at all",  # a negative time-out is no end at all, and 0 a race
        "pop waits on",  # a value beside the queue, or somebody faster, ends its pop as if it had not been told to wait
    }
)
# What torch's server does not do.
SERVER = frozenset(
    {
        "overflow",  # the sum wraps
        "wakes for values only",  # a compare_set that sets nothing wakes who waits for the key
        "firm barriers",  # a write to a barrier's key opens it for those who stand there
        "wakes the next",  # an entry that is not fetched by the one who was woken for it wakes nobody
    }
)
# torch's PrefixStore, and every store of torch's but TCPStore, counts a barrier under keys of another name.
GENERIC_BARRIER = frozenset({"barrier of none", "barrier key"})
# It has a time-out of its own for barriers, which nobody can set.
PREFIX = GENERIC_BARRIER | {"barrier timeout", "limits"}
HASH = GENERIC_BARRIER | {"limits", "get of a queue", "cloned timeout", "add wakes", "came and went"}
FILE = HASH | {"queues", "count", "delete", "extended", "long appends", "brief timeouts"}


def _remote(store: RemoteStore, stack: ExitStack, prefix: str | None) -> RemoteStore:
    stack.callback(store.close)
    if prefix is not None:
        store = store.under(prefix)
        stack.callback(store.close)
    return store


def _ours_on_theirs(stack: ExitStack) -> Open:
    master = _remote(store_process("host").open_master(), stack, None)
    return clients_of(master.port, stack)


def _theirs_on_ours(stack: ExitStack, prefix: str | None = None) -> Open:
    port = start_server(stack).port
    return lambda: _remote(store_process("guest").open_tcp(port), stack, prefix)


def _theirs_on_theirs(stack: ExitStack, prefix: str | None = None) -> Open:
    port = _remote(store_process("host").open_master(), stack, None).port
    return lambda: _remote(store_process("guest").open_tcp(port), stack, prefix)


def _hash(stack: ExitStack) -> Open:
    first = _remote(store_process("guest").open("open_hash"), stack, None)
    first.set_timeout(SOON)

    def open_store() -> RemoteStore:
        return _remote(first.clone(), stack, None)

    return open_store


def _file(stack: ExitStack) -> Open:
    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store"

    def open_store() -> RemoteStore:
        store = _remote(store_process("guest").open("open_file", str(path)), stack, None)
        store.set_timeout(SOON)
        return store

    return open_store


OURS_ON_THEIRS = Kind(_ours_on_theirs, SERVER, watched=False)

TORCH_KINDS: dict[str, Kind] = {
    "tcp on torch's server": OURS_ON_THEIRS,
    "prefix-tcp on torch's server": under(OURS_ON_THEIRS, "prefix"),
    "torch on our server": Kind(_theirs_on_ours, CLIENT),
    "torch prefix on our server": Kind(lambda stack: _theirs_on_ours(stack, "prefix"), CLIENT | PREFIX),
    "torch": Kind(_theirs_on_theirs, CLIENT | SERVER, watched=False),
    "torch prefix": Kind(lambda stack: _theirs_on_theirs(stack, "prefix"), CLIENT | SERVER | PREFIX, watched=False),
    "torch hash": Kind(_hash, CLIENT | SERVER | HASH, watched=False),
    "torch file": Kind(_file, CLIENT | SERVER | FILE, watched=False),
}
