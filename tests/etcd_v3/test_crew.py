"""The threads that links share: whoever is woken has a turn, never two at a time, and nobody waits for one who waits."""

from __future__ import annotations

import queue
import random
import subprocess
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from rallypoint.etcd import crew as crews
from rallypoint.etcd.crew import Crew
from tests.etcd_client.stage import SOON_S
from tests.waiting import until

NEVER_S = 1e8
"""A turn that comes before was not brought by the clock."""


class Hand:
    """One who has turns, counts them, and does in each what it was told; from then on it rests."""

    def __init__(self, crew: Crew, *does: Callable[[], float | None]) -> None:
        self.turns = 0
        self.goes = False
        self._does = deque(does)
        self._had: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.post = crew.enlist(self._turn)

    def _turn(self) -> float | None:
        self.turns += 1
        self._had.put(self.turns)
        if self.goes:
            return None
        return self._does.popleft()() if self._does else NEVER_S

    def wake(self) -> None:
        self.post.wake()

    def has_turn(self) -> int:
        """Wait for the beginning of its next turn; the how manieth that is."""
        return self._had.get(timeout=SOON_S)


class Gate:
    """A turn that lasts until it is let go."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self) -> float:
        self.entered.set()
        assert self.go.wait(2 * SOON_S)  # longer than anybody waits for others meanwhile
        return NEVER_S


class Ship:
    """A crew, its hands and gates; in the end all of them go."""

    def __init__(self) -> None:
        self.crew = Crew()
        self._hands: list[Hand] = []
        self._gates: list[Gate] = []

    def hand(self, *does: Callable[[], float | None]) -> Hand:
        self._hands.append(Hand(self.crew, *does))
        return self._hands[-1]

    def gate(self) -> Gate:
        self._gates.append(Gate())
        return self._gates[-1]

    def stuck(self) -> Gate:
        """Somebody whose turn lasts until it is let go, and has begun."""
        gate = self.gate()
        self.hand(gate).wake()
        assert gate.entered.wait(SOON_S)
        return gate

    def ends(self) -> None:
        for gate in self._gates:
            gate.go.set()
        for hand in self._hands:
            hand.goes = True
            hand.wake()
        until(lambda: self.crew.threads == 0, "all threads have ended")


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ship]:
    """One where nobody is stuck, however slow the machine is."""
    monkeypatch.setattr(crews, "_STUCK_S", NEVER_S)
    ship = Ship()
    yield ship
    ship.ends()


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_who_is_woken_has_a_turn_and_nobody_else_has(ship: Ship) -> None:
    ship.crew = Crew(usual=1)
    rests, woken = ship.hand(), ship.hand()
    woken.wake()
    assert woken.has_turn() == 1
    woken.wake()
    assert woken.has_turn() == 2
    assert rests.turns == 0


def test_who_is_woken_during_its_turn_has_another_after_it(ship: Ship) -> None:
    gate = ship.gate()
    busy, other = ship.hand(gate), ship.hand()
    busy.wake()
    assert gate.entered.wait(SOON_S)
    for count in (1, 2, 3):
        busy.wake()
        other.wake()
        assert other.has_turn() == count
        assert busy.turns == 1
    gate.go.set()
    assert [busy.has_turn(), busy.has_turn()] == [1, 2]
    other.wake()
    assert other.has_turn() == 4
    assert busy.turns == 2  # however often it was woken meanwhile


def test_one_that_is_ready_has_one_turn_however_often_it_is_woken(ship: Ship) -> None:
    ship.crew = Crew(usual=1)
    gate = ship.stuck()
    first, last = ship.hand(), ship.hand()
    for _ in range(3):
        first.wake()
    last.wake()
    gate.go.set()
    assert last.has_turn() == 1
    assert first.turns == 1


def test_the_next_turn_comes_by_itself_when_its_time_has_come(ship: Ship) -> None:
    hand = ship.hand(lambda: 0.01, lambda: 0.02)
    hand.wake()
    assert [hand.has_turn() for _ in range(3)] == [1, 2, 3]


def test_who_is_woken_does_not_wait_for_its_time(ship: Ship) -> None:
    hand = ship.hand()
    for count in (1, 2, 3):
        hand.wake()
        assert hand.has_turn() == count


def test_where_there_is_nothing_to_wait_for_the_next_turn_comes_at_once(ship: Ship) -> None:
    hand = ship.hand(lambda: 0.0, lambda: -1.0)
    hand.wake()
    assert [hand.has_turn() for _ in range(3)] == [1, 2, 3]


def test_others_have_their_turns_before_one_that_wants_another_at_once(ship: Ship) -> None:
    ship.crew = Crew(usual=1)
    order: list[str] = []

    def greedy() -> float:
        order.append("greedy")
        if len(order) == 1:
            modest.wake()
            return 0.0
        return NEVER_S

    def be_modest() -> float:
        order.append("modest")
        return NEVER_S

    hand, modest = ship.hand(greedy, greedy), ship.hand(be_modest)
    hand.wake()
    until(lambda: len(order) == 3, "all have had their turns")
    assert order == ["greedy", "modest", "greedy"]


def test_a_time_that_was_forestalled_brings_no_turn(ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(crews, "time", SimpleNamespace(monotonic=lambda: clock.now))
    ship.crew = Crew(usual=1)
    hand, other = ship.hand(lambda: 100.0, lambda: 200.0), ship.hand()

    def pass_by() -> int:
        """Somebody looks at the clock, and whoever is due has a turn; how many it has had then."""
        for _ in range(2):
            other.wake()
            other.has_turn()
        return hand.turns

    hand.wake()
    assert pass_by() == 1
    clock.now = 99.0
    assert pass_by() == 1
    hand.wake()
    assert pass_by() == 2
    clock.now = 150.0
    assert pass_by() == 2
    clock.now = 300.0
    assert pass_by() == 3


@pytest.mark.parametrize(("posts", "threads"), [(1, 1), (2, 2), (4, 4), (20, 4)])
def test_there_are_as_many_threads_as_posts_but_usually_only_one_to_spare(ship: Ship, posts: int, threads: int) -> None:
    ship.crew = Crew(usual=3)
    hands = [ship.hand() for _ in range(posts)]
    assert ship.crew.threads == threads
    for count in (1, 2):
        for hand in hands:
            hand.wake()
        assert [hand.has_turn() for hand in hands] == [count] * posts
    assert ship.crew.threads == threads


def test_as_many_turns_are_had_at_a_time_as_there_are_threads(ship: Ship) -> None:
    ship.crew = Crew(usual=3)
    together = threading.Barrier(3)
    hands = [ship.hand(lambda: together.wait(SOON_S)) for _ in range(6)]
    for hand in hands:
        hand.wake()
    assert {hand.has_turn() for hand in hands} == {1}


@pytest.mark.parametrize("posts", [2, 3])
def test_who_waits_in_its_turn_does_not_hold_up_the_time_of_another(ship: Ship, posts: int) -> None:
    """Whichever thread it was that looked at the clock."""
    rounds = 8
    gates = [[ship.gate() for _ in range(rounds)] for _ in range(posts - 1)]
    others = [ship.hand(*mine) for mine in gates]
    hand = ship.hand(*[lambda: 0.05] * (3 * rounds))
    assert ship.crew.threads == posts
    hand.wake()
    count = hand.has_turn()
    for number in range(rounds):
        for other, mine in zip(others, gates, strict=True):
            other.wake()
            assert mine[number].entered.wait(SOON_S)
        for _ in range(2):  # one whose time may have come before, and one since
            count += 1
            assert hand.has_turn() == count
        for mine in gates:
            mine[number].go.set()


def test_where_all_wait_for_long_one_who_is_woken_has_one_more_thread_which_ends(
    ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crews, "_STUCK_S", 0.0)
    ship.crew = Crew(usual=2)
    gates = [ship.stuck(), ship.stuck()]
    threads: list[int] = []

    def count_threads() -> float:
        threads.append(ship.crew.threads)
        return NEVER_S

    hand = ship.hand(count_threads, count_threads)
    ship.hand()
    assert ship.crew.threads == 3
    for count in (1, 2):
        hand.wake()
        assert hand.has_turn() == count
        until(lambda: ship.crew.threads == 3, "the one more has ended")
    assert threads == [4, 4]
    for gate in gates:
        gate.go.set()
    hand.wake()
    assert hand.has_turn() == 3


def test_where_all_wait_for_a_moment_one_who_is_woken_waits_too(ship: Ship) -> None:
    ship.crew = Crew(usual=2)
    gates = [ship.stuck(), ship.stuck()]
    hand = ship.hand()
    hand.wake()
    until(lambda: ship.crew._looks_out, "somebody sees that it is ready")
    assert hand.turns == 0
    gates[0].go.set()
    assert hand.has_turn() == 1


def test_those_who_wait_for_long_do_not_keep_the_others_from_their_turns(
    ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even from one after the other: that somebody else goes on does not make them any quicker."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(crews, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(crews, "_STUCK_S", 0.5)
    ship.crew = Crew(usual=2)
    ship.stuck(), ship.stuck()
    clock.now = 1.0
    hands = [ship.hand() for _ in range(20)]
    for hand in hands:
        hand.wake()
    assert [hand.has_turn() for hand in hands] == [1] * len(hands)


def test_however_many_wait_there_are_not_more_threads_than_the_most(
    ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crews, "_STUCK_S", 0.0)
    monkeypatch.setattr(crews, "_MOST", 3)
    ship.crew = Crew(usual=1)
    gates = [ship.stuck() for _ in range(3)]
    hand = ship.hand()
    hand.wake()
    assert ship.crew.threads == 3
    assert hand.turns == 0
    gates[1].go.set()
    assert hand.has_turn() == 1


def test_where_there_is_not_one_more_thread_to_be_had_one_who_is_woken_waits(
    ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crews, "_STUCK_S", 0.0)
    ship.crew = Crew(usual=1)
    gate, hand = ship.stuck(), ship.hand()
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        hand.wake()
    gate.go.set()
    assert hand.has_turn() == 1


def test_who_is_over_has_no_more_turns(ship: Ship) -> None:
    ship.crew = Crew(usual=1)
    ends, other = ship.hand(lambda: None), ship.hand()
    assert not ends.post.over.is_set()
    ends.wake()
    assert ends.post.over.wait(SOON_S)
    ends.wake()
    other.wake()
    assert other.has_turn() == 1
    assert ends.turns == 1
    assert not other.post.over.is_set()


def test_who_is_woken_during_its_last_turn_has_no_more(ship: Ship) -> None:
    ship.crew = Crew(usual=1)
    other = ship.hand()

    def wake_oneself() -> None:
        ends.wake()

    ends = ship.hand(wake_oneself)
    ends.wake()
    assert ends.post.over.wait(SOON_S)
    other.wake()
    assert other.has_turn() == 1
    assert ends.turns == 1


def test_all_threads_end_with_the_last_post_and_there_are_new_ones_for_the_next(ship: Ship) -> None:
    for _ in range(3):
        hands = [ship.hand() for _ in range(6)]
        assert ship.crew.threads == crews.USUAL + 1
        for hand in hands:
            hand.wake()
            assert hand.has_turn() == 1
        for hand in hands:
            hand.goes = True
            hand.wake()
            assert hand.post.over.wait(SOON_S)
        until(lambda: ship.crew.threads == 0, "all threads have ended")


def test_a_post_that_comes_while_the_threads_end_is_served(ship: Ship) -> None:
    for _ in range(100):
        before = ship.hand(lambda: None)
        before.wake()
        assert before.post.over.wait(SOON_S)
        after = ship.hand(lambda: None)
        after.wake()
        assert after.post.over.wait(SOON_S)


def test_a_turn_that_fails_is_the_last_of_its_kind_and_the_others_go_on(
    ship: Ship, caplog: pytest.LogCaptureFixture
) -> None:
    ship.crew = Crew(usual=1)

    def fail() -> float:
        raise ValueError("what was wrong")

    fails, other = ship.hand(fail), ship.hand()
    fails.wake()
    assert fails.post.over.wait(SOON_S)
    assert "a turn failed" in caplog.text
    assert "what was wrong" in caplog.text
    fails.wake()
    other.wake()
    assert other.has_turn() == 1
    assert fails.turns == 1
    assert ship.crew.threads == 1


def test_where_there_is_no_thread_to_be_had_nobody_is_enlisted(ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            ship.hand()
    assert ship.crew.threads == 0
    hand = ship.hand(lambda: None)
    assert ship.crew.threads == 1
    hand.wake()
    assert hand.post.over.wait(SOON_S)
    until(lambda: ship.crew.threads == 0, "the thread ends with the only post that there was")


def test_where_there_are_few_threads_to_be_had_all_share_them(ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    hands = [ship.hand()]
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        hands += [ship.hand() for _ in range(2)]
        for hand in hands:
            hand.wake()
        assert [hand.has_turn() for hand in hands] == [1, 1, 1]
        assert ship.crew.threads == 1
    hands.append(ship.hand())
    for hand in hands:
        hand.wake()
    until(lambda: ship.crew.threads == 4, "there are as many as usual once they can be had")


FORKING = """
    import os, signal, threading
    from rallypoint.etcd import crew

    def works():
        turns = []
        post = crew.enlist(lambda: turns.append(threading.current_thread().name) or (0.01 if len(turns) < 3 else None))
        post.wake()
        return post.over.wait(30) and turns == ["rallypoint-etcd"] * 3

    stays = crew.enlist(lambda: 3600.0)
    stays.wake()
    assert works()
    with crew._process.crew._work:
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # one that waits for ever for a lock is not to be left behind
            os._exit(7 if works() and works() else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    # The parent is none the worse for it.
    assert works()
    print("done")
"""


def test_a_forked_child_has_threads_of_its_own_even_if_the_lock_was_held() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(FORKING)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


SIGNALLED = """
    import random, signal, threading
    from rallypoint.etcd.crew import Crew

    crew, dice, hits = Crew(), random.Random(1), 0
    turns = [threading.Event(), threading.Event()]
    posts = [crew.enlist(lambda had=had: had.set() or 1e6) for had in turns]

    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    for _ in range(20_000):
        if hits == 150:
            break
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(2e-6, 3e-5))
            try:
                for _ in range(3):
                    posts[0].wake()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            hits += 1
            for had in turns:
                had.clear()
            other = threading.Thread(target=posts[1].wake, daemon=True)
            other.start()
            assert turns[1].wait(10), f"nobody has turns any more after {hits} signals"
            posts[0].wake()
            assert turns[0].wait(10), f"who was being woken has no more turns after {hits} signals"
    print("hit", hits)
