"""One node's membership in a run, for threads that wait: join, hear of changes, leave; with errors in words (rule 11)."""

from __future__ import annotations

import atexit
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

import msgspec

from rallypoint import errors, events, wording
from rallypoint.client import view as views
from rallypoint.client.link import Link, Prepare
from rallypoint.client.round_store import FOR_MEMBERS, RoundStore, StoreHosting, StoreOffer, cannot_listen
from rallypoint.client.view import State, View
from rallypoint.messages.notices import Placed
from rallypoint.messages.types import Ending, Node, Reason
from rallypoint.protocol import AskHeard, AskPeers, AskVerdict, Peer, Peers, VerdictGiven
from rallypoint.stores.errors import StoreError
from rallypoint.verdict import Failure, Verdict

_BLIP_S = 1.0
"""How long a node that leaves tries to say so if the server was away at the last attempt."""

_HURRY_S = 0.5
"""How long it tries if the process is to end at once, as after Ctrl-C."""

_ASK_S = 1.0
"""How long an answer is awaited that memory can stand in for."""

_REPORT_S = 0.2
"""How often a report is repeated until the verdict is there."""

_INVOLVED = (State.WAITING, State.SPARE, State.HOLDS, State.BROKEN)

_PLACED = (State.HOLDS, State.BROKEN)
"""A world may be over before the thread that waits for it has looked: it is a place all the same, and joins again."""


