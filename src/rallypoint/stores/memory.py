"""A store for the threads of one process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from rallypoint.stores import forks
from rallypoint.stores.base import (
    DEFAULT_TIMEOUT,
    Store,
    Term,
    decode_key,
    encode_key,
    encode_keys,
    encode_pairs,
    encode_value,
    in_64_bits,
    in_seconds,
    name_some,
)
from rallypoint.stores.data import KeyValues, Waiter
from rallypoint.stores.errors import QueueEmptyError, StoreForkError, StoreTimeoutError

T = TypeVar("T")


class _Sleeper(Waiter):
    """A thread that waits."""

    __slots__ = ("awake",)

    def __init__(self) -> None:
        super().__init__()
        self.awake = threading.Event()


class _Shared:
    """What the clones of a store have in common."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.data = KeyValues[_Sleeper]()
        self._opened_in = os.getpid()
        self._parents: str | None = None
        forks.let_go_in_children(self)

    def forked(self) -> None:
        """In a forked child: a copy of the keys is no store that the two share."""
        self._parents = forks.opened_before(
            "this store in memory",
            self._opened_in,
            "nothing that one of them sets reaches the other",
            "use a TcpStore or a FileStore for both, or make a MemoryStore in the child",
        )

    @contextmanager
    def opened(self) -> Iterator[KeyValues[_Sleeper]]:
        """The data, for this thread alone; whoever has nothing more to wait for afterwards is woken."""
        if self._parents is not None:
            raise StoreForkError(self._parents)
        with self.lock:
            try:
                yield self.data
            finally:
                for sleeper in self.data.take_woken():
                    sleeper.awake.set()


class MemoryStore(Store):
    """A store in memory; every operation happens at once or not at all.

    Unlike the one over TCP it knows no limits to the size of keys and values.  It belongs to one process: a forked child
    is told so.
    """

    def __init__(self, timeout: timedelta = DEFAULT_TIMEOUT, *, _shared: _Shared | None = None) -> None:
        self._shared = _shared or _Shared()
        self.set_timeout(timeout)

    def set(self, key: str, value: bytes | str) -> None:
        with self._shared.opened() as data:
            data.put(encode_key(key), encode_value(value))

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        in_64_bits(amount)
        with self._shared.opened() as data:
            return data.add(encode_key(key), amount)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        with self._shared.opened() as data:
            return data.compare_set(encode_key(key), encode_value(expected), encode_value(desired))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        names = encode_keys(keys)
        sleeper = _Sleeper()
        with self._shared.opened() as data:
            if data.wait(sleeper, names):
                return
        self._sleep(sleeper, self._term(timeout), f"wait for {name_some(keys)}")
        with self._shared.opened() as data:
            data.settle(sleeper)

    def check(self, keys: Sequence[str]) -> bool:
        names = encode_keys(keys)
        with self._shared.opened() as data:
            return all(data.holds(name) for name in names)

    def delete_key(self, key: str) -> bool:
        with self._shared.opened() as data:
            return data.delete(encode_key(key))

    def num_keys(self) -> int:
        with self._shared.opened() as data:
            return len(data)

    def list_keys(self) -> list[str]:
        with self._shared.opened() as data:
            return [decode_key(name) for name in data.list_keys()]

    def append(self, key: str, value: bytes | str) -> None:
        with self._shared.opened() as data:
            data.append(encode_key(key), encode_value(value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        names = encode_keys(keys)
        return self._once(
            lambda data, sleeper: data.wait(sleeper, names),
            lambda data: [data.get(name) for name in names],
            f"get {name_some(keys)}",
        )

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        pairs = encode_pairs(keys, values)
        with self._shared.opened() as data:
            for name, value in pairs:
                data.put(name, value)

    def queue_push(self, key: str, value: bytes | str) -> None:
        with self._shared.opened() as data:
            data.push(encode_key(key), encode_value(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        name = encode_key(key)
        if block:
            popped = self._once(
                lambda data, sleeper: data.wait_for_push(sleeper, name),
                lambda data: data.pop(name),
                f"pop from the queue {key!r}",
            )
            assert popped is not None
            return popped
        with self._shared.opened() as data:
            popped = data.pop(name)
        if popped is None:
            raise QueueEmptyError(f"the queue {key!r} is empty")
        return popped

    def queue_len(self, key: str) -> int:
        with self._shared.opened() as data:
            return data.queue_len(encode_key(key))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        in_64_bits(world_size)
        sleeper = _Sleeper()
        with self._shared.opened() as data:
            if data.barrier(sleeper, encode_key(key), world_size):
                return
        self._sleep(sleeper, self._term(timeout), f"barrier {key!r} of {world_size}")

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        in_seconds(timeout)
        self._timeout = timeout

    def clone(self) -> MemoryStore:
        return MemoryStore(self._timeout, _shared=self._shared)

    def _term(self, timeout: timedelta | None = None) -> Term:
        return Term.of(self._timeout if timeout is None else timeout)

    def _once(
        self,
        ready: Callable[[KeyValues[_Sleeper], _Sleeper], bool],
        act: Callable[[KeyValues[_Sleeper]], T],
        asked: str,
    ) -> T:
        """Does what was asked in the very moment in which all is there for it."""
        sleeper, term = _Sleeper(), self._term()
        while True:
            with self._shared.opened() as data:
                if ready(data, sleeper):
                    result = act(data)
                    data.settle(sleeper)
                    return result
                data.settle(sleeper)  # someone was faster
            self._sleep(sleeper, term, asked)
            sleeper.awake.clear()

    def _sleep(self, sleeper: _Sleeper, term: Term, asked: str) -> None:
        try:
            if sleeper.awake.wait(term.left_s()):
                return
        except BaseException:  # an interrupt
            with self._shared.opened() as data:
                data.cancel(sleeper)
                data.settle(sleeper)
            raise
        with self._shared.opened() as data:
            missing = sorted(decode_key(name) for name in sleeper.missing)
            data.cancel(sleeper)
        if sleeper.awake.is_set():
            return
        left = f"; still missing: {name_some(missing)}" if missing else ""
        raise StoreTimeoutError(f"{asked}: not within {term.timeout_s:g} s{left}")