"""


def test_an_exception_out_of_a_signals_handler_costs_nobody_a_turn() -> None:
    command = [sys.executable, "-c", textwrap.dedent(SIGNALLED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout.removeprefix("hit ")) > 20


class Waker:
    """One who is woken by many threads, and notes up to which wake each of its turns came."""

    def __init__(self, crew: Crew, dice: random.Random, waits_s: tuple[float, ...]) -> None:
        self.asked = self.seen = 0
        self.overlaps = 0
        self.goes = False
        self._dice, self._waits_s = dice, waits_s
        self._lock, self._at_work = threading.Lock(), threading.Lock()
        self.post = crew.enlist(self._turn)

    def wake(self) -> None:
        with self._lock:
            self.asked += 1
        self.post.wake()

    def _turn(self) -> float | None:
        if not self._at_work.acquire(blocking=False):
            self.overlaps += 1
            return NEVER_S
        try:
            with self._lock:
                self.seen = self.asked
            return None if self.goes else self._dice.choice(self._waits_s)
        finally:
            self._at_work.release()


def test_every_wake_is_followed_by_a_turn_that_began_after_it() -> None:
    crew = Crew()
    # The clock must not make up for a wake that was lost: half of them have no times.
    waits_s = [(NEVER_S,), (NEVER_S, 0.0, 0.001)]
    posts = [Waker(crew, random.Random(number), waits_s[number % 2]) for number in range(50)]

    def wake(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(250):
            dice.choice(posts).wake()

    threads = [threading.Thread(target=wake, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: all(post.seen == post.asked for post in posts), "all have had a turn after they were last woken")
    assert sum(post.asked for post in posts) == 2000
    for post in posts:
        post.goes = True
        post.wake()
    until(lambda: crew.threads == 0, "all threads have ended")
    assert all(post.post.over.is_set() for post in posts)
    assert sum(post.overlaps for post in posts) == 0
