"""A store on a TCP server: ours or torch's, whose clients see the same keys."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta

from rallypoint.stores.base import (
    DEFAULT_TIMEOUT,
    Store,
    decode_key,
    encode_key,
    encode_keys,
    encode_pairs,
    encode_value,
    in_64_bits,
    name_some,
)
from rallypoint.stores.errors import QueueEmptyError, StoreError, StoreTimeoutError
from rallypoint.stores.tcp import replies, wire
from rallypoint.stores.tcp.connection import Asked, connect
from rallypoint.stores.tcp.replies import Reader, T
from rallypoint.stores.tcp.wire import Query, StoreLimits
from rallypoint.waiting import Backoff, Deadline, in_seconds

# torch's clients put this before every key, and count themselves under that one without it.
_KEY_START = b"/"
_WORKERS_KEY = b"init/"

# A server answers at once, except to a wait; one that is silent for so long is gone.
_ANSWER_TIMEOUT_S = 30.0
_POLL_S = 0.01, 0.1
_MOST_NAMED = 8


class TcpStore(Store):
    """A client of a store server, which the master hosts; the arguments are those of torch's TCPStore.

    It connects when it is made, and retries until the time-out, as the server may start later.  With a `world_size` and
    `wait_for_workers`, the master waits until as many clients have connected.  The server listens on `host_name` only;
    with port 0 it chooses one: see `port`.

    There is one connection, and one request on it at a time, as with torch: while a thread waits for a key, the other
    threads' requests wait behind it.  A thread that is to wait for long takes a `clone()`.  When the connection is lost,
    every further call fails: another server may be at that address by now, and its keys are another job's.

    With a `secret`, the master answers only clients that prove that they know it, and they believe no other server.  torch's
    clients cannot.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        *,
        limits: StoreLimits | None = None,
        secret: str = "",
    ) -> None:
        self.host = host_name
        self.port = port
        self._secret = secret
        self._limits = limits or StoreLimits()
        self.set_timeout(timeout)
        # Whatever is acquired below is given back when the store is closed, or forgotten: the connection first.
        acquired = ExitStack()
        self._finalizer = weakref.finalize(self, acquired.close)
        try:
            if is_master:
                from rallypoint.stores.tcp.hosting import host_server

                self.port, stop = host_server(host_name, port, self._limits, multi_tenant, secret)
                acquired.callback(stop)
            self._connection = connect(host_name, self.port, self._timeout_s, secret)
            acquired.callback(self._connection.close)
            if wait_for_workers and world_size is not None and world_size > 0:
                self._wait_for_workers(world_size, is_master)
        except BaseException:
            self._finalizer()
            raise

    def __repr__(self) -> str:
        return f"TcpStore({self.host!r}, {self.port})"

    def __enter__(self) -> TcpStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection, and the server if this store hosts it.  A call that is waiting gets a `StoreError`."""
        self._connection.end("it was closed here")
        self._finalizer()

    # The contract -----------------------------------------------------------------------------------------------------

    def set(self, key: str, value: bytes | str) -> None:
        self._ask(("set", key), Query.SET, [_name(key), encode_value(value)], replies.read_nothing)

    def get(self, key: str) -> bytes:
        return self._when_there(("get", key), [_name(key)], Query.GET, replies.read_value)

    def add(self, key: str, amount: int) -> int:
        return self._ask(("add to", key), Query.ADD, [_name(key)], replies.read_number, in_64_bits(amount))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        texts = [_name(key), encode_value(expected), encode_value(desired)]
        return self._ask(("compare_set", key), Query.COMPARE_SET, texts, replies.read_value)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        if names := _names(keys):
            self._wait(("wait for", *keys), names, self._deadline(timeout))

    def check(self, keys: Sequence[str]) -> bool:
        return self._ask(("check", *keys), Query.CHECK, _names(keys), replies.read_flag)

    def delete_key(self, key: str) -> bool:
        return self._ask(("delete", key), Query.DELETE, [_name(key)], replies.read_number) > 0

    def num_keys(self) -> int:
        return self._ask(("count the keys",), Query.COUNT_KEYS, [], replies.read_number)

    def list_keys(self) -> list[str]:
        names = self._ask(("list the keys",), Query.LIST_KEYS, [], replies.read_counted_values)
        return [decode_key(name.removeprefix(_KEY_START)) for name in names if name.startswith(_KEY_START)]

    def append(self, key: str, value: bytes | str) -> None:
        self._ask(("append to", key), Query.APPEND, [_name(key), encode_value(value)], replies.read_nothing)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        if not (names := _names(keys)):
            return []
        return self._when_there(("get", *keys), names, Query.MULTI_GET, replies.read_values(len(names)))

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        texts = [text for key, value in encode_pairs(keys, values) for text in (_KEY_START + key, value)]
        self._ask(("set", *keys), Query.MULTI_SET, texts, replies.read_nothing)

    def queue_push(self, key: str, value: bytes | str) -> None:
        self._ask(("push to the queue", key), Query.QUEUE_PUSH, [_name(key), encode_value(value)], replies.read_nothing)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        asked, names = ("pop from the queue", key), [_name(key)]
        deadline, backoff = self._deadline(), Backoff(*_POLL_S)
        while True:
            if block:
                self._wait(asked, names, deadline)
            popped = self._ask(asked, Query.QUEUE_POP, names, replies.read_popped)
            if popped is not None:
                return popped
            if not block:
                raise QueueEmptyError(f"the queue {key!r} at {self.host}, port {self.port} is empty")
            # Another client was faster, or the key has a value beside the queue, which ends every wait at once.  The wire
            # format knows no wait for a queue alone, so in that case there is no other way than to ask again.
            if not backoff.pause(deadline):
                raise StoreTimeoutError(f"{self._connection.what(asked)}: nothing came within {deadline.timeout_s:g} s")

    def queue_len(self, key: str) -> int:
        return self._ask(("measure the queue", key), Query.QUEUE_LEN, [_name(key)], replies.read_number)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        deadline = self._deadline(timeout)
        asked = (f"wait at the barrier of {world_size}", key)
        names = [_name(key)]
        request = self._request(asked, Query.BARRIER, names, in_64_bits(world_size))
        connection = self._connection
        with connection.exchange(asked, self._answer_timeout_s):
            if connection.say_and_wait(request, deadline.left_s(), _ANSWER_TIMEOUT_S):
                return
            arrived = connection.say(wire.request(Query.GET, names), replies.read_value, _ANSWER_TIMEOUT_S)
        here = f"{arrived.decode(errors='replace')} have arrived"
        raise StoreTimeoutError(f"{connection.what(asked)}: not within {deadline.timeout_s:g} s; {here}")

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = in_seconds(timeout)
        self._answer_timeout_s = max(self._timeout_s, _ANSWER_TIMEOUT_S)
        self._timeout = timeout

    def clone(self) -> TcpStore:
        return TcpStore(self.host, self.port, timeout=self._timeout, limits=self._limits, secret=self._secret)

    # Talking ----------------------------------------------------------------------------------------------------------

    def _when_there(self, asked: Asked, names: Sequence[bytes], query: Query, reader: Reader[T]) -> T:
        """An answer as soon as all keys are there; where they are there already, that takes one round trip."""
        deadline, if_ready = self._deadline(), replies.if_ready(reader)
        request = self._request(asked, Query.CHECK, names) + wire.request(query, names)
        while (answer := self._connection.ask(asked, request, if_ready, self._answer_timeout_s)) is None:
            self._wait(asked, names, deadline)
        return answer

    def _ask(self, asked: Asked, query: Query, texts: Sequence[bytes], reader: Reader[T], number: int = 0) -> T:
        return self._connection.ask(asked, self._request(asked, query, texts, number), reader, self._answer_timeout_s)

    def _wait(self, asked: Asked, names: Sequence[bytes], deadline: Deadline) -> None:
        request, connection = self._request(asked, Query.WAIT, names), self._connection
        with connection.exchange(asked, self._answer_timeout_s):
            if connection.say_and_wait(request, deadline.left_s(), _ANSWER_TIMEOUT_S):
                return
            missing = [
                decode_key(name.removeprefix(_KEY_START))
                for name in names[:_MOST_NAMED]
                if not connection.say(wire.request(Query.CHECK, [name]), replies.read_flag, _ANSWER_TIMEOUT_S)
            ]
        left = f"; still missing: {name_some(missing)}" if missing else ""
        raise StoreTimeoutError(f"{connection.what(asked)}: not within {deadline.timeout_s:g} s{left}")

    def _wait_for_workers(self, world_size: int, is_master: bool) -> None:
        """Polls, as torch's does: all that clients do is add to a number, and the format knows no wait for that."""
        asked = (f"wait for {world_size} workers",)
        deadline, backoff = self._deadline(), Backoff(*_POLL_S)
        here = self._ask(asked, Query.ADD, [_WORKERS_KEY], replies.read_number, 1)
        while is_master and here < world_size:
            if not backoff.pause(deadline):
                raise StoreTimeoutError(f"{self._connection.what(asked)}: {here} came within {deadline.timeout_s:g} s")
            here = self._ask(asked, Query.ADD, [_WORKERS_KEY], replies.read_number, 0)

    def _request(self, asked: Asked, query: Query, texts: Sequence[bytes], number: int = 0) -> bytes:
        if why := wire.why_too_large(query, texts, self._limits):
            raise StoreError(f"cannot {self._connection.what(asked)}: {why}")
        return wire.request(query, texts, number)


def _name(key: str) -> bytes:
    return _KEY_START + encode_key(key)


def _names(keys: Sequence[str]) -> list[bytes]:
    return [_KEY_START + name for name in encode_keys(keys)]
