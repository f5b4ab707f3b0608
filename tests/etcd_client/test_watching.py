"""The book of watches, played against a model of etcd's stream by random schedules: nothing lost, repeated or reordered."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rallypoint.etcd_client.errors import EtcdAuthError, EtcdClosedError, EtcdMessageError, EtcdRefusedError
from rallypoint.etcd_client.messages import Event, KeyValue, ResponseHeader, WatchRequest, WatchResponse
from rallypoint.etcd_client.watching import PROGRESS, Book, Change, Effects, Gap, Phase, Watched


def events(*revisions: int) -> tuple[Event, ...]:
    return tuple(Event(kv=KeyValue(key_of(revision), 1, revision, 1, str(revision).encode())) for revision in revisions)


def key_of(revision: int) -> bytes:
    """Three keys take turns."""
    return b"k%d" % (revision % 3)


class Play(RuleBasedStateMachine):
    """A server with a history and watchers that lag behind; streams that break anywhere; compactions; slow users."""

    takes_numbers = True

    def __init__(self) -> None:
        super().__init__()
        self.revision, self.compacted = 1, 0
        self.book = Book()
        self.watched: list[Watched] = []
        self.since: dict[Watched, int] = {}
        self.seen: dict[Watched, list[int]] = {}
        self.excused: dict[Watched, list[range]] = {}
        # The server's side of the present stream: watch ids and the next revision to send; what is under way to us.
        self.watchers: dict[int, int] = {}
        self.wire: list[WatchResponse] = []
        self.open = False
        self.count = 0

    @initialize()
    def begin(self) -> None:
        for _ in range(2):
            self.another_begins(0)

    @rule(back=st.integers(0, 6), key=st.sampled_from((None, b"k0", b"k1")))
    @precondition(lambda self: len(self.watched) < 6)
    def another_begins(self, back: int, key: bytes | None = None) -> None:
        """It looks at the same range or at one key of it, from now on or from a while ago."""
        begin = max(self.revision + 1 - back, self.compacted, 2)
        watch = Watched(b"k", b"l", begin) if key is None else Watched(key, b"", begin, within=(b"k", b"l"))
        self.watched.append(watch)
        self.since[watch], self.seen[watch], self.excused[watch] = watch.next_revision, [], []
        self.do(self.book.add(watch))

    @rule(key=st.sampled_from((None, b"k0", b"k1")))
    @precondition(lambda self: self.takes_numbers and len(self.watched) < 6)
    def another_begins_ahead(self, key: bytes | None) -> None:
        """It begins when the server says so, and has everything from there on."""
        watch = Watched(b"k", b"l", 0) if key is None else Watched(key, b"", 0, within=(b"k", b"l"))
        self.watched.append(watch)
        self.seen[watch], self.excused[watch] = [], []
        self.do(self.book.add(watch))

    @rule(data=st.data())
    @precondition(lambda self: len(self.watched) > 2)
    def one_ends(self, data: st.DataObject) -> None:
        watch = self.watched.pop(data.draw(st.integers(0, len(self.watched) - 1)))
        del self.seen[watch]
        self.do(self.book.remove(watch))

    def do(self, effects: Effects) -> None:
        for request in effects.send:
            self.serve(request)
        for delivery in effects.deliver:
            what = delivery.what
            if isinstance(what, tuple):
                self.seen[delivery.watch] += [change.revision for change in what]
            elif isinstance(what, Gap):
                assert what.since < what.compacted
            else:
                raise AssertionError(what)

    def serve(self, request: WatchRequest) -> None:
        assert self.open
        if request.create_request is not None:
            create = request.create_request
            number = create.watch_id if self.takes_numbers else self.count
            self.count += 1
            assert number not in self.watchers
            self.say(watch_id=number, created=True)
            start = create.start_revision or self.revision + 1
            if not create.range_end:  # a sign of life: nobody writes there
                self.watchers[number] = 1 << 32
            elif start < self.compacted:
                self.say(watch_id=number, canceled=True, compact_revision=self.compacted)
            else:
                self.watchers[number] = start
        elif request.cancel_request is not None:
            self.watchers.pop(request.cancel_request.watch_id, None)
            self.say(watch_id=request.cancel_request.watch_id, canceled=True)

    def say(self, **what: object) -> None:
        self.wire.append(WatchResponse(ResponseHeader(revision=self.revision), **what))  # type: ignore[arg-type]

    @rule(count=st.integers(1, 5))
    def write(self, count: int) -> None:
        self.revision += count

    @rule(share=st.floats(0, 1))
    def compact(self, share: float) -> None:
        self.compacted = max(self.compacted, int(self.revision * share))
        for watch_id, start in list(self.watchers.items()):
            if start < self.compacted:
                del self.watchers[watch_id]
                self.say(watch_id=watch_id, canceled=True, compact_revision=self.compacted)

    @rule(data=st.data())
    @precondition(lambda self: self.watchers)
    def send(self, data: st.DataObject) -> None:
        watch_id = data.draw(st.sampled_from(sorted(self.watchers)))
        start = self.watchers[watch_id]
        stop = data.draw(st.integers(start, max(self.revision + 1, start)))
        if stop > start:
            self.say(watch_id=watch_id, events=events(*range(start, stop)))
            self.watchers[watch_id] = stop

    @rule()
    def notify(self) -> None:
        """etcd tells watchers that have everything that they have; and answers a progress request whenever it likes."""
        for watch_id, start in self.watchers.items():
            if start > self.revision:
                self.say(watch_id=watch_id)
        if self.open:
            self.say(watch_id=-1)

    @rule(count=st.integers(1, 10))
    def receive(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            self.do(self.book.heard(self.wire.pop(0)))

    @rule()
    def breaks(self) -> None:
        self.open, self.count = False, 0
        self.wire.clear()
        self.watchers.clear()
        self.book.broken()

    @rule()
    @precondition(lambda self: not self.open)
    def opens(self) -> None:
        self.open = True
        self.do(self.book.opened())

    @rule()
    @precondition(lambda self: self.open)
    def is_quiet(self) -> None:
        self.do(self.book.sign_of_life())

    @rule(index=st.integers(0, 5))
    def user_is_slow(self, index: int) -> None:
        if index < len(self.watched) and self.watched[index].phase in (Phase.ASKED, Phase.OPEN, Phase.WAITING):
            self.do(self.book.full(self.watched[index]))

    @rule(index=st.integers(0, 5))
    def user_goes_on(self, index: int) -> None:
        if index >= len(self.watched):
            return
        watch = self.watched[index]
        if watch.phase is Phase.GAP:
            self.excused[watch].append(range(watch.next_revision, self.revision + 1))
            self.do(self.book.go_on(watch, self.revision + 1))
        else:
            self.do(self.book.go_on(watch, watch.next_revision))

    @invariant()
    def nothing_is_lost_repeated_or_reordered(self) -> None:
        for watch, seen in self.seen.items():
            excused = {revision for gap in self.excused[watch] for revision in gap}
            since = self.since.get(watch) or watch.since
            due = [revision for revision in range(since, watch.next_revision) if revision not in excused]
            mine = [revision for revision in due if watch.within is None or watch.key == key_of(revision)]
            assert seen == mine, f"{seen} instead of {mine}"

    def teardown(self) -> None:
        """Once all is calm, everything arrives."""
        self.breaks()
        self.opens()
        for _ in range(5):
            for index in range(len(self.watched)):
                self.user_goes_on(index)
            self.receive(len(self.wire))
            for watch_id, start in self.watchers.items():
                if start <= self.revision:
                    self.say(watch_id=watch_id, events=events(*range(start, self.revision + 1)))
                    self.watchers[watch_id] = self.revision + 1
            self.receive(len(self.wire))
        self.nothing_is_lost_repeated_or_reordered()
        self.book.broken()
        for watch in self.watched:
            assert watch.next_revision == self.revision + 1


Play.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestPlay = Play.TestCase


class PlayBehindProxy(Play):
    """etcd's proxy counts by itself, answers creations in any order, and takes no notice of progress requests."""

    takes_numbers = False

    @rule(data=st.data())
    @precondition(lambda self: sum(response.created for response in self.wire) > 1)
    def answers_change_places(self, data: st.DataObject) -> None:
        """Nothing about a watch comes before the answer to its creation."""
        places = [place for place, response in enumerate(self.wire) if response.created]
        place = data.draw(st.sampled_from(places[1:]))
        self.wire.insert(places[0], self.wire.pop(place))

    def serve(self, request: WatchRequest) -> None:
        assert request.progress_request is None
        super().serve(request)


