"""The store that torch's agent gets: it knows the round that it belongs to, and lets nobody wait for a world that is over.

After a rendezvous, torch's agent exchanges roles through its store and waits for the others' for minutes, blind to
everything else: a node that dies in that moment takes all the others with it.  So when the world breaks, this store
answers for the nodes that are gone.  The agent starts its workers, sees at once that its world is broken, and joins the next
round, as after any loss.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from rallypoint.client.member import Member
from rallypoint.client.round_store import VERDICT_S
from rallypoint.client.view import State
from rallypoint.errors import RendezvousClosedError
from rallypoint.messages.notices import Placed
from rallypoint.stores.errors import StoreError
from rallypoint.torch_bridge.agent_types import DistNetworkError, DistStoreError
from rallypoint.torch_bridge.errors import in_torch_words
from rallypoint.torch_bridge.etcd_store import PythonStore, QueueEmptyError

T = TypeVar("T")

# What torch's agent calls its keys.
ROLE_OF = "torchelastic/role_info/"
RANKS_OF = "torchelastic/assigned_ranks/"
EXIT_BARRIER = "torchelastic/agent/terminal_state"
LEFT_BARRIER = f"{EXIT_BARRIER}/last_member"
# The value that nodes put there when they go on without the ones that have finished.
REGROUPED = b"the others regrouped"

HURRY = timedelta(seconds=1)
"""How long a node whose world has gone on without it may take to leave."""

_TIMEOUT = timedelta(seconds=300)
_WHEN_OVER = {"set": None, "multi_set": None, "check": False, "delete_key": False}
"""What a call returns once the world is over; every other call is refused."""


class AgentRound:
    """A place in a sealed world, and the way to its keys."""

    def __init__(self, member: Member, placed: Placed) -> None:
        self._member = member
        self._store = member.store(placed)
        self.rank, self.size = placed.rank, placed.size
        self.host, self.port = self._store.host, self._store.port
        self.connect, self.is_over = self._store.open, self._store.is_over
        self.finished = member.finish
        self.is_superseded = False
        """Whether the others have regrouped, so that nobody needs this round's store any more."""

    def closed(self) -> str | None:
        """Why the run is closed; None while it is not."""
        view = self._member.view
        if view.state is not State.CLOSED:
            return None
        return f"run {self._member.run_id!r} is closed as {view.ending.value}: {view.why}"

    def why(self) -> str:
        """Why the world is over."""
        return self.closed() or self._member.view.why or "this node has left it"

    def release(self) -> None:
        """Tell the nodes in the exit barrier not to wait, if the store's host is still there; does not wait."""

        def set_key() -> None:
            with suppress(TimeoutError, StoreError):
                store, close = self._store.connect(HURRY)
                store.set(LEFT_BARRIER, REGROUPED)
                store.check([LEFT_BARRIER])  # an answer: it was heard
                close()

        threading.Thread(target=set_key, name="rallypoint-release", daemon=True).start()


class AgentStore(PythonStore):
    """The keys of one round, as a store of torch's."""

    def __init__(self, world: AgentRound) -> None:
        super().__init__()
        self._world = world
        self._store: Any = None
        self._timeout = _TIMEOUT
        self._role: dict[str, Any] = {}

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key; in a world that is over, nobody reads it."""
        if key.startswith(ROLE_OF):
            self._role = json.loads(value)
        super().set(key, value)

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        def ask(store: Any) -> list[bytes]:
            # Some of torch's servers close the connection when they are asked for a key that is not there.
            store.wait(list(keys), self._timeout)
            return list(store.multi_get(list(keys)))

        return self._do(ask, lambda: [self._made_up(key) for key in keys])

    def add(self, key: str, num: int) -> int:
        """Add to a number; the exit barrier begins with that."""
        if not key.startswith(EXIT_BARRIER):
            return super().add(key, num)
        count = self._do(lambda store: int(store.add(key, num)), self._last_at_exit)
        # Told now, the server lets no new node in while the others are finishing; and a node that is lost from here on is no
        # reason to wait for this one.
        self._world.finished()
        return count

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there; a node that has finished does not wait for a verdict on the others."""
        at_exit = bool(keys) and all(key.startswith(EXIT_BARRIER) for key in keys)
        when_over = self._at_exit if at_exit else self._refuse
        self._do(lambda store: store.wait(list(keys), timeout), when_over, in_a_hurry=at_exit)
        if LEFT_BARRIER in keys and self._world.rank == 0:
            # What ended the exit barrier; the host of the store, which stays for the others, can ask.
            left_by = self._do(lambda store: bytes(store.get(LEFT_BARRIER)), lambda: b"", in_a_hurry=True)
            self._world.is_superseded = self._world.is_superseded or left_by == REGROUPED

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        if not block and not self.queue_len(key):
            raise QueueEmptyError(f"the queue {key!r} is empty")
        return super().queue_pop(key, block)

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        if self._store is not None:
            self._store.set_timeout(timeout)

    def clone(self) -> AgentStore:
        """The same keys over a connection of its own."""
        other = AgentStore(self._world)
        other.set_timeout(self._timeout)
        return other

    def _call(self, name: str, *args: Any) -> Any:
        return self._do(
            lambda store: getattr(store, name)(*args),
            lambda: _WHEN_OVER[name] if name in _WHEN_OVER else self._refuse(),
        )

    def _do(self, ask: Callable[[Any], T], when_over: Callable[[], T], *, in_a_hurry: bool = False) -> T:
        """Ask the store, unless the world is over: then nobody is there to answer but us."""
        if not self._world.is_over():
            try:
                if self._store is None:
                    self._store = self._world.connect(self._timeout)
                return ask(self._store)
            except TimeoutError as exc:
                if not self._world.is_over():
                    raise DistStoreError(str(exc)) from exc
            except StoreError as exc:
                if not self._world.is_over(0.0 if in_a_hurry else VERDICT_S):
                    raise DistNetworkError(f"{exc} (the world still stands)") from exc
        return when_over()

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
