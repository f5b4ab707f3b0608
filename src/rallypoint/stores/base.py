"""What every store offers: the contract of torch.distributed's stores, without torch.

Keys are text, values are bytes (text is taken as UTF-8).  A store may be shared by the threads of a process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta

from rallypoint.waiting import Deadline, in_seconds

DEFAULT_TIMEOUT = timedelta(seconds=300)


class WrongKindError(TypeError, ValueError):
    """A key or value of the wrong type.  torch's EtcdStore raises a ValueError then, its other stores a TypeError."""


class Store(ABC):
    """Keys, counters and queues that the nodes of a job share.

    Where a method waits, it waits for `timeout` at most, which is the store's own time-out unless one is given; then it
    raises `StoreTimeoutError`.
    """

    def set(self, key: str, value: bytes | str) -> None:
        self.multi_set([key], [value])

    def get(self, key: str) -> bytes:
        """The value; waits until there is one.  A key that is only a queue has the empty value."""
        return self.multi_get([key])[0]

    @abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Adds to a number that is kept as decimal text, and returns the sum.  An absent key counts as 0.

        Of a value that only begins with a number, that number counts, as with torch.  Any other value, or a sum beyond
        64 bits, is a `StoreError`.
        """

    @abstractmethod
    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Sets the key if its value is `expected`, or if it is absent and `expected` is empty.

        Returns what is stored afterwards; or `expected`, if the key is absent and `expected` is not empty.
        """

    @abstractmethod
    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until each of the keys has been there.  A queue is there while it holds something."""

    @abstractmethod
    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of the keys are there.  A queue is there while it holds something."""

    @abstractmethod
    def delete_key(self, key: str) -> bool:
        """Whether there was a value to delete.  Queues are left alone."""

    def num_keys(self) -> int:
        """How many keys have values, in the whole store; queues do not count."""
        return len(self.list_keys())

    @abstractmethod
    def list_keys(self) -> list[str]:
        """The keys that have values, in no order; queues are not listed."""

    @abstractmethod
    def append(self, key: str, value: bytes | str) -> None:
        """Adds to the end of the value.  An absent key counts as empty."""

    @abstractmethod
    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values in the order of the keys; waits until all are there."""

    @abstractmethod
    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None: ...

    @abstractmethod
    def queue_push(self, key: str, value: bytes | str) -> None: ...

    @abstractmethod
    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """The oldest entry; waits until there is one, or, without `block`, raises `QueueEmptyError`."""

    @abstractmethod
    def queue_len(self, key: str) -> int: ...

    @abstractmethod
    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Waits until `world_size` calls have been made with this key.

        The barrier then stays open: take another key the next time.  A call that timed out has been counted
        nevertheless.  Which keys it leaves behind is the store's own affair.
        """

    _timeout: timedelta = DEFAULT_TIMEOUT

    @property
    def timeout(self) -> timedelta:
        """How long this store waits when a call does not say otherwise."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        in_seconds(timeout)
        self._timeout = timeout

    def _deadline(self, timeout: timedelta | None = None) -> Deadline:
        """The time that a call has, from now on."""
        return Deadline.of(self._timeout if timeout is None else timeout)

    @abstractmethod
    def clone(self) -> Store:
        """Another handle on the same keys, with a time-out and, where there is one, a connection of its own."""

    def has_extended_api(self) -> bool:
        """Whether append, multi_get, multi_set and the queues work: always."""
        return True


def encode_key(key: str) -> bytes:
    """A key as it is stored; `decode_key` gives back what any client wrote, be it text or not."""
    if not isinstance(key, str):
        raise WrongKindError(f"a key is text, not {type(key).__name__}")
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise ValueError(f"the key {key!r} cannot be written as UTF-8") from exc


def decode_key(name: bytes) -> str:
    """A stored key as text."""
    return name.decode("utf-8", "surrogateescape")


def encode_value(value: bytes | str) -> bytes:
    """A value as it is stored."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise WrongKindError(f"a value is bytes or text, not {type(value).__name__}")


def encode_keys(keys: Sequence[str]) -> list[bytes]:
    """Several keys as they are stored.  One text is refused: its letters would pass for keys."""
    if isinstance(keys, str):
        raise WrongKindError(f"expected a list of keys, not the text {keys!r}")
    return [encode_key(key) for key in keys]


def encode_pairs(keys: Sequence[str], values: Sequence[bytes | str]) -> list[tuple[bytes, bytes]]:
    """Keys and their values as they are stored."""
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys do not go with {len(values)} values")
    return list(zip(encode_keys(keys), map(encode_value, values), strict=True))


def in_64_bits(number: int) -> int:
    """A number that every store can keep."""
    if not isinstance(number, int):
        raise TypeError(f"expected a whole number, not {number!r}")
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number} does not fit into 64 bits")
    return number


def name_some(keys: Sequence[str], most: int = 8) -> str:
    """Keys for a message: of many, the first few; of a long one, its beginning."""
    named = ", ".join(repr(key if len(key) <= 100 else f"{key[:100]}...") for key in keys[:most])
    return named if len(keys) <= most else f"{named} and {len(keys) - most} more"