PlayBehindProxy.TestCase.settings = Play.TestCase.settings
TestPlayBehindProxy = PlayBehindProxy.TestCase


@pytest.fixture
def book() -> Book:
    book = Book()
    book.opened()
    return book


def create(book: Book, effects: Effects) -> int:
    """etcd begins with what it was just asked for; what it calls it."""
    (request,) = effects.send
    assert request.create_request is not None
    book.heard(WatchResponse(watch_id=request.create_request.watch_id, created=True))
    return request.create_request.watch_id


def test_events_before_the_next_revision_are_dropped(book: Book) -> None:
    watch = Watched(b"k", b"", 5)
    number = create(book, book.add(watch))
    (delivery,) = book.heard(WatchResponse(watch_id=number, events=events(3, 4, 5, 6))).deliver
    assert isinstance(delivery.what, tuple)
    assert [change.revision for change in delivery.what] == [5, 6]
    assert isinstance(delivery.what[0], Change)
    assert watch.next_revision == 7


def test_a_creation_refused_without_its_number_is_matched_by_its_turn(book: Book) -> None:
    first, second = Watched(b"a", b"", 1), Watched(b"b", b"", 1)
    create(book, book.add(first))
    book.add(second)
    refused = WatchResponse(watch_id=-1, created=True, canceled=True, cancel_reason="invalid range")
    (delivery,) = book.heard(refused).deliver
    assert delivery.watch is second
    assert isinstance(delivery.what, EtcdRefusedError)
    assert first.phase is Phase.OPEN


