"""A store whose data are a `KeyValues` of this process: the part that a store in memory and one in a file share."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TypeVar

from rallypoint.stores.base import (
    Store,
    decode_key,
    encode_key,
    encode_keys,
    encode_pairs,
    encode_value,
    in_64_bits,
    name_some,
)
from rallypoint.stores.data import KeyValues, Operation, Verb, Waiter, read_number
from rallypoint.stores.errors import QueueEmptyError, StoreError, StoreTimeoutError
from rallypoint.stores.tcp.wire import Query
from rallypoint.waiting import Deadline

T = TypeVar("T")


class WaitingThread(Waiter):
    """A thread that waits for keys or at a barrier."""

    __slots__ = ("awake",)

    def __init__(self) -> None:
        super().__init__()
        self.awake = threading.Event()


LocalData = KeyValues[WaitingThread]


class SharedData:
    """The data of a store in this process, which its threads share."""

    reloads = 0
    """How often the data were read from scratch: changes that came and went in between were not seen."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.data = LocalData()

    @contextmanager
    def last_read(self) -> Iterator[LocalData]:
        """The data as they were last read, for this thread alone; threads whose wait is over are woken afterwards."""
        with self.lock:
            try:
                yield self.data
            finally:
                self.wake()

    def opened(self, lock_timeout_s: float, *, write: bool = False) -> AbstractContextManager[LocalData]:
        """The data as they are now, for this thread alone, while no process writes; to write, while none reads either."""
        return self.last_read()

    def write(self, *changes: Operation) -> None:
        """Make changes, all or none.  Only in a context that was `opened` to write."""
        for change in changes:
            self.data.apply(change)

    def wake(self) -> None:
        """Wake the threads whose wait is over."""
        for thread in self.data.take_woken():
            thread.awake.set()