class Member:
    """A node that takes part in a run.  Methods may be called from any thread.

    `open_link` is given what completes a node before each join, and returns the link.  `own_address` says whether the
    node came with an address that its peers can reach; otherwise it gets the one by which this machine reaches the
    server.  `hosting` says how it serves a round's store if it has rank 0.
    """

    serves_store = True
    """Whether rank 0 serves the stores of the rounds, so that others can reach them by address and port."""

    def __init__(
        self,
        run_id: str,
        open_link: Callable[[Prepare], Link],
        *,
        own_address: bool,
        call_s: float = 60.0,
        close_s: float = 30.0,
        hosting: StoreHosting = FOR_MEMBERS,
    ) -> None:
        self.run_id = run_id
        self.call_s = call_s
        self.close_s = close_s
        self._own_address = own_address
        self._hosting = hosting
        self._offer: StoreOffer | None = None
        self._closed_run = False
        self._joining = threading.Lock()
        self._storing = threading.Lock()
        self._store: RoundStore | None = None
        self._finished = self._left = self._gone = False
        self._stays: tuple[str, float | None] | None = None
        """Why a node that leaves is still here, and until when."""
        self.link: Link = open_link(self._prepare)
        _members.add(self)

    @property
    def view(self) -> View:
        """What the node knows at the moment."""
        return self.link.view

    def join(self, timeout_s: float) -> Placed:
        """Wait for a place in the next world, all in all at most so long (rule 13)."""
        self._check_left()
        started = time.monotonic()
        with self._joining:
            try:
                placed = self._join(started, timeout_s)
                self._open_store(placed)
            except BaseException as exc:
                self._take_back(exc)
                events.record("join failed", self.run_id, str(exc) or type(exc).__name__)
                raise
            return placed

    def waiting(self) -> int:
        """Rule 6b: from memory, at once."""
        self.link.check()
        return views.num_nodes_waiting(self.view, time.monotonic())

    def why_waiting(self) -> str:
        """What is awaited, in words (rule 11); empty where nothing is."""
        view, trouble = self.view, self._trouble()
        if self._stays is not None:
            why, until = self._stays
            why += "" if until is None else f", at most {wording.seconds(until - time.monotonic())} more"
            return why if self._gone or not trouble else f"{why}; {trouble}"
        return (trouble or view.why) if view.state in (State.WAITING, State.SPARE) else ""

    def _trouble(self) -> str:
        """What is wrong with a server that is away, was not found yet or is in doubt (rule 17e); empty if nothing is."""
        link = self.link
        if not link.is_connected:
            return f"the server at {link.where()} cannot be reached ({link.trouble})"
        return link.trouble if self.view.out_since is not None else ""

    def is_closed(self) -> bool:
        """Whether the run is known to be closed."""
        self.link.check()
        return self._closed_run or self.view.state is State.CLOSED

    def is_closed_now(self) -> bool:
        """Whether the run is closed: the server is asked if it answers, since a push may still be under way."""
        if not self.is_closed() and self.link.is_connected:
            with suppress(errors.RendezvousError):
                # Its answer comes after what it said before.
                self.link.ask(AskHeard, _ASK_S)
        return self.is_closed()

    def close_run(self) -> None:
        """Close the run for everybody, and wait until the server says that it is recorded (rule 17c)."""
        if self.is_closed():
            return
        link = self.link
        link.connect()
        deadline = time.monotonic() + self.close_s
        if not link.wait(lambda _: link.is_connected or link.refusal is not None, deadline):
            raise errors.RendezvousConnectionError(
                f"run {self.run_id!r} could not be closed: the server at {link.where()} cannot be reached: "
                f"{link.refusal or link.trouble}"
            )
        link.ask_to_close()
        if not link.is_heard(deadline):
            raise errors.RendezvousConnectionError(
                f"run {self.run_id!r} was asked to close, but the server at {link.where()} did not confirm it "
                f"within {self.close_s:.0f} s; this node goes on asking until it leaves"
            )
        self._closed_run = link.wait(lambda view: view.state not in _INVOLVED, deadline)

    def verdict(self, placed: Placed, failures: Sequence[Failure], timeout_s: float) -> Verdict | None:
        """Report how workers of this node failed, each `at` a moment of this process's clock; which of all failed first.

        It is repeated until the server, or the one after it, has the verdict; None where it has none in that time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            aged = tuple(msgspec.structs.replace(failure, at=max(now - failure.at, 0.0)) for failure in failures)
            answer: object = None
            with suppress(errors.RendezvousError):
                ask = partial(AskVerdict, seal_id=placed.seal_id, failures=aged)
                answer = self.link.ask(ask, max(deadline - now, 0.01))
            if isinstance(answer, VerdictGiven) and (answer.verdict is not None or not answer.is_awaited):
                return answer.verdict
            if time.monotonic() + _REPORT_S >= deadline:
                return None
            self.link.wait(lambda _: self._gone, time.monotonic() + _REPORT_S)

    def peers(self) -> Iterator[Peer]:
        """The members of the world, page by page, in the order of their ranks."""
        world, start = self.view.world, 0
        if world is None:
            raise errors.RendezvousError("there is no world yet: join first")
        while start < world.size:
            answer = self.link.ask(partial(AskPeers, seal_id=world.seal_id, start=start), self.call_s)
            if not isinstance(answer, Peers):
                raise errors.RendezvousError(getattr(answer, "why", "") or "the server did not say who the peers are")
            if not answer.page:
                raise errors.RendezvousError(f"the server knows {answer.total} of {world.size} peers only")
            yield from answer.page
            start += len(answer.page)

    def store(self, placed: Placed) -> RoundStore:
        """The bootstrap store of a round (rule 12); rank 0 serves it, everybody connects on first use."""
        with self._storing:
            if self._store is not None and self._store.seal_id == placed.seal_id:
                return self._store
        # Another thread has joined again since: the round is over, and so is its store.
        return self._make_store(placed, None)

    def wait(self, until: Callable[[View], bool], deadline: float | None = None) -> bool:
        """Wait until what the node knows is as wanted; False where the deadline passes first."""
        return self.link.wait(until, deadline)

    def wait_until_over(self, placed: Placed, timeout_s: float | None = None) -> bool:
        """Wait until a world is no longer this node's; False where the time passes first.  From memory with 0."""

        def is_over(view: View) -> bool:
            is_ours = view.world is not None and view.world.seal_id == placed.seal_id
            return self._gone or not is_ours or view.state not in (State.HOLDS, State.FINISHED)

        return self.link.wait(is_over, None if timeout_s is None else time.monotonic() + timeout_s)

    def why_over(self, placed: Placed) -> str:
        """Why a world is no longer this node's, and what to do about it."""
        view, left = self.view, "this node has left the run"
        if self._gone:
            return left
        if view.state is State.CLOSED:
            return f"run {self.run_id!r} is closed as {view.ending.value}: {view.why}"
        if view.world is not None and view.world.seal_id != placed.seal_id:
            return f"this node is in round {view.world.round} by now, which has a store of its own"
        if view.state in (State.BROKEN, State.FENCED):
            return f"{view.why}; join again"
        return "this node waits for the next round" if view.state in (State.WAITING, State.SPARE) else left

    def finish(self) -> None:
        """Say that this node's work is done (rule 8), and stay for the others until `leave`."""
        if self.view.state is State.HOLDS and not self._finished:
            self._finished = True
            self.link.leave(Reason.FINISHED)

    def leave(self, reason: Reason, why: str = "", *, timeout_s: float | None = None) -> bool:
        """Leave for good, and stay for as long as others depend on this process; whether all of them have gone."""
        return self._leave(reason, why, time.monotonic() + (self.close_s if timeout_s is None else timeout_s))

    def withdraw(self, why: str, deadline: float | None = None) -> None:
        """Leave at once, as after an interrupt: say so, and stay for nobody."""
        self._leave(Reason.WITHDREW, why, deadline or time.monotonic() + _HURRY_S, in_haste=True)

    def _leave(self, reason: Reason, why: str, deadline: float, *, in_haste: bool = False) -> bool:
        """Leave; in haste it waits for the server's acknowledgement, and not for nodes that depend on this process."""
        if self._left:
            return True
        self._left = True
        link, done = self.link, True
        if self._finished:
            reason = Reason.FINISHED
        elif reason is Reason.FINISHED and self.view.world is None:
            reason = Reason.WITHDREW  # a node that was never in a world has finished nothing, and is not waited for
        self._stays = (f"the server at {link.where()} has yet to acknowledge that this node leaves", deadline)
        if link.is_joining or self.view.state not in (State.IDLE, State.CLOSED, State.REFUSED):
            if not self._finished:
                link.leave(reason, why)
            # A process that ends too early is taken for a lost one.
            if reason is Reason.FINISHED or link.is_connected:
                done = link.is_heard(deadline)
            else:
                link.is_heard(min(deadline, time.monotonic() + _BLIP_S))
        elif link.is_connected:
            link.is_heard(min(deadline, time.monotonic() + _HURRY_S))  # that its join has failed
        if reason is Reason.FINISHED and self.view.world is not None and not in_haste:
            if self.hosts_medium:
                self._stays = ("this process has the run's record, and stays until the run is closed", None)
                done = self._stay_until_closed() and done
                deadline = max(deadline, time.monotonic() + self.close_s)  # the others leave from now on
            elif self.view.world.rank == 0:
                count = self.view.world.size - 1
                others = "the other node has" if count == 1 else f"the other {count} nodes have"
                self._stays = (f"this node serves the store of the round, and stays until {others} finished", deadline)
                done = link.wait(lambda view: view.state is not State.FINISHED, deadline) and done
        self._gone = True
        link.close()
        self._stays = ("this process serves the run, and stays until its other nodes have gone", deadline)
        done = self._let_go(time.monotonic() if in_haste else deadline) and done
        self._withdraw_stores()
        return done

    def _stay_until_closed(self) -> bool:
        """Keep the medium until the close is recorded, or the server is away for `close_s`; whether the run was closed.

        Without the medium nobody could record, or learn, how the run ended (rule 17).
        """

        def is_over(view: View) -> bool:
            return view.state is not State.FINISHED

        while True:
            self.link.wait(lambda view: is_over(view) or view.out_since is not None)
            if is_over(self.view):
                return True
            until = time.monotonic() + self.close_s
            if not self.link.wait(lambda view: is_over(view) or view.out_since is None, until):
                return False

    def stop(self) -> None:
        """End without a word to anybody, as a process does that is killed; from any thread, without waiting."""
        self._left = self._gone = True
        self.link.close()
        self._withdraw_stores()

    def _withdraw_stores(self) -> None:
        """End the store that this node serves, and the offer of another."""
        with self._storing:
            self._release_store()
        if self._offer is not None:
            self._offer.withdraw()

    # For the kinds of membership ----------------------------------------------------------------------------------

    @property
    def hosts_medium(self) -> bool:
        """Whether the medium by which the server is found lives in this process, and ends with it."""
        return False

    def _make_store(self, placed: Placed, listener: socket.socket | None) -> RoundStore:
        """The store of a round, served on a socket if this node has rank 0."""
        stop = self._hosting.serve(listener, placed.store_secret) if listener is not None else None
        return RoundStore(self, placed, timedelta(seconds=300), stop)

    def _let_go(self, deadline: float) -> bool:
        """The link is closed: let go of what else there is, once nobody depends on it; whether that was in time."""
        return True

    def _prepare(self, node: Node, local: Callable[[], str]) -> Node:
        """Give the node an address that its peers can reach, and an offer of a store there (rules 2 and 12)."""
        address = node.address if self._own_address else local()
        if self._offer is None or not self._offer.is_open or self._offer.address != address:
            if self._offer is not None:
                self._offer.withdraw()
            try:
                self._offer = StoreOffer(address, has_secret=self._hosting.has_secret)
            except StoreError as exc:
                raise cannot_listen(address, exc) from exc
        offer = self._offer
        return msgspec.structs.replace(node, address=address, store=offer.endpoint, store_secret=offer.secret)

    # Joining ------------------------------------------------------------------------------------------------------

    def _join(self, started: float, timeout_s: float) -> Placed:
        before = self.view.world
        while True:
            self.link.join(max(started + timeout_s - time.monotonic(), 0.001), lambda: self._left)
            settled = self._settle(before, started + timeout_s)
            if not settled or self.view.state is not State.FENCED or self._left:
                return self._outcome(settled, time.monotonic() - started)
            if self.view.stood_by:
                started = time.monotonic()  # the deadline did not run while it stood by (rule 13)

    def _settle(self, before: Placed | None, deadline: float) -> bool:
        """Wait until a join has led to something; a spare waits without a deadline (rule 13)."""
        stands_by = False

        def is_settled(view: View) -> bool:
            if self._left or self.link.is_joining:
                return self._left
            if self.link.refusal is not None or view.state in (State.CLOSED, State.REFUSED, State.FENCED):
                return True
            return view.state in _PLACED and view.world is not before

        def is_settled_or_spare(view: View) -> bool:
            nonlocal stands_by
            stands_by = view.state is State.SPARE and not self.link.is_joining
            return stands_by or is_settled(view)

        if not self.link.wait(is_settled_or_spare, deadline):
            return False
        return not stands_by or self.link.wait(is_settled)

    def _outcome(self, settled: bool, elapsed_s: float) -> Placed:
        """The place that a join has led to, or the error that says why there is none."""
        view, link, run = self.view, self.link, f"run {self.run_id!r}"
        if settled and view.world is not None and view.state in _PLACED:
            return view.world
        if link.refusal is not None:
            raise self._refused(link.refusal, link.refused_by)
        if view.state is State.CLOSED:
            if view.stood_by and view.ending is Ending.SUCCEEDED:
                raise errors.RendezvousGracefulExitError(f"{run} ended well, and this spare was not needed")
            raise errors.RendezvousClosedError(f"{run} is closed as {view.ending.value}: {view.why}")
        if view.state is State.REFUSED:
            raise errors.RendezvousError(f"{run} cannot be joined: {view.why}")
        self._check_left()
        if not link.is_connected:
            raise errors.RendezvousTimeoutError(
                f"{run} was not joined within {elapsed_s:.1f} s: {self._trouble()}; is it running there, and does its "
                f"port let nodes in?"
            )
        why = self._trouble() or view.why
        raise errors.RendezvousTimeoutError(f"{run} at {link.where()} was not joined within {elapsed_s:.1f} s: {why}")

    def _refused(self, why: str, cause: Exception | None) -> Exception:
        """What a join raises that is refused; an error of a user's own code reaches that user as it is."""
        if cause is not None and not isinstance(cause, errors.RendezvousError):
            return cause
        kind: type[errors.RendezvousError] = errors.RendezvousConnectionError
        if cause is not None and not isinstance(cause, errors.RendezvousConnectionError):
            kind = type(cause)
        refused = kind(f"run {self.run_id!r} cannot be joined at {self.link.where()}: {why}")
        refused.__cause__ = cause
        return refused

    def _take_back(self, failure: BaseException) -> None:
        """A node whose join failed, for whatever reason, no longer waits."""
        # Whether it is under way is asked first: the loop may make the join between the two questions.
        if self._left or (not self.link.is_joining and self.view.state not in _INVOLVED):
            return
        why = f"its join failed: {failure}"
        if isinstance(failure, errors.RendezvousTimeoutError):
            why = "its join timed out"
        elif isinstance(failure, KeyboardInterrupt):
            why = "its join was interrupted"
        with suppress(errors.RendezvousError):  # the first error is the one that is raised
            self.link.leave(Reason.WITHDREW, why)

    def _check_left(self) -> None:
        if self._left:
            raise errors.RendezvousError(f"run {self.run_id!r} was left by this node: a new handler can join it again")

    def _open_store(self, placed: Placed) -> None:
        with self._storing:
            self._check_left()  # a thread that left meanwhile has released what there was, and would release no more
            self._release_store()
            listener = self._offer.take() if self._offer is not None and placed.rank == 0 else None
            self._store = self._make_store(placed, listener)

    def _release_store(self) -> None:
        if self._store is not None:
            self._store.stop()
            self._store = None


_members: weakref.WeakSet[Member] = weakref.WeakSet()
"""Those of this process that may not have left yet."""


@atexit.register
def _withdraw_all() -> None:
    """A process that ends says goodbye for its nodes: one that is just gone is taken for lost, and may leave a claim."""
    deadline = time.monotonic() + _HURRY_S
    for member in list(_members):
        try:
            with suppress(Exception):
                member.withdraw("its process was stopped", deadline)
        except KeyboardInterrupt:  # noqa: PERF203  # the second Ctrl-C: the goodbyes of the others are not waited for either
            deadline = time.monotonic()
