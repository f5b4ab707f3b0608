"""One node's membership in a run whose document everybody edits, for threads that wait; with errors in words (rule 11)."""

from __future__ import annotations

import random
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import msgspec

from rallypoint.client import outcomes
from rallypoint.client.identity import mint_id
from rallypoint.core import node as core
from rallypoint.core.model import Bounds, Node, Phase, Reason, Settings
from rallypoint.core.node import State, View
from rallypoint.core.notices import Placed
from rallypoint.document import page as pages
from rallypoint.document.cycle import Backend
from rallypoint.document.editor import Editor
from rallypoint.document.heart import Heart
from rallypoint.errors import (
    RendezvousConnectionError,
    RendezvousTimeoutError,
)


class DocumentMember:
    """A node that takes part in a run through a document.  Methods may be called from any thread.

    `store` lies beside the document, or is None; `prepare` completes a node before each join: its address, and the
    store that it would serve (rules 2 and 12).
    """

    def __init__(
        self,
        run_id: str,
        backend: Backend,
        store: Any | None,
        bounds: Bounds,
        settings: Settings,
        node: Node,
        *,
        prepare: Callable[[Node], Node],
        close_s: float = 30.0,
        call_s: float = 60.0,
    ) -> None:
        self.run_id = run_id
        self._backend = backend
        self._prepare = prepare
        self._close_s = close_s
        self._call_s = call_s
        self._joining = threading.Lock()
        self._left = False
        self._closed_run = False
        view = View(node=node, bounds=bounds, settings=settings)
        self._editor = Editor(run_id, view, _minting(), has_store=store is not None)
        self.heart = Heart(self._editor, backend, store)
        # The thread does not hold the member: one that nobody holds any more falls silent, and is given up.
        weakref.finalize(self, self.heart.abandon).atexit = False

    @property
    def view(self) -> View:
        """What the node knows at the moment."""
        return self._editor.view

    def join(self, timeout_s: float) -> Placed:
        """Wait for a place in the next world, all in all at most so long (rule 13)."""
        self._check_left()
        started = time.monotonic()
        with self._joining:
            before = self.view.world
            while True:
                self._ask(started + timeout_s)
                settled = self._settle(before, started + timeout_s)
                if not settled or self.view.state is not State.FENCED or self._left:
                    return self._outcome(settled, time.monotonic() - started)
                if self.view.stood_by:
                    started = time.monotonic()  # the deadline did not run while it stood by (rule 13)

    def waiting(self) -> int:
        """Rule 6b: from memory, at once."""
        self.heart.check()
        return core.num_nodes_waiting(self.view, time.monotonic())

    def is_closed(self) -> bool:
        """Whether the run is closed; read from the document, unless it is known."""
        self.heart.check()
        if self._closed_run or self.view.state is State.CLOSED:
            return True
        with self.heart.medium:
            found = self._backend.get_state()
        if found is None:
            return False
        run = pages.decode(found[0], self.run_id).run
        ours = self.view.world is None or run.incarnation == self.view.incarnation
        return run.phase is Phase.CLOSED and ours

    def close_run(self) -> None:
        """Close the run for everybody, and wait until the document says so."""
        if self._closed_run or self.view.state is State.CLOSED:
            return
        self.heart.order(self._editor.close)
        done = self._done(time.monotonic() + self._call_s)
        self._raise_failure()
        if not done:
            raise RendezvousConnectionError(f"run {self.run_id!r} could not be closed: {self._trouble()}")
        self._closed_run = True

    def leave(self, reason: Reason, why: str = "", *, is_host: bool = False, patience_s: float | None = None) -> bool:
        """Leave for good, and stay for as long as others depend on this process; whether all of them have gone."""
        self.heart.check()
        if self._left:
            return True
        self._left = True
        deadline = time.monotonic() + (self._close_s if patience_s is None else patience_s)
        done = True
        if self.view.state not in (State.IDLE, State.REFUSED):
            self.heart.order(lambda: self._editor.leave(reason, why))
            done = self._done(deadline)
            serves = self.view.world is not None and self.view.world.rank == 0
            if done and reason is Reason.FINISHED and serves:
                done = self.heart.wait(lambda: self.view.state is not State.FINISHED, deadline)
        if done and is_host:
            done = self.heart.wait(lambda: self._editor.run.live == 0, deadline)
        self.heart.end()
        return done

    def stop(self) -> None:
        """End without a word to anybody."""
        self.heart.end()

    # Inside -------------------------------------------------------------------------------------------------------

    def _ask(self, deadline: float) -> None:
        if self.view.state is State.CLOSED:
            return

        prepared = self._prepare(self.view.node)

        def ask() -> None:
            editor = self._editor
            if self._left:
                return  # nobody waits for it any more
            if editor.view.state in (State.FENCED, State.REFUSED):
                editor.reborn(msgspec.structs.replace(prepared, id=mint_id(prepared.name)))
            node = msgspec.structs.replace(prepared, id=editor.view.node.id)
            editor.view = msgspec.structs.replace(editor.view, node=node)
            if editor.view.state is not State.CLOSED:
                editor.join(time.monotonic(), max(deadline - time.monotonic(), 0.001))
            asked.set()

        asked = threading.Event()
        self.heart.order(ask)
        self.heart.wait(lambda: asked.is_set() or self._left, deadline)

    def _settle(self, before: Placed | None, deadline: float) -> bool:
        """Wait until a join has led to something; a spare waits without a deadline."""

        def is_settled(view: View) -> bool:
            over = self._left or self.heart.failure is not None
            return over or outcomes.has_led_to_something(view, before)

        def wait(is_so: outcomes.IsSo, until: float | None) -> bool:
            return self.heart.wait(lambda: is_so(self.view), until)

        return outcomes.settle(wait, is_settled, deadline)

    def _outcome(self, settled: bool, elapsed_s: float) -> Placed:
        view = self.view
        placed = outcomes.place_in(view)
        if settled and placed is not None:
            return placed
        outcomes.check_open(self.run_id, view)
        self._check_left()
        failure, trouble = self.heart.failure, self.heart.trouble
        self.heart.order(lambda: self._editor.leave(Reason.WITHDREW, "its join timed out"))
        self._done(time.monotonic() + 1.0)
        self.heart.order(self._editor.forget_errand)
        if failure is not None:
            raise failure
        if trouble:
            raise RendezvousTimeoutError(
                f"run {self.run_id!r} was not joined within {elapsed_s:.1f} s: its backend cannot be reached ({trouble})"
            )
        raise RendezvousTimeoutError(f"run {self.run_id!r} was not joined within {elapsed_s:.1f} s: {view.why}")

    def _check_left(self) -> None:
        if self._left:
            raise outcomes.left_before(self.run_id)

    def _done(self, deadline: float) -> bool:
        """Wait until the document says what was asked of it."""
        heart, editor = self.heart, self._editor

        def is_done() -> bool:
            return heart.is_idle and (editor.errand is None or heart.failure is not None)

        return heart.wait(is_done, deadline) and heart.failure is None

    def _raise_failure(self) -> None:
        failure = self.heart.failure
        if failure is not None:
            raise failure

    def _trouble(self) -> str:
        return self.heart.trouble or "its backend does not answer"


def _minting() -> Callable[[], str]:
    """Gives fresh random texts by a seed of its own: an editor needs one with every look, and the system is slow to ask."""
    chance = random.Random(secrets.randbits(256))
    return lambda: f"{chance.getrandbits(48):012x}"
