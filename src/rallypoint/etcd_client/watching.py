"""What a stream of watches means: which event goes to whom, where to go on after a break.  Pure; the shell is `watches`.

Each watch knows the revision of the next event that it needs.  After a break it is created anew from there, so nothing
is lost; events before it are dropped, so nothing is repeated.  Two things move it on: events, and etcd's word that
this very watch has seen everything so far.  The answer to a progress request is no such word: many versions of etcd
give it without looking whether all events were sent (etcd's issue 15220).  It proves that the stream lives, no more.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from rallypoint.etcd_client.errors import EtcdAuthError, EtcdError, EtcdRefusedError
from rallypoint.etcd_client.messages import (
    Event,
    EventType,
    KeyValue,
    WatchCancelRequest,
    WatchCreateRequest,
    WatchProgressRequest,
    WatchRequest,
    WatchResponse,
)

PROGRESS = WatchRequest(progress_request=WatchProgressRequest())
_NOBODY = -1


@dataclass(frozen=True, slots=True)
class Change:
    """A key was written or deleted, at a revision of the whole store."""

    key: bytes
    value: bytes  # empty when it was deleted
    revision: int
    is_delete: bool
    kv: KeyValue
    previous: KeyValue | None  # what was there before, if that was asked for and is not compacted


@dataclass(frozen=True, slots=True)
class Gap:
    """Events from a revision on are gone, by compaction: what the watch needs next is not in etcd's history any more."""

    since: int
    compacted: int


class Phase(Enum):
    """Where a watch stands."""

    WAITING = "to be created on the next stream"
    ASKED = "asked for"
    OPEN = "open"
    GAP = "its next event is gone; waits to be told where to go on"
    FULL = "nobody takes its events; waits until somebody does"
    ENDED = "over"


@dataclass(eq=False)
class Watched:
    """One watch: what it looks at, and the revision of the next event that it needs."""

    key: bytes
    range_end: bytes
    next_revision: int
    previous: bool = False
    phase: Phase = Phase.WAITING
    watch_id: int = 0
    refusals: int = 0


@dataclass(frozen=True)
class Deliver:
    """Hand something to whoever watches."""

    watch: Watched
    what: tuple[Change, ...] | Gap | EtcdError


@dataclass
class Effects:
    """What is to be done now."""

    send: list[WatchRequest] = field(default_factory=list)
    deliver: list[Deliver] = field(default_factory=list)
    login: bool = False  # the token is stale: break off, fetch another, open a new stream


class Book:
    """All watches of a stream.  Streams come and go; the book stays."""

    def __init__(self) -> None:
        self.watches: dict[Watched, None] = {}  # in the order in which they came
        self._by_id: dict[int, Watched] = {}
        self._asked: deque[int] = deque()
        # Every creation gets a number of its own, so that a late word about an earlier one is not taken for it.
        self._ids = itertools.count(1)
        self._open = False

    def add(self, watch: Watched) -> Effects:
        """A new watch."""
        self.watches[watch] = None
        return self._create([watch])

    def remove(self, watch: Watched) -> Effects:
        """Nobody is interested any more."""
        effects = self._cancel(watch)
        watch.phase = Phase.ENDED
        self.watches.pop(watch, None)
        return effects

    def go_on(self, watch: Watched, revision: int) -> Effects:
        """After a gap, or when its events were taken: from that revision on."""
        if watch.phase not in (Phase.GAP, Phase.FULL):
            return Effects()
        watch.phase, watch.next_revision = Phase.WAITING, revision
        return self._create([watch])

    def full(self, watch: Watched) -> Effects:
        """Too much was delivered and not taken: no more until `go_on`."""
        effects = self._cancel(watch)
        watch.phase = Phase.FULL
        return effects

    def opened(self) -> Effects:
        """There is a new stream."""
        self._open = True
        return self._create(sorted(self.watches, key=lambda watch: watch.next_revision))

    def broken(self) -> None:
        """The stream is gone."""
        self._open = False
        self._asked.clear()
        for watch in self._by_id.values():
            if watch.phase in (Phase.ASKED, Phase.OPEN):
                watch.phase = Phase.WAITING
        self._by_id.clear()

    def heard(self, response: WatchResponse) -> Effects:
        """etcd said something."""
        watch = self._whose(response)
        if watch is None:
            return Effects()
        if response.canceled:  # first of all: it may say `created` as well
            return self._canceled(watch, response)
        if response.created:
            watch.phase, watch.refusals = Phase.OPEN, 0
        elif response.events:
            return self._events(watch, response.events)
        else:
            watch.next_revision = max(watch.next_revision, response.revision + 1)
        return Effects()

    def end(self, error: EtcdError) -> Effects:
        """No watch can go on."""
        ended = [Deliver(watch, error) for watch in self.watches]
        for watch in list(self.watches):
            self.remove(watch)
        return Effects(deliver=ended)

    def _events(self, watch: Watched, events: tuple[Event, ...]) -> Effects:
        changes = tuple(_change(event, event.kv) for event in events if event.kv is not None)
        fresh = tuple(change for change in changes if change.revision >= watch.next_revision)
        if not fresh:
            return Effects()
        watch.next_revision = fresh[-1].revision + 1
        return Effects(deliver=[Deliver(watch, fresh)])

    def _whose(self, response: WatchResponse) -> Watched | None:
        watch_id = response.watch_id
        if response.created and self._asked:
            # Creations are answered in their order; one that fails may come back without its number.
            asked = self._asked.popleft()
            watch_id = asked if watch_id == _NOBODY else watch_id
        return self._by_id.get(watch_id)

    def _canceled(self, watch: Watched, response: WatchResponse) -> Effects:
        self._by_id.pop(watch.watch_id, None)
        if response.compact_revision:
            watch.phase = Phase.GAP
            return Effects(deliver=[Deliver(watch, Gap(watch.next_revision, response.compact_revision))])
        reason = response.cancel_reason or "no reason given"
        watch.phase = Phase.WAITING
        is_auth = any(word in reason for word in ("permission denied", "auth", "user name"))
        if is_auth and watch.refusals == 0:
            # etcd does not say whether the token is stale or the user not allowed: a fresh token tells.
            watch.refusals += 1
            return Effects(login=True)
        if is_auth or response.created:
            watch.phase = Phase.ENDED
            self.watches.pop(watch, None)
            kind = EtcdAuthError if is_auth else EtcdRefusedError
            return Effects(deliver=[Deliver(watch, kind(f"etcd refuses to watch {watch.key!r}: {reason}"))])
        return self._create([watch])

    def _create(self, watches: list[Watched]) -> Effects:
        effects = Effects()
        for watch in watches:
            if not self._open or watch.phase is not Phase.WAITING:
                continue
            watch.phase, watch.watch_id = Phase.ASKED, next(self._ids)
            self._by_id[watch.watch_id] = watch
            self._asked.append(watch.watch_id)
            create = WatchCreateRequest(
                watch.key,
                watch.range_end,
                watch.next_revision,
                progress_notify=True,
                prev_kv=watch.previous,
                watch_id=watch.watch_id,
            )
            effects.send.append(WatchRequest(create_request=create))
        return effects

    def _cancel(self, watch: Watched) -> Effects:
        if self._by_id.pop(watch.watch_id, None) is None:
            return Effects()
        return Effects([WatchRequest(cancel_request=WatchCancelRequest(watch.watch_id))])


def _change(event: Event, kv: KeyValue) -> Change:
    return Change(kv.key, kv.value, kv.mod_revision, event.type == EventType.DELETE, kv, event.prev_kv)
