"""The keys of a store, and the waiters for them.  Pure: no clock, no IO, no threads, no locks.

Waiters are kept by key, so that a change costs nothing to those that wait for something else.  A method never calls
back: a waiter that has nothing more to wait for is handed out by `take_woken`, and the shell tells it.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from rallypoint.stores.errors import StoreError

# White space, a sign, zeros and at most 19 digits; whatever stands behind them does not count.
_NUMBER = re.compile(rb"\s*([+-]?)0*([0-9]{1,19})(?![0-9])")
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


class Verb(IntEnum):
    """What can be done to a key."""

    PUT = 1
    APPEND = 2
    DELETE = 3
    PUSH = 4
    POP = 5
    ARRIVE = 6  # at a barrier; the value is the world size


class Operation(NamedTuple):
    """One change of one key, as a value: a file can keep it, and every process can repeat it."""

    verb: Verb
    key: bytes
    value: bytes = b""


class Waiter:
    """A thread or connection that waits for keys or at a barrier, for one thing at a time."""

    __slots__ = ("gate", "missing", "promise")

    def __init__(self) -> None:
        self.missing: set[bytes] = set()
        self.gate: bytes | None = None
        # The queue for whose entry it was woken, until it has come to fetch it: see `KeyValues.settle`.
        self.promise: bytes | None = None

    @property
    def waiting(self) -> bool:
        return bool(self.missing) or self.gate is not None


W = TypeVar("W", bound=Waiter)


class KeyValues(Generic[W]):
    """Values, queues and barriers by key.  `values` and `queues` are for reading; methods change them."""

    def __init__(self) -> None:
        # A value that was appended to is kept as a bytearray: many small additions would copy it each time.
        self.values: dict[bytes, bytes | bytearray] = {}
        self.queues: dict[bytes, deque[bytes]] = {}  # none of them is empty
        self._waiting: dict[bytes, OrderedDict[W, None]] = {}
        self._gates: dict[bytes, OrderedDict[W, None]] = {}
        self._promised: dict[bytes, int] = {}
        self.woken: list[W] = []

    def take_woken(self) -> list[W]:
        """The waiters that have nothing more to wait for, since this was last asked."""
        woken, self.woken = self.woken, []
        return woken

    def apply(self, operation: Operation) -> None:
        """Make a change."""
        verb, key, value = operation
        match verb:
            case Verb.PUT:
                self.put(key, value)
            case Verb.APPEND:
                self.append(key, value)
            case Verb.DELETE:
                self.delete(key)
            case Verb.PUSH:
                self.push(key, value)
            case Verb.POP:
                self.pop(key)
            case Verb.ARRIVE:
                self.arrive(key, int(value))

    # Values -----------------------------------------------------------------------------------------------------------

    def holds(self, key: bytes) -> bool:
        return key in self.values or key in self.queues

    def get(self, key: bytes) -> bytes:
        """The value, empty where there is none."""
        value = self.values.get(key, b"")
        if isinstance(value, bytearray):
            # It was appended to: everybody that asks from now on gets the same bytes, and no copy.
            value = self.values[key] = bytes(value)
        return value

    def size(self, key: bytes) -> int:
        return len(self.values.get(key, b""))

    def put(self, key: bytes, value: bytes) -> None:
        self.values[key] = value
        if key in self._waiting:
            for waiter in self._waiting.pop(key):
                waiter.missing.discard(key)
                if not waiter.missing:
                    self.woken.append(waiter)

    def append(self, key: bytes, value: bytes) -> None:
        present = self.values.get(key)
        if isinstance(present, bytearray):
            present += value
        elif present is not None:
            self.values[key] = bytearray(present) + value
        else:
            self.put(key, value)

    def add(self, key: bytes, amount: int) -> int:
        total = self.total(key, amount)
        self.put(key, b"%d" % total)
        return total

    def total(self, key: bytes, amount: int) -> int:
        """What adding would make of the value; nothing is changed."""
        return sum_of(key, self.values.get(key), amount)

    def compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        result, new = swapped(self.get(key) if key in self.values else None, expected, desired)
        if new is not None:
            self.put(key, new)
        return result

    def delete(self, key: bytes) -> bool:
        return self.values.pop(key, None) is not None

    def clear(self) -> None:
        """Drops all values and queues; waiters go on waiting."""
        self.values.clear()
        self.queues.clear()

    # Queues -----------------------------------------------------------------------------------------------------------

    def push(self, key: bytes, value: bytes) -> None:
        self.queues.setdefault(key, deque()).append(value)
        self._offer(key)

    def pop(self, key: bytes) -> bytes | None:
        queue = self.queues.get(key)
        if queue is None:
            return None
        value = queue.popleft()
        if not queue:
            del self.queues[key]
        return value

    def queue_len(self, key: bytes) -> int:
        return len(self.queues.get(key, ()))

    # Waiting ----------------------------------------------------------------------------------------------------------

    def wait(self, waiter: W, keys: Iterable[bytes]) -> bool:
        """True if all keys are there.  Otherwise the waiter is woken when each of those missing has been there."""
        return self._enlist(waiter, {key for key in keys if not self.holds(key)})

    def wait_for_push(self, waiter: W, key: bytes) -> bool:
        """True if the queue holds something.  Otherwise the waiter is woken when that may have changed."""
        return self._enlist(waiter, set() if key in self.queues else {key})

    def stand_at(self, waiter: W, key: bytes) -> None:
        """The waiter is woken when an arrival opens the barrier."""
        assert not waiter.waiting
        waiter.gate = key
        self._gates.setdefault(key, OrderedDict())[waiter] = None

    def arrive(self, key: bytes, world_size: int) -> bool:
        """Counts one arrival.  True if that makes `world_size`, which opens the barrier for all that stand at it."""
        if self.add(key, 1) < world_size:
            return False
        for freed in self._gates.pop(key, ()):
            freed.gate = None
            self.woken.append(freed)
        return True

    def cancel(self, waiter: W) -> None:
        """The waiter waits for nothing any more."""
        for key in waiter.missing:
            _drop(self._waiting, key, waiter)
        waiter.missing = set()
        if waiter.gate is not None:
            _drop(self._gates, waiter.gate, waiter)
            waiter.gate = None

    def settle(self, waiter: W) -> None:
        """A waiter that was woken for a queue has done what it wanted, or is gone.

        An entry wakes one waiter only, because waiters come to pop.  If that one did something else, or died,
        the entry is still there, and the next in line is woken for it.
        """
        key, waiter.promise = waiter.promise, None
        if key is not None:
            self._promised[key] -= 1
            if not self._promised[key]:
                del self._promised[key]
            self._offer(key)

    def _enlist(self, waiter: W, missing: set[bytes]) -> bool:
        assert not waiter.waiting
        waiter.missing = missing
        for key in missing:
            self._waiting.setdefault(key, OrderedDict())[waiter] = None
        return not missing

    def _offer(self, key: bytes) -> None:
        """Wakes a waiter for each entry of the queue that is not promised yet."""
        waiters = self._waiting.get(key)
        while waiters and self.queue_len(key) > self._promised.get(key, 0):
            waiter, _ = waiters.popitem(last=False)
            waiter.missing.discard(key)
            if not waiter.missing:
                waiter.promise = key
                self._promised[key] = self._promised.get(key, 0) + 1
                self.woken.append(waiter)
        if waiters is not None and not waiters:
            del self._waiting[key]


def read_number(value: bytes) -> int | None:
    """The whole number of 64 bits with which a value begins, as torch's stores read it."""
    if len(value) < 19 and value.isdigit():
        return int(value)  # the usual case
    match = _NUMBER.match(value)
    number = int(match[1] + match[2]) if match else None
    return number if number is not None and _SMALLEST <= number <= _LARGEST else None


def sum_of(key: bytes, present: bytes | bytearray | None, amount: int) -> int:
    """What adding makes of a value; StoreError where that is no number, or the sum is too large."""
    number = 0 if present is None else read_number(bytes(present))
    if number is None:
        held = bytes(present or b"")
        shown = held if len(held) <= 40 else held[:40] + b"..."
        raise StoreError(f"cannot add to {_shown(key)}: it holds {shown!r}, which is not a number of 64 bits")
    total = number + amount
    if not _SMALLEST <= total <= _LARGEST:
        raise StoreError(f"cannot add {amount} to {_shown(key)}: {total} does not fit into 64 bits")
    return total


def swapped(present: bytes | None, expected: bytes, desired: bytes) -> tuple[bytes, bytes | None]:
    """What `compare_set` returns of a value, and what it writes; None where it writes nothing."""
    if present == expected or (present is None and not expected):
        return desired, desired
    return expected if present is None else present, None


def _drop(lists: dict[bytes, OrderedDict[W, None]], key: bytes, waiter: W) -> None:
    waiters = lists[key]
    del waiters[waiter]
    if not waiters:
        del lists[key]


def _shown(key: bytes) -> str:
    return repr(key.decode("utf-8", "backslashreplace"))
