"""The store that torch's agent gets: it knows the round that it belongs to, and lets nobody wait for a world that is over.

After a rendezvous, torch's agent exchanges roles through its store and waits for the others' for minutes, blind to
everything else: a node that dies in that moment takes all the others with it.  So when the world breaks, this store
answers for those who are gone.  The agent starts its workers, sees at once that its world is broken, and joins the next
round, as after any loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn, Protocol, TypeVar

from torch import distributed
from torch.distributed import DistNetworkError, DistStoreError, Store

from rallypoint.errors import RendezvousClosedError
from rallypoint.torch_bridge.errors import in_torch_words

T = TypeVar("T")

# Older versions of torch have no name for this.
QueueEmptyError: Any = getattr(distributed, "QueueEmptyError", DistStoreError)

# What torch's agent calls its keys.
ROLE_OF = "torchelastic/role_info/"
RANKS_OF = "torchelastic/assigned_ranks/"
EXIT_BARRIER = "torchelastic/agent/terminal_state"
LEFT_BARRIER = f"{EXIT_BARRIER}/last_member"
# What is put there by those who go on without the ones that have finished.
REGROUPED = b"the others regrouped"

_TIMEOUT = timedelta(seconds=300)


class World(Protocol):
    """The world that a store belongs to, and the way to its keys."""

    rank: int
    size: int
    # What the calls of its store raise where that cannot be reached; all else is none of this module's business.
    failures: tuple[type[Exception], ...]
    # How long to wait, after such a failure, for the news that the world is over.
    verdict_s: float

    def connect(self, timeout: timedelta) -> Any:
        """A store with the round's keys.  When the world is over, this fails, and its calls fail, also those that wait."""

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Whether the world is over; waits for the news for so long."""

    def closed(self) -> str | None:
        """Why the run is closed; None while it is not."""

    def finished(self) -> None:
        """This node's workers are done."""

    def superseded(self) -> None:
        """The others have regrouped: nobody needs this round's store any more."""

    def why(self) -> str:
        """Why the world is over, in words."""


