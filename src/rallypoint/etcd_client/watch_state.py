"""The state of all watches of a stream: which event belongs to which, and where each goes on after a break.  No network.

Each watch knows the revision of the next event that it needs.  After a break it is created anew from there, so nothing is
lost; events before it are dropped, so nothing is repeated.  Two things move it on: events, and etcd's notice that this very
watch has seen everything so far.

etcd answers creations in the order of asking; its proxy (`etcd grpc-proxy`) does not.  Both number the watches themselves.
So one watch is asked for at a time, and the answer tells its number.  A sign of life is asked for in the same way, by one
more watch, which is canceled as soon as it is created: the proxy ignores progress requests, and newer versions of etcd
answer them only after a while.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from enum import Enum

from rallypoint.etcd_client.errors import EtcdAuthError, EtcdError, EtcdRefusedError
from rallypoint.etcd_client.messages import (
    KeyValue,
    WatchCancelRequest,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)

_DELETE = 1
_SIGN_OF_LIFE = b"\0a sign of life"  # a key that nobody writes


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key was written or deleted, at a revision of the whole store."""

    key: bytes
    value: bytes  # empty when it was deleted
    revision: int
    is_delete: bool
    kv: KeyValue


@dataclass(frozen=True, slots=True)
class Gap:
    """Events from a revision on are gone: what the watch needs next was compacted."""

    since: int


WatchItem = KeyChange | Gap | EtcdError


class WatchPhase(Enum):
    """Where a watch stands."""

    WAITING = "to be created when the stream can take it"
    ASKED = "asked for"
    OPEN = "open"
    GAP = "its next event is gone; waits to be told where to go on"
    ENDED = "over"


@dataclass(eq=False)
class WatchedRange:
    """One watch: what it looks at, and the revision of the next event that it needs."""

    key: bytes
    range_end: bytes
    next_revision: int
    phase: WatchPhase = WatchPhase.WAITING
    watch_id: int | None = None  # etcd's number for it while it is open
    refusals: int = 0
    items: queue.SimpleQueue[WatchItem] = field(default_factory=queue.SimpleQueue)  # what its user has yet to take


class WatchState:
    """All watches of a cluster.  Streams come and go; this stays."""

    def __init__(self) -> None:
        self.watches: dict[WatchedRange, None] = {}  # in the order in which they came
        self.needs_login = False  # the token is stale: hang up, fetch another, open a new stream
        self._requests: list[WatchRequest] = []
        self._by_id: dict[int, WatchedRange] = {}
        self._asked: WatchedRange | None = None  # the one whose creation etcd has not answered yet
        self._is_open = False

    def take_requests(self) -> list[WatchRequest]:
        """What is to be sent now; the next watch that waits is asked for, if none is being asked for."""
        if self._is_open and self._asked is None:
            waiting = next((watch for watch in self.watches if watch.phase is WatchPhase.WAITING), None)
            if waiting is not None:
                waiting.phase = WatchPhase.ASKED
                self._create(waiting)
        requests, self._requests = self._requests, []
        return requests

    def add(self, watch: WatchedRange) -> None:
        self.watches[watch] = None

    def remove(self, watch: WatchedRange) -> None:
        """Its user has closed it.  One that etcd has not answered yet is canceled when it does."""
        self.watches.pop(watch, None)
        watch.phase = WatchPhase.ENDED
        self._cancel(watch)

    def go_on(self, watch: WatchedRange, revision: int) -> None:
        """After a gap: from that revision on."""
        if watch.phase is WatchPhase.GAP:
            watch.phase, watch.next_revision = WatchPhase.WAITING, revision

    def opened(self) -> None:
        """There is a new stream."""
        self._is_open = True

    def broken(self) -> None:
        """The stream is gone."""
        self._is_open, self._asked, self.needs_login = False, None, False
        self._requests.clear()
        self._by_id.clear()
        for watch in self.watches:
            watch.watch_id = None
            if watch.phase in (WatchPhase.ASKED, WatchPhase.OPEN):
                watch.phase = WatchPhase.WAITING

    def sign_of_life(self) -> None:
        """Ask for something that is answered at once, however quiet it is; nothing if an answer is owed already."""
        if self._asked is None:
            self._create(WatchedRange(_SIGN_OF_LIFE, b"", 0))

    def heard(self, response: WatchResponse) -> None:
        """etcd has sent something."""
        if response.created:
            watch, self._asked = self._asked, None
        else:
            watch = self._by_id.get(response.watch_id)
        if watch is None:
            return
        if response.canceled:  # first of all: it may be `created` as well
            self._canceled(watch, response)
        elif response.created:
            self._by_id[response.watch_id], watch.watch_id = watch, response.watch_id
            if watch in self.watches:
                watch.phase, watch.refusals = WatchPhase.OPEN, 0
            else:  # closed meanwhile, or a sign of life
                self._cancel(watch)
        elif response.events:
            first = watch.next_revision  # several events may have one revision
            for kv, kind in [(event.kv, event.type) for event in response.events]:
                if kv is not None and kv.mod_revision >= first:
                    watch.next_revision = kv.mod_revision + 1
                    watch.items.put(KeyChange(kv.key, kv.value, kv.mod_revision, kind == _DELETE, kv))
        else:
            watch.next_revision = max(watch.next_revision, response.revision + 1)

    def end(self, error: EtcdError, *watches: WatchedRange) -> None:
        """These watches cannot go on; without any, all."""
        for watch in watches or list(self.watches):
            self.remove(watch)
            watch.items.put(error)

    def _canceled(self, watch: WatchedRange, response: WatchResponse) -> None:
        # etcd has ended it.  Its proxy keeps the number in use until the client cancels it, too; etcd does not mind.
        self._cancel(watch)
        if watch not in self.watches:
            return
        watch.phase = WatchPhase.WAITING
        reason = response.cancel_reason or "no reason given"
        is_auth = any(word in reason for word in ("permission denied", "auth", "user name"))
        if watch.next_revision < response.compact_revision:
            watch.phase = WatchPhase.GAP
            watch.items.put(Gap(watch.next_revision))
        elif is_auth and watch.refusals == 0:
            # etcd does not say whether the token is stale or the user is not allowed: a fresh token tells.
            watch.refusals += 1
            self.needs_login = True
        elif is_auth or (response.created and not response.compact_revision):
            error = EtcdAuthError if is_auth else EtcdRefusedError
            self.end(error(f"etcd refuses to watch {watch.key!r}: {reason}"), watch)

    def _create(self, watch: WatchedRange) -> None:
        self._asked = watch
        create = WatchCreateRequest(watch.key, watch.range_end, watch.next_revision, progress_notify=True)
        self._requests.append(WatchRequest(create_request=create))

    def _cancel(self, watch: WatchedRange) -> None:
        watch_id, watch.watch_id = watch.watch_id, None
        if watch_id is not None:
            del self._by_id[watch_id]
            self._requests.append(WatchRequest(cancel_request=WatchCancelRequest(watch_id)))