def test_a_user_without_permission_is_told_after_one_fresh_token(book: Book) -> None:
    watch = Watched(b"a", b"", 1)
    book.add(watch)
    refused = WatchResponse(watch_id=-1, created=True, canceled=True, cancel_reason="etcdserver: permission denied")
    assert book.heard(refused).login
    book.broken()
    book.opened()
    (delivery,) = book.heard(refused).deliver
    assert isinstance(delivery.what, EtcdAuthError)
    assert not book.watches


def test_what_several_look_at_is_sent_once_until_the_last_of_them_goes(book: Book) -> None:
    first, second = Watched(b"k", b"", 5), Watched(b"k", b"", 7)
    number = create(book, book.add(first))
    assert not book.add(second).send
    told = book.heard(WatchResponse(watch_id=number, events=events(5, 6, 7))).deliver
    seen = {delivery.watch: [change.revision for change in delivery.what] for delivery in told}  # type: ignore[union-attr]
    assert seen == {first: [5, 6, 7], second: [7]}
    assert not book.remove(first).send
    (cancel,) = book.remove(second).send
    assert cancel.cancel_request is not None
    assert cancel.cancel_request.watch_id == number


def test_who_needs_what_has_come_already_is_sent_it_once_more(book: Book) -> None:
    first, second = Watched(b"k", b"", 5), Watched(b"k", b"", 5)
    number = create(book, book.add(first))
    book.heard(WatchResponse(watch_id=number, events=events(5)))
    (request,) = book.add(second).send
    assert request.create_request is not None
    assert request.create_request.start_revision == 5


def asked(effects: Effects) -> list[int]:
    """The revisions that etcd is asked to begin with; 0 leaves it to etcd."""
    return [request.create_request.start_revision for request in effects.send if request.create_request is not None]


def begun(book: Book, effects: Effects, revision: int) -> Effects:
    """etcd begins with what it was just asked for, being at a revision."""
    (request,) = effects.send
    assert request.create_request is not None
    number = request.create_request.watch_id
    return book.heard(WatchResponse(ResponseHeader(revision=revision), watch_id=number, created=True))


def test_who_asks_ahead_learns_with_what_it_begins_and_goes_on_from_there(book: Book) -> None:
    watch = Watched(b"k", b"", 0)
    effects = book.add(watch)
    assert asked(effects) == [0]
    assert watch.since == 0
    assert not begun(book, effects, 41).deliver, "nobody waits to hear it"
    assert (watch.since, watch.next_revision) == (42, 42)
    book.broken()
    assert asked(book.opened()) == [42]
    assert watch.since == 42


def test_who_waits_to_hear_with_what_it_begins_is_woken_though_there_is_nothing_to_take(book: Book) -> None:
    first, second = (Watched(b"k", b"", 0, is_awaited=True) for _ in range(2))
    (delivery,) = begun(book, book.add(first), 41).deliver
    assert (delivery.watch, delivery.what) == (first, ())
    (delivery,) = book.add(second).deliver
    assert (delivery.watch, delivery.what, second.since) == (second, (), 42)


def test_who_needs_a_revision_does_not_rely_on_one_that_began_nobody_knows_when(book: Book) -> None:
    ahead, exact, later = Watched(b"k", b"", 0), Watched(b"k", b"", 40), Watched(b"k", b"", 43)
    effects = book.add(ahead)
    assert not book.add(exact).send, "the first of a stream is asked for alone"
    assert asked(begun(book, effects, 41)) == [40]
    book.remove(exact)
    book.broken()
    book.opened()
    assert not book.add(later).send, "what comes from 42 on is enough"
    assert later.feed is ahead.feed


