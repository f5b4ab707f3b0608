"""One node's membership in a run, for threads that wait: join, hear of changes, leave; with errors in words (rule 11)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import msgspec

from rallypoint.client import outcomes
from rallypoint.client.link import Link, Prepare
from rallypoint.client.round_store import Offer, RoundStore, Serve, cannot_listen, serve_here
from rallypoint.core import node as core
from rallypoint.core.model import Node, Reason
from rallypoint.core.node import State, View
from rallypoint.core.notices import Placed
from rallypoint.errors import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)
from rallypoint.protocol import Peer
from rallypoint.stores.errors import StoreError

_BLIP_S = 1.0
"""So long the word of one that leaves is tried where the authority was away when it was tried last."""

_INVOLVED = (State.WAITING, State.SPARE, State.HOLDS, State.BROKEN)


class Member:
    """A node that takes part in a run.  Methods may be called from any thread.

    `open_link` is given what completes a node before each join, and returns the link; a hosting's own member brings it.
    `own_address` says whether the node came with an address that its peers can reach; otherwise it gets the one by which
    this machine reaches the authority.  `serve_store` serves a round's store where this node has rank 0.
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
        serve_store: Serve = serve_here,
    ) -> None:
        self.run_id = run_id
        self.call_s = call_s
        self.close_s = close_s
        self._own_address = own_address
        self._serve_store = serve_store
        self._offer: Offer | None = None
        self._closed_run = False
        self._joining = threading.Lock()
        self._storing = threading.Lock()
        self._store: RoundStore | None = None
        self._finished = False
        self._left = self._gone = False
        self.link: Link = open_link(self._prepare)

    @property
    def view(self) -> View:
        """What the node knows at the moment."""
        return self.link.view

    # Taking part --------------------------------------------------------------------------------------------------

    def join(self, timeout_s: float) -> Placed:
        """Wait for a place in the next world, all in all at most so long (rule 13)."""
        self._check_left()
        started = time.monotonic()
        with self._joining:
            placed = self._join(started, timeout_s)
            self._open_store(placed)
            return placed

    def waiting(self) -> int:
        """Rule 6b: from memory, at once."""
        self.link.check()
        return core.num_nodes_waiting(self.view, time.monotonic())

    def why_waiting(self) -> str:
        """What is awaited, in words (rule 11); empty where nothing is."""
        view = self.view
        if view.state not in (State.WAITING, State.SPARE):
            return ""
        if self._is_out_of_reach(view):
            return f"the authority at {self.link.where()} cannot be reached ({self.link.trouble})"
        return view.why

    def _is_out_of_reach(self, view: View) -> bool:
        """Whether the authority is away, or was not found yet."""
        return view.out_since is not None or not self.link.is_connected

    def is_closed(self) -> bool:
        """Whether the run is known to be closed."""
        self.link.check()
        return self._closed_run or self.view.state is State.CLOSED

    def close_run(self) -> None:
        """Close the run for everybody, and wait until the authority says that it is recorded (rule 17c)."""
        if self.is_closed():
            return
        self.link.connect()
        deadline = time.monotonic() + self.close_s
        connected = self.link.wait(lambda _: self.link.is_connected or self.link.refusal is not None, deadline)
        if not connected or not self.link.ask_to_close():
            raise RendezvousConnectionError(
                f"run {self.run_id!r} could not be closed: the authority at {self.link.where()} cannot be reached: "
                f"{self.link.refusal or self.link.trouble}"
            )
        if not self.link.is_heard(deadline):
            raise RendezvousConnectionError(
                f"run {self.run_id!r} was asked to close, but the authority at {self.link.where()} did not confirm it "
                f"within {self.close_s:.0f} s; this node goes on asking until it leaves"
            )
        self._closed_run = self.link.wait(lambda view: view.state not in _INVOLVED, deadline)

    def peers(self) -> Iterator[Peer]:
        """The members of the world, page by page, in the order of their ranks."""
        world = self.view.world
        if world is None:
            raise RendezvousError("there is no world yet: join first")
        yield from self.link.peers(world, self.call_s)

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
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return self.link.wait(lambda view: self._gone or not _is_in(view, placed), deadline)

    def finish(self) -> None:
        """Say that this node's work is done (rule 8), and stay for the others until `leave`."""
        if self.view.state is State.HOLDS and not self._finished:
            self._finished = True
            self.link.leave(Reason.FINISHED)

    def leave(self, reason: Reason, why: str = "", *, patience_s: float | None = None) -> bool:
        """Leave for good, and stay for as long as others depend on this process; whether all of them have gone."""
        if self._left:
            return True
        self._left = True
        deadline = time.monotonic() + (self.close_s if patience_s is None else patience_s)
        done = True
        if self._finished:
            reason = Reason.FINISHED
        elif reason is Reason.FINISHED and self.view.world is None:
            reason = Reason.WITHDREW  # who was never in a world has finished nothing, and nobody waits for its word
        if self.view.state not in (State.IDLE, State.CLOSED, State.REFUSED):
            if not self._finished:
                self.link.leave(reason, why)
            # A process that ends too early is taken for a lost one.
            if reason is Reason.FINISHED or self.link.is_connected:
                done = self.link.is_heard(deadline)
            else:
                self.link.is_heard(min(deadline, time.monotonic() + _BLIP_S))
        if reason is Reason.FINISHED and self.view.world is not None and self.view.world.rank == 0:
            done = self.link.wait(lambda view: view.state is not State.FINISHED, deadline) and done
        self._gone = True
        self.link.close()
        done = self._let_go(deadline) and done
        self._withdraw_stores()
        return done

    def _withdraw_stores(self) -> None:
        """End the store that this node serves, and the offer of another."""
        with self._storing:
            self._release_store()
        if self._offer is not None:
            self._offer.withdraw()

    # For the hostings ---------------------------------------------------------------------------------------------

    def _make_store(self, placed: Placed, listener: socket.socket | None) -> RoundStore:
        """The store of a round, served on a socket where this node has rank 0."""
        return RoundStore(self.run_id, placed, listener, timedelta(seconds=300), self._serve_store)

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
                self._offer = Offer(address)
            except StoreError as exc:
                raise cannot_listen(address, exc) from exc
        return msgspec.structs.replace(node, address=address, store=self._offer.endpoint)

    # Inside -------------------------------------------------------------------------------------------------------

    def _join(self, started: float, timeout_s: float) -> Placed:
        before = self.view.world
        while True:
            self.link.join(max(started + timeout_s - time.monotonic(), 0.001))
            settled = self._settle(before, started + timeout_s)
            if not settled or self.view.state is not State.FENCED or self._left:
                return self._outcome(settled, time.monotonic() - started)
            if self.view.stood_by:
                started = time.monotonic()  # the deadline did not run while it stood by (rule 13)

    def _settle(self, before: Placed | None, deadline: float) -> bool:
        """Wait until a join has led to something; a spare waits without a deadline."""

        def is_settled(view: View) -> bool:
            return self._left or self.link.refusal is not None or outcomes.has_led_to_something(view, before)

        return outcomes.settle(self.link.wait, is_settled, deadline)

    def _outcome(self, settled: bool, elapsed_s: float) -> Placed:
        view, link = self.view, self.link
        placed = outcomes.place_in(view)
        if settled and placed is not None:
            return placed
        if link.refusal is not None:
            raise RendezvousConnectionError(f"run {self.run_id!r} cannot be joined at {link.where()}: {link.refusal}")
        outcomes.check_open(self.run_id, view)
        self._check_left()
        link.leave(Reason.WITHDREW, "its join timed out")
        if self._is_out_of_reach(view):
            raise RendezvousTimeoutError(
                f"run {self.run_id!r} was not joined within {elapsed_s:.1f} s: the authority at {link.where()} cannot be "
                f"reached ({link.trouble}); is it running there, and does its port let nodes in?"
            )
        raise RendezvousTimeoutError(
            f"run {self.run_id!r} at {link.where()} was not joined within {elapsed_s:.1f} s: {view.why}"
        )

    def _check_left(self) -> None:
        if self._left:
            raise outcomes.left_before(self.run_id)

    def _open_store(self, placed: Placed) -> None:
        with self._storing:
            self._check_left()  # whoever left meanwhile has released what there was, and would release no more
            self._release_store()
            listener = self._offer.take() if self._offer is not None and placed.rank == 0 else None
            self._store = self._make_store(placed, listener)
            if self._offer is not None:
                self._offer.withdraw()

    def _release_store(self) -> None:
        if self._store is not None:
            self._store.stop()
            self._store = None


def _is_in(view: View, placed: Placed) -> bool:
    """Whether a node is a member of this world, as far as it knows."""
    world = view.world
    return world is not None and world.seal_id == placed.seal_id and view.state in (State.HOLDS, State.FINISHED)
