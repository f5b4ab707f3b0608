"""What a stream of watches means: which event goes to whom, where to go on after a break.  Pure; the shell is `watches`.

Each watch knows the revision of the next event that it needs.  After a break it is created anew from there, so nothing
is lost; events before it are dropped, so nothing is repeated.  Two things move it on: events, and etcd's word that
this very watch has seen everything so far.  The answer to a progress request is no such word: many versions of etcd
give it without looking whether all events were sent (etcd's issue 15220).  It proves that the stream lives, no more.

Watches that look at the same share what etcd sends, unless one of them needs an event that has come already.

A watch that needs an event of the past is not served at once: etcd looks after those ten times a second.  So one may be asked
for ahead, without a revision, and learns from the answer with which revision it begins.

etcd calls a watch by the number that it was asked to use, and answers in the order of asking.  Its proxy (`etcd
grpc-proxy`, etcd's issue 12819) does neither, and takes no notice of progress requests.  So the first watch of a stream is
asked for alone: if its number comes back, the others are asked for at once, else one after the other; and a sign of life
is asked for by one more watch, which ends as soon as it has begun.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from rallypoint.etcd_client.errors import EtcdAuthError, EtcdError, EtcdMessageError, EtcdRefusedError
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

_What = tuple[bytes, bytes, bool]
"""What is looked at: a key, the end of a range, and whether what was there before is wanted."""

PROGRESS = WatchRequest(progress_request=WatchProgressRequest())
UNKNOWN = -1
_NOBODY = -1
_SIGN_OF_LIFE = b"\0a sign of life"  # a key that nobody writes
_FIRST_NUMBER = 1 << 16  # whoever does not take our numbers counts from 0 or 1


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
    """One watch: what it looks at, and the revision of the next event that it needs.

    0 is for one that begins when etcd has created it, with whatever comes next.  `since` is the first revision that it has
    all events from: 0 until it is known, and `UNKNOWN` where it never will be.
    """

    key: bytes
    range_end: bytes
    next_revision: int
    previous: bool = False
    within: tuple[bytes, bytes] | None = None  # the range that etcd is asked for, where that is more than the key
    phase: Phase = Phase.WAITING
    feed: _Feed | None = field(default=None, repr=False)
    refusals: int = 0
    since: int = 0
    is_awaited: bool = False  # whether somebody asked for `since` already

    def __post_init__(self) -> None:
        self.since = self.next_revision

    def begins(self, feed: _Feed) -> bool:
        """From here on it has all events; whether somebody waits to hear that."""
        if self.since or not feed.since:
            return False
        self.next_revision, self.since = max(self.next_revision, feed.next_revision), feed.since
        return self.is_awaited


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


@dataclass(eq=False)
class _Feed:
    """A watch as etcd knows it, for all of ours that look at the same: each event is sent once, however many they are."""

    number: int  # what etcd is asked to call it
    what: _What
    next_revision: int  # of the next event that comes on it; 0 until it is known
    watches: dict[Watched, None] = field(default_factory=dict)
    by_key: dict[bytes, dict[Watched, None]] = field(default_factory=dict)  # those that look at one key of the range
    watch_id: int | None = None  # what etcd calls it, once it has said so
    is_prompt: bool = False  # whether it is known to be served at once, and not as one that needs an event of the past

    def __post_init__(self) -> None:
        self.is_prompt = not self.next_revision

    @property
    def since(self) -> int:
        """The first revision that all events come from, for one who looks at it now."""
        return self.next_revision or (UNKNOWN if self.watch_id is not None else 0)

    def serves(self, watch: Watched) -> bool:
        """Whether it brings all that the watch needs."""
        return 0 < self.next_revision <= watch.next_revision if watch.next_revision else self.is_prompt

    def add(self, watch: Watched) -> None:
        """One more looks at it."""
        self.watches[watch] = None
        if watch.within is not None:
            self.by_key.setdefault(watch.key, {})[watch] = None

    def drop(self, watch: Watched) -> None:
        """One less."""
        del self.watches[watch]
        if watch.within is not None:
            del self.by_key[watch.key][watch]
            if not self.by_key[watch.key]:
                del self.by_key[watch.key]
        self.bring_up(watch)

    def bring_up(self, watch: Watched) -> None:
        """Who looks at one key has seen everything that came, though it may have been of other keys."""
        watch.next_revision = max(watch.next_revision, self.next_revision)


class Book:
    """All watches of a stream.  Streams come and go; the book stays."""

    def __init__(self) -> None:
        self.watches: dict[Watched, None] = {}  # in the order in which they came
        self._feeds: dict[int, _Feed] = {}  # those that are open, by what etcd calls them
        self._latest: dict[_What, _Feed] = {}
        self._asked: deque[_Feed] = deque()  # in the order of asking
        self._unasked: deque[_Feed] = deque()  # those whose turn is yet to come
        self._takes_numbers: bool | None = None  # not known yet
        # Every creation gets a number of its own, so that a late word about an earlier one is not taken for it.
        self._numbers = itertools.count(_FIRST_NUMBER)
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
        self._open, self._takes_numbers = False, None
        for watch in self.watches:
            if watch.feed is not None:
                watch.feed.bring_up(watch)
                watch.feed, watch.phase = None, Phase.WAITING
        for known in (self._feeds, self._latest, self._asked, self._unasked):
            known.clear()

    def sign_of_life(self) -> Effects:
        """Ask for something that is answered at once, however quiet it is."""
        if self._takes_numbers:
            return Effects([PROGRESS])
        if self._asked:  # an answer is owed already
            return Effects()
        # Nobody looks at it: it ends when it begins.
        self._unasked.append(_Feed(next(self._numbers), (_SIGN_OF_LIFE, b"", False), 0))
        return Effects(self._ask())

    def heard(self, response: WatchResponse) -> Effects:
        """etcd said something."""
        feed = self._answered(response) if response.created else self._feeds.get(response.watch_id)
        effects = Effects()
        if feed is None:
            return effects
        if response.canceled:  # first of all: it may say `created` as well
            effects = self._canceled(feed, response)
        elif response.created:
            feed.watch_id = response.watch_id
            self._feeds[feed.watch_id] = feed
            if self._takes_numbers and response.revision and not feed.next_revision:
                feed.next_revision = response.revision + 1  # etcd's own word; nobody knows what its proxy means by it
            for watch in feed.watches:
                watch.phase, watch.refusals = Phase.OPEN, 0
            effects.deliver += _begun(feed, feed.watches)
            if not feed.watches:  # they have gone meanwhile
                effects.send += self._forget(feed)
        elif response.events:
            effects, feed.is_prompt = _events(feed, response.events), True
        else:
            feed.is_prompt = True
            feed.next_revision = max(feed.next_revision, response.revision + 1)
            for watch in feed.watches:
                feed.bring_up(watch)
        effects.send += self._ask()
        return effects

    def end(self, error: EtcdError) -> Effects:
        """No watch can go on."""
        ended = [Deliver(watch, error) for watch in self.watches]
        return Effects([request for watch in list(self.watches) for request in self.remove(watch).send], ended)

    def _answered(self, response: WatchResponse) -> _Feed | None:
        """Whose turn it was.  What is refused may come back without a number; then nothing is learned about numbers."""
        if not self._asked:
            return None
        feed = self._asked.popleft()
        if response.watch_id != _NOBODY:
            is_its_own = response.watch_id == feed.number
            if self._takes_numbers is None:
                self._takes_numbers = is_its_own
            if self._takes_numbers and not is_its_own:
                raise EtcdMessageError(f"watch {feed.number} was asked for, and {response.watch_id} was answered")
        return feed

    def _canceled(self, feed: _Feed, response: WatchResponse) -> Effects:
        ending = self._forget(feed)
        # The proxy keeps what came to an end in use for others who look at the same, who would hear nothing, until the
        # last one has said that it wants no more.
        effects, again = Effects([] if self._takes_numbers else ending), list[Watched]()
        reason = response.cancel_reason or "no reason given"
        is_auth = any(word in reason for word in ("permission denied", "auth", "user name"))
        for watch in feed.watches:
            watch.feed, watch.phase = None, Phase.WAITING
            feed.bring_up(watch)
            if watch.next_revision < response.compact_revision:
                watch.phase = Phase.GAP
                effects.deliver.append(Deliver(watch, Gap(watch.next_revision, response.compact_revision)))
            elif response.compact_revision:
                again.append(watch)
            elif is_auth and watch.refusals == 0:
                # etcd does not say whether the token is stale or the user not allowed: a fresh token tells.
                watch.refusals += 1
                effects.login = True
            elif is_auth or response.created:
                watch.phase = Phase.ENDED
                self.watches.pop(watch, None)
                kind = EtcdAuthError if is_auth else EtcdRefusedError
                refusal = kind(f"etcd refuses to watch {watch.key!r}: {reason}")
                effects.deliver.append(Deliver(watch, refusal))
            else:
                again.append(watch)
        created = self._create(again)
        effects.send += created.send
        effects.deliver += created.deliver
        return effects

    def _create(self, watches: list[Watched]) -> Effects:
        effects = Effects()
        for watch in watches:
            if not self._open or watch.phase is not Phase.WAITING:
                continue
            what = (*(watch.within or (watch.key, watch.range_end)), watch.previous)
            feed = self._latest.get(what)
            if feed is None or not feed.serves(watch):
                feed = self._latest[what] = _Feed(next(self._numbers), what, watch.next_revision)
                self._unasked.append(feed)
            feed.add(watch)
            watch.feed, watch.phase = feed, Phase.ASKED if feed.watch_id is None else Phase.OPEN
            effects.deliver += _begun(feed, [watch])
        effects.send += self._ask()
        return effects

    def _ask(self) -> list[WatchRequest]:
        """Ask for what may be asked for now."""
        requests = []
        while self._open and self._unasked and (self._takes_numbers or not self._asked):
            feed = self._unasked.popleft()
            self._asked.append(feed)
            requests.append(WatchRequest(create_request=_creation(feed)))
        return requests

    def _cancel(self, watch: Watched) -> Effects:
        """The last one to go ends the feed."""
        feed, watch.feed = watch.feed, None
        if feed is None:
            return Effects()
        feed.drop(watch)
        return Effects([] if feed.watches else self._forget(feed))

    def _forget(self, feed: _Feed) -> list[WatchRequest]:
        """No more of it; one that was asked for and is not answered yet is ended when it is."""
        if self._latest.get(feed.what) is feed:
            del self._latest[feed.what]
        if feed in self._unasked:
            self._unasked.remove(feed)
        if feed.watch_id is None:
            return []
        del self._feeds[feed.watch_id]
        return [WatchRequest(cancel_request=WatchCancelRequest(feed.watch_id))]


def _begun(feed: _Feed, watches: Iterable[Watched]) -> list[Deliver]:
    """Who waits to know with what it begins is woken: there is nothing to take."""
    return [Deliver(watch, ()) for watch in watches if watch.begins(feed)]


def _creation(feed: _Feed) -> WatchCreateRequest:
    key, range_end, previous = feed.what
    return WatchCreateRequest(
        key, range_end, feed.next_revision, progress_notify=True, prev_kv=previous, watch_id=feed.number
    )


def _events(feed: _Feed, events: tuple[Event, ...]) -> Effects:
    changes = tuple(_change(event, event.kv) for event in events if event.kv is not None)
    effects = Effects()
    if not changes:
        return effects
    for watch in feed.watches:
        if watch.within is None:
            _deliver(effects, watch, changes)
    if feed.by_key:
        by_key: dict[bytes, list[Change]] = {}
        for change in changes:
            by_key.setdefault(change.key, []).append(change)
        for key, its in by_key.items():
            for watch in feed.by_key.get(key, ()):
                _deliver(effects, watch, tuple(its))
    feed.next_revision = max(feed.next_revision, changes[-1].revision + 1)
    return effects


def _deliver(effects: Effects, watch: Watched, changes: tuple[Change, ...]) -> None:
    """Those that are new to it."""
    if changes[0].revision < watch.next_revision:
        changes = tuple(change for change in changes if change.revision >= watch.next_revision)
    if changes:
        watch.next_revision = changes[-1].revision + 1
        effects.deliver.append(Deliver(watch, changes))


def _change(event: Event, kv: KeyValue) -> Change:
    return Change(kv.key, kv.value, kv.mod_revision, event.type == EventType.DELETE, kv, event.prev_kv)
