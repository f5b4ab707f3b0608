"""The state of all watches of a stream: which event belongs to which, and where each goes on after a break.  Pure.

Each watch knows the revision of the next event that it needs.  After a break it is created anew from there, so nothing is
lost; events before it are dropped, so nothing is repeated.  Two things move it on: events, and etcd's notice that this very
watch has seen everything so far.

etcd answers creations in the order of asking; its proxy (`etcd grpc-proxy`) does not.  Both number the watches themselves.
So one watch is asked for at a time, and the answer tells its number.  A sign of life is asked for in the same way, by one
more watch, which is canceled as soon as it is created: the proxy ignores progress requests, and newer versions of etcd
answer them only after a while.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from rallypoint.etcd_client.errors import EtcdAuthError, EtcdError, EtcdRefusedError
from rallypoint.etcd_client.messages import (
    Event,
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


@dataclass
class WatchEffects:
    """What is to be done now."""

    send: list[WatchRequest] = field(default_factory=list)
    deliver: list[tuple[WatchedRange, tuple[KeyChange, ...] | Gap | EtcdError]] = field(default_factory=list)
    login: bool = False  # the token is stale: hang up, fetch another, open a new stream


class WatchState:
    """All watches of a cluster.  Streams come and go; this stays."""

    def __init__(self) -> None:
        self.watches: dict[WatchedRange, None] = {}  # in the order in which they came
        self._by_id: dict[int, WatchedRange] = {}
        self._asked: WatchedRange | None = None  # the one whose creation etcd has not answered yet
        self._is_open = False

    def add(self, watch: WatchedRange) -> WatchEffects:
        """A new watch."""
        self.watches[watch] = None
        return WatchEffects(self._ask())

    def remove(self, watch: WatchedRange) -> WatchEffects:
        """Its user has closed it.  One that etcd has not answered yet is canceled when it does."""
        self.watches.pop(watch, None)
        watch.phase = WatchPhase.ENDED
        return WatchEffects(self._cancel(watch))

    def go_on(self, watch: WatchedRange, revision: int) -> WatchEffects:
        """After a gap: from that revision on."""
        if watch.phase is WatchPhase.GAP:
            watch.phase, watch.next_revision = WatchPhase.WAITING, revision
        return WatchEffects(self._ask())

    def opened(self) -> WatchEffects:
        """There is a new stream."""
        self._is_open = True
        return WatchEffects(self._ask())

    def broken(self) -> None:
        """The stream is gone."""
        self._is_open, self._asked = False, None
        self._by_id.clear()
        for watch in self.watches:
            watch.watch_id = None
            if watch.phase in (WatchPhase.ASKED, WatchPhase.OPEN):
                watch.phase = WatchPhase.WAITING

    def sign_of_life(self) -> WatchEffects:
        """Ask for something that is answered at once, however quiet it is; nothing if an answer is owed already."""
        if self._asked is not None:
            return WatchEffects()
        self._asked = WatchedRange(_SIGN_OF_LIFE, b"", 0)
        return WatchEffects([_creation(self._asked)])

    def heard(self, response: WatchResponse) -> WatchEffects:
        """etcd has sent something."""
        if response.created:
            watch, self._asked = self._asked, None
        else:
            watch = self._by_id.get(response.watch_id)
        effects = WatchEffects()
        if watch is None:
            return effects
        if response.canceled:  # first of all: it may be `created` as well
            self._canceled(watch, response, effects)
        elif response.created:
            self._by_id[response.watch_id], watch.watch_id = watch, response.watch_id
            if watch in self.watches:
                watch.phase, watch.refusals = WatchPhase.OPEN, 0
            else:  # closed meanwhile, or a sign of life
                effects.send += self._cancel(watch)
        elif response.events:
            _deliver_events(watch, response.events, effects)
        else:
            watch.next_revision = max(watch.next_revision, response.revision + 1)
        effects.send += self._ask()
        return effects

    def end(self, error: EtcdError) -> WatchEffects:
        """No watch can go on."""
        effects = WatchEffects()
        for watch in list(self.watches):
            effects.send += self.remove(watch).send
            effects.deliver.append((watch, error))
        return effects

    def _canceled(self, watch: WatchedRange, response: WatchResponse, effects: WatchEffects) -> None:
        # etcd has ended it.  Its proxy keeps the number in use until the client cancels it, too; etcd does not mind.
        effects.send += self._cancel(watch)
        if watch not in self.watches:
            return
        watch.phase = WatchPhase.WAITING
        reason = response.cancel_reason or "no reason given"
        is_auth = any(word in reason for word in ("permission denied", "auth", "user name"))
        if watch.next_revision < response.compact_revision:
            watch.phase = WatchPhase.GAP
            effects.deliver.append((watch, Gap(watch.next_revision)))
        elif is_auth and watch.refusals == 0:
            # etcd does not say whether the token is stale or the user is not allowed: a fresh token tells.
            watch.refusals += 1
            effects.login = True
        elif is_auth or (response.created and not response.compact_revision):
            self.remove(watch)
            error = EtcdAuthError if is_auth else EtcdRefusedError
            effects.deliver.append((watch, error(f"etcd refuses to watch {watch.key!r}: {reason}")))

    def _ask(self) -> list[WatchRequest]:
        """Ask for the next watch that waits, if none is being asked for."""
        if not self._is_open or self._asked is not None:
            return []
        self._asked = next((watch for watch in self.watches if watch.phase is WatchPhase.WAITING), None)
        if self._asked is None:
            return []
        self._asked.phase = WatchPhase.ASKED
        return [_creation(self._asked)]

    def _cancel(self, watch: WatchedRange) -> list[WatchRequest]:
        watch_id, watch.watch_id = watch.watch_id, None
        if watch_id is None:
            return []
        del self._by_id[watch_id]
        return [WatchRequest(cancel_request=WatchCancelRequest(watch_id))]


def _creation(watch: WatchedRange) -> WatchRequest:
    create = WatchCreateRequest(watch.key, watch.range_end, watch.next_revision, progress_notify=True)
    return WatchRequest(create_request=create)


def _deliver_events(watch: WatchedRange, events: tuple[Event, ...], effects: WatchEffects) -> None:
    changes = tuple(
        KeyChange(event.kv.key, event.kv.value, event.kv.mod_revision, event.type == _DELETE, event.kv)
        for event in events
        if event.kv is not None and event.kv.mod_revision >= watch.next_revision
    )
    if changes:
        watch.next_revision = changes[-1].revision + 1
        effects.deliver.append((watch, changes))