class LocalStore(Store):
    """The contract of a store on data that this process holds."""

    _shared: SharedData

    _first_look_s = _longest_look_s = math.inf
    """How often a waiting thread reads the data again; it need not where only threads of this process change them."""

    _longest_value: int | None = None
    """The length in bytes to which `append` may extend a value."""

    _where = ""
    """Where the store is, for messages."""

    def _open(self, action: str, query: Query, *texts: bytes, write: bool = False) -> AbstractContextManager[LocalData]:
        """The data, to do this with the texts; a subclass may refuse them."""
        return self._shared.opened(0.0, write=write)

    # The contract -----------------------------------------------------------------------------------------------------

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        puts = [Operation(Verb.PUT, name, value) for name, value in encode_pairs(keys, values)]
        self._change(f"set {name_some(keys)}", Query.MULTI_SET, *puts)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        names = encode_keys(keys)
        action = f"get {name_some(keys)}"
        return self._when_ready(
            action,
            lambda: self._open(action, Query.MULTI_GET, *names),
            lambda data, thread: data.wait(thread, names),
            lambda data: [data.get(name) for name in names],
        )

    def add(self, key: str, amount: int) -> int:
        name = encode_key(key)
        in_64_bits(amount)
        with self._open(f"add to {name_some([key])}", Query.ADD, name, write=True) as data:
            total = data.total(name, amount)
            self._shared.write(Operation(Verb.PUT, name, b"%d" % total))
        return total

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        name, old, new = encode_key(key), encode_value(expected), encode_value(desired)
        with self._open(f"compare_set {name_some([key])}", Query.COMPARE_SET, name, old, new, write=True) as data:
            if data.get(name) != old:
                return data.compare_set(name, old, new)  # which changes nothing
            self._shared.write(Operation(Verb.PUT, name, new))
        return new

    def append(self, key: str, value: bytes | str) -> None:
        name, more = encode_key(key), encode_value(value)
        action, longest = f"append to {name_some([key])}", self._longest_value
        with self._open(action, Query.APPEND, name, more, write=True) as data:
            if longest is not None and data.size(name) + len(more) > longest:
                raise StoreError(f"cannot {action}{self._where}: the value would be longer than {longest} bytes")
            self._shared.write(Operation(Verb.APPEND, name, more))

    def delete_key(self, key: str) -> bool:
        name = encode_key(key)
        with self._open(f"delete {name_some([key])}", Query.DELETE, name, write=True) as data:
            was_there = name in data.values
            if was_there:
                self._shared.write(Operation(Verb.DELETE, name))
        return was_there

    def num_keys(self) -> int:
        with self._open("count the keys", Query.COUNT_KEYS) as data:
            return len(data.values)

    def list_keys(self) -> list[str]:
        with self._open("list the keys", Query.LIST_KEYS) as data:
            return [decode_key(name) for name in data.values]

    def check(self, keys: Sequence[str]) -> bool:
        names = encode_keys(keys)
        with self._open(f"check {name_some(keys)}", Query.CHECK, *names) as data:
            return all(data.holds(name) for name in names)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        names, thread, deadline = encode_keys(keys), WaitingThread(), self._deadline(timeout)
        action = f"wait for {name_some(keys)}"
        with self._open(action, Query.WAIT, *names) as data:
            if data.wait(thread, names):
                return
        self._sleep(thread, deadline, action)
        with self._shared.last_read() as data:
            data.settle(thread)

    def queue_push(self, key: str, value: bytes | str) -> None:
        operation = Operation(Verb.PUSH, encode_key(key), encode_value(value))
        self._change(f"push to the queue {name_some([key])}", Query.QUEUE_PUSH, operation)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        name = encode_key(key)
        action = f"pop from the queue {name_some([key])}"

        def ready(data: LocalData, thread: WaitingThread) -> bool:
            if not block and not data.queue_len(name):
                raise QueueEmptyError(f"the queue {key!r}{self._where} is empty")
            return data.wait_for_push(thread, name)

        def pop(data: LocalData) -> bytes:
            oldest = data.queues[name][0]
            self._shared.write(Operation(Verb.POP, name))
            return oldest

        return self._when_ready(action, lambda: self._open(action, Query.QUEUE_POP, name, write=True), ready, pop)

    def queue_len(self, key: str) -> int:
        name = encode_key(key)
        with self._open(f"measure the queue {name_some([key])}", Query.QUEUE_LEN, name) as data:
            return data.queue_len(name)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        name, thread, deadline = encode_key(key), WaitingThread(), self._deadline(timeout)
        in_64_bits(world_size)
        action = f"wait at the barrier {name_some([key])} of {world_size}"
        with self._open(action, Query.BARRIER, name, write=True) as data:
            here = data.total(name, 1)  # an error, if it is no number
            self._shared.write(Operation(Verb.ARRIVE, name, b"%d" % world_size))
            if here >= world_size:
                return
            data.stand_at(thread, name)
            reloads = self._shared.reloads
        # A thread that has not seen the last arrival, because a reload skipped it, sees the count of arrivals.
        self._sleep(
            thread,
            deadline,
            action,
            lambda data: self._shared.reloads > reloads and (read_number(data.get(name)) or 0) >= world_size,
        )

    # Changing and waiting ---------------------------------------------------------------------------------------------

    def _change(self, action: str, query: Query, *operations: Operation) -> None:
        texts = [text for operation in operations for text in (operation.key, operation.value)]
        with self._open(action, query, *texts, write=True):
            self._shared.write(*operations)

    def _when_ready(
        self,
        action: str,
        open_data: Callable[[], AbstractContextManager[LocalData]],
        ready: Callable[[LocalData, WaitingThread], bool],
        act: Callable[[LocalData], T],
    ) -> T:
        """Wait until the data are `ready`, and `act` on them before another caller can."""
        thread, deadline = WaitingThread(), self._deadline()
        try:
            while True:
                with open_data() as data:
                    if ready(data, thread):
                        result = act(data)
                        data.settle(thread)
                        return result
                    data.settle(thread)  # another caller was faster
                self._sleep(thread, deadline, action)
                thread.awake.clear()
        except BaseException:
            self._give_up(thread)
            raise

    def _sleep(
        self,
        thread: WaitingThread,
        deadline: Deadline,
        action: str,
        is_over: Callable[[LocalData], bool] = lambda data: False,
    ) -> None:
        """Wait until the thread is woken, by another thread or by what it reads itself; or until `is_over`."""
        pause_s = self._first_look_s
        try:
            while not thread.awake.wait(min(pause_s, deadline.left_s())):
                last = not deadline.left_s()
                with self._open(action, Query.WAIT) as data:
                    if is_over(data):
                        data.cancel(thread)
                        return
                if last and not thread.awake.is_set():
                    missing = self._give_up(thread)
                    left = f"; still missing: {name_some(missing)}" if missing else ""
                    raise StoreTimeoutError(f"{action}{self._where}: not within {deadline.timeout_s:g} s{left}")
                pause_s = min(1.5 * pause_s, self._longest_look_s)
        except BaseException:
            self._give_up(thread)
            raise

    def _give_up(self, thread: WaitingThread) -> list[str]:
        """The thread waits no more; returns the keys that it was still waiting for."""
        with self._shared.last_read() as data:
            missing = sorted(decode_key(name) for name in thread.missing)
            data.cancel(thread)
            data.settle(thread)
        return missing