@pytest.mark.parametrize("has_come", [False, True])
def test_who_asks_ahead_does_not_rely_on_one_that_waits_for_the_past(book: Book, has_come: bool) -> None:
    """etcd does not hurry with events of the past; once they have come, it does."""
    past, ahead = Watched(b"k", b"", 5), Watched(b"k", b"", 0)
    number = create(book, book.add(past))
    if has_come:
        book.heard(WatchResponse(watch_id=number, events=events(5)))
    assert asked(book.add(ahead)) == ([] if has_come else [0])
    assert ahead.since == (6 if has_come else 0)


def test_nobody_knows_with_what_etcds_proxy_begins(book: Book) -> None:
    watch = Watched(b"k", b"", 0, is_awaited=True)
    book.add(watch)
    response = WatchResponse(ResponseHeader(revision=41), watch_id=0, created=True)
    (delivery,) = book.heard(response).deliver
    assert (delivery.watch, delivery.what, watch.since) == (watch, (), -1)


def test_who_looks_at_one_key_of_a_range_hears_of_no_other(book: Book) -> None:
    first, second = (Watched(key, b"", 2, within=(b"k", b"l")) for key in (b"k0", b"k1"))
    effects = book.add(first)
    (request,) = effects.send
    assert request.create_request is not None
    assert (request.create_request.key, request.create_request.range_end) == (b"k", b"l")
    number = create(book, effects)
    assert not book.add(second).send
    told = book.heard(WatchResponse(watch_id=number, events=events(2, 3, 4, 5, 6))).deliver
    seen = {delivery.watch: [change.revision for change in delivery.what] for delivery in told}  # type: ignore[union-attr]
    assert seen == {first: [3, 6], second: [4]}


def test_all_watches_end_together(book: Book) -> None:
    watches = {Watched(b"a", b"", 1), Watched(b"b", b"", 1)}
    for watch in watches:
        book.add(watch)
    ended = book.end(EtcdClosedError("closed")).deliver
    assert {delivery.watch for delivery in ended} == watches
    assert book.opened() == Effects()


def test_the_first_is_asked_for_alone_and_the_others_together(book: Book) -> None:
    first, *others = (Watched(key, b"", 1) for key in (b"a", b"b", b"c"))
    (request,) = book.add(first).send
    for watch in others:
        assert not book.add(watch).send
    assert request.create_request is not None
    effects = book.heard(WatchResponse(watch_id=request.create_request.watch_id, created=True))
    assert [request.create_request and request.create_request.key for request in effects.send] == [b"b", b"c"]
    assert book.sign_of_life().send == [PROGRESS]


def test_who_counts_by_itself_is_asked_for_one_after_the_other(book: Book) -> None:
    """And what goes on is told apart by what it says itself."""
    first, *others = (Watched(key, b"", 1) for key in (b"a", b"b", b"c"))
    book.add(first)
    for watch in others:
        book.add(watch)
    (request,) = book.heard(WatchResponse(watch_id=0, created=True)).send
    assert request.create_request is not None
    assert request.create_request.key == b"b"
    book.remove(others[1])  # before its turn
    assert not book.heard(WatchResponse(watch_id=1, created=True)).send
    for number, watch in enumerate((first, others[0])):
        (delivery,) = book.heard(WatchResponse(watch_id=number, events=events(5))).deliver
        assert delivery.watch is watch
    (cancel,) = book.remove(first).send
    assert cancel.cancel_request is not None
    assert cancel.cancel_request.watch_id == 0


def test_a_sign_of_life_where_progress_is_not_told_is_a_watch_that_ends_when_it_begins(book: Book) -> None:
    book.add(Watched(b"a", b"", 1))
    book.heard(WatchResponse(watch_id=0, created=True))
    (request,) = book.sign_of_life().send
    assert request.create_request is not None
    assert not book.sign_of_life().send, "it is owed an answer already"
    (request,) = book.heard(WatchResponse(watch_id=1, created=True)).send
    assert request.cancel_request is not None
    assert request.cancel_request.watch_id == 1


def test_an_answer_out_of_turn_is_no_answer_of_etcds(book: Book) -> None:
    create(book, book.add(Watched(b"a", b"", 1)))
    book.add(Watched(b"b", b"", 1))
    with pytest.raises(EtcdMessageError, match="was asked for"):
        book.heard(WatchResponse(watch_id=0, created=True))


def test_who_goes_before_etcd_has_answered_is_ended_then(book: Book) -> None:
    watch = Watched(b"a", b"", 1)
    (request,) = book.add(watch).send
    assert request.create_request is not None
    number = request.create_request.watch_id
    assert not book.remove(watch).send
    (request,) = book.heard(WatchResponse(watch_id=number, created=True)).send
    assert request.cancel_request is not None
    assert request.cancel_request.watch_id == number