class RoundStore(Store):  # type: ignore[misc]  # torch's types are not looked at
    """The keys of one round, as a store of torch's.

    Whoever passes it to C++ (a `PrefixStore`, a process group) must keep a reference to it, as with every store that is
    written in Python.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._store: Any = None
        self._timeout = _TIMEOUT
        self._role: dict[str, Any] = {}

    # What torch's agent does ------------------------------------------------------------------------------------------

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key; in a world that is over, nobody reads it."""
        if key.startswith(ROLE_OF):
            self._role = json.loads(value)
        self._do(lambda store: store.set(key, value), lambda: None)

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Set several keys."""
        self._do(lambda store: store.multi_set(keys, values), lambda: None)

    def get(self, key: str) -> bytes:
        """Wait for a key and read it."""
        return self._get_all([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for several keys and read them."""
        return self._get_all(keys)

    def add(self, key: str, amount: int) -> int:
        """Add to a number; the exit barrier begins with that."""
        at_exit = key.startswith(EXIT_BARRIER)
        count = self._do(lambda store: int(store.add(key, amount)), self._last_at_exit if at_exit else self._refuse)
        if at_exit:
            # Said now, nobody new is let in while the others are finishing; and who is lost from here on is no reason
            # to wait for this node.
            self._world.finished()
        return count

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there; who has finished does not wait for a verdict on those who have not."""
        patience = self._timeout if timeout is None else timeout
        at_exit = bool(keys) and all(key.startswith(EXIT_BARRIER) for key in keys)
        when_over = self._at_exit if at_exit else self._refuse
        self._do(lambda store: store.wait(list(keys), patience), when_over, in_a_hurry=at_exit)
        if LEFT_BARRIER in keys and self._world.rank == 0 and self._left_by() == REGROUPED:
            self._world.superseded()

    def _left_by(self) -> bytes:
        """What was put there to end the exit barrier; the host of the store, which stays for the others, can ask."""
        return self._do(lambda store: bytes(store.get(LEFT_BARRIER)), lambda: b"", in_a_hurry=True)

    # The rest of the contract -----------------------------------------------------------------------------------------

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return self._do(lambda store: bool(store.check(list(keys))), lambda: False)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Set a key if it is as expected; what is there afterwards."""
        return self._do(lambda store: bytes(store.compare_set(key, expected, desired)), self._refuse)

    def delete_key(self, key: str) -> bool:
        """Delete a key; whether it was there."""
        return self._do(lambda store: bool(store.delete_key(key)), lambda: False)

    def num_keys(self) -> int:
        """How many keys the server has."""
        return self._do(lambda store: int(store.num_keys()), self._refuse)

    def list_keys(self) -> list[str]:
        """The keys of this round."""
        return self._do(lambda store: list(store.list_keys()), self._refuse)

    def append(self, key: str, value: bytes | str) -> None:
        """Append to a value."""
        self._do(lambda store: store.append(key, value), self._refuse)

    def queue_push(self, key: str, value: bytes | str) -> None:
        """Put something into a queue."""
        self._do(lambda store: store.queue_push(key, value), self._refuse)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take something out of a queue."""
        if not block and not self.queue_len(key):
            raise QueueEmptyError(f"the queue {key!r} is empty")
        return self._do(lambda store: bytes(store.queue_pop(key, block)), self._refuse)

    def queue_len(self, key: str) -> int:
        """How much is in a queue."""
        return self._do(lambda store: int(store.queue_len(key)), self._refuse)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until so many have come to the barrier."""
        patience = self._timeout if timeout is None else timeout
        self._do(lambda store: store.barrier(key, world_size, patience), self._refuse)

    def has_extended_api(self) -> bool:
        """Whether there are `append`, `multi_get` and `multi_set`."""
        return True

    @property
    def timeout(self) -> timedelta:
        """How long a wait may take."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long a wait may take."""
        self._timeout = timeout
        if self._store is not None:
            self._store.set_timeout(timeout)

    def clone(self) -> RoundStore:
        """The same keys over a connection of its own."""
        other = RoundStore(self._world)
        other.set_timeout(self._timeout)
        return other

    # The names by which torch's C++ code calls these two.
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815

    # Inside -----------------------------------------------------------------------------------------------------------

    def _get_all(self, keys: Sequence[str]) -> list[bytes]:
        def ask(store: Any) -> list[bytes]:
            # Some of torch's servers hang up on who asks for a key that is not there.
            store.wait(list(keys), self._timeout)
            return list(store.multi_get(list(keys)))

        return self._do(ask, lambda: [self._made_up(key) for key in keys])

    def _do(self, ask: Callable[[Any], T], when_over: Callable[[], T], *, in_a_hurry: bool = False) -> T:
        """Ask the store, unless the world is over: then nobody is there to answer but us."""
        if not self._world.is_over():
            try:
                return ask(self._connected())
            except TimeoutError as exc:
                if not self._world.is_over():
                    raise DistStoreError(str(exc)) from exc
            except self._world.failures as exc:
                if not self._world.is_over(0.0 if in_a_hurry else self._world.verdict_s):
                    raise DistNetworkError(f"{exc} (the world still stands)") from exc
        return when_over()

    def _connected(self) -> Any:
        """The connection, made on first use."""
        if self._store is None:
            self._store = self._world.connect(self._timeout)
        return self._store

    def _made_up(self, key: str) -> bytes:
        """What a peer that is gone would have said, if its workers were as many as ours."""
        if self._world.closed() is not None:
            self._refuse()
        workers = self._role.get("local_world_size", 1)
        if key.startswith(ROLE_OF):
            rank = int(key.removeprefix(ROLE_OF))
            return json.dumps({**self._role, "rank": rank, "local_world_size": workers}).encode()
        if key.startswith(RANKS_OF):
            first, all_workers = int(key.removeprefix(RANKS_OF)) * workers, self._world.size * workers
            return json.dumps([first, all_workers, first, all_workers]).encode()
        return self._refuse()

    def _at_exit(self) -> None:
        """Nobody else will come to the exit barrier: torch's agent reports the error and ends well."""
        if self._world.closed() is None:
            self._refuse()

    def _last_at_exit(self) -> int:
        self._at_exit()
        return self._world.size

    def _refuse(self) -> NoReturn:
        closed = self._world.closed()
        if closed is not None:
            raise in_torch_words(RendezvousClosedError(closed))
        raise DistStoreError(f"this round's store is of no use any more: {self._world.why()}")
