"""A virtual node process on a document: production's editor and cycle, and a user's agent that works, stops and rejoins.

Between any two calls of the cycle time passes, and whatever the schedule wants happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rallypoint.core import node as core
from rallypoint.core.model import Reason
from rallypoint.core.node import State, View
from rallypoint.document.beside import Beside
from rallypoint.document.cycle import Calls, Cycle
from rallypoint.document.editor import Editor
from rallypoint.document.pace import Pace
from rallypoint.errors import RendezvousConnectionError
from rallypoint.simulation.clockwork import Action, Process
from rallypoint.simulation.medium import Shelf

if TYPE_CHECKING:
    from rallypoint.simulation.documents import DocumentWorld

LONGEST_POLL_S = 0.8
_OUT = (State.IDLE, State.REFUSED, State.FENCED)


class Writer(Process):
    """One process of a node.  `store` is what it has beside the document; `unsaid` lets no write be confirmed."""

    def __init__(
        self,
        world: DocumentWorld,
        view: View,
        offset: float,
        rate: float,
        *,
        store: Shelf | None,
        stop_s: float,
        timeout_s: float,
    ) -> None:
        super().__init__(world.clockwork, offset, rate)
        self.world = world
        self.name = view.node.name
        self.stop_s = stop_s
        self.timeout_s = timeout_s
        self.stopping = False
        self.leaving = False
        self.cut = False
        self.lives = 0
        self.well_since = world.time
        self.beat_at = world.time
        self.editor = Editor(world.run_id, view, world.mint, has_store=store is not None)
        self._store = store
        self._beside = Beside(store, world.run_id)
        self._chance = random.Random(world.chance.random())
        self._pace = Pace(LONGEST_POLL_S)
        self._cycle = Cycle(
            self.editor,
            world.medium,
            self._beside,
            clock=lambda: self.now,
            chance=self._chance,
            pace=self._pace,
            told=lambda before, after, why: world.note(self.name, why),
        )
        self._orders: list[Action] = []
        self._asleep = False
        self._ends = False
        self._waits = 0
        self._rung = ""
        self._retry_s = 0.0

    def begin(self) -> None:
        """The process starts: join."""
        self.join()
        self._turn()

    @property
    def view(self) -> View:
        """What the node knows."""
        return self.editor.view

    @property
    def id(self) -> str:
        """The identity that the node has at the moment; another one after it was fenced."""
        return self.view.node.id

    # What the user's agent does -----------------------------------------------------------------------------------

    def join(self) -> None:
        """Call next_rendezvous()."""
        if not self.leaving:
            # Until it asks, what it knew before is no reason to ask.
            self.stopping = True
            self.order(self._ask)

    def _ask(self) -> None:
        self.stopping = False
        if self.view.state in (State.CLOSED, State.FINISHED):
            return
        if self.view.state in (State.FENCED, State.REFUSED):
            self.lives += 1
            self.editor.reborn(self.world.identity(self.view.node, self.lives))
        self.editor.join(self.now, self.timeout_s)
        self.later(self.timeout_s, self._check_deadline)

    def fail_workers(self) -> None:
        """The workers crash, and the agent rejoins although nobody told it to."""
        if self.view.state is State.HOLDS and not self.stopping:
            self.join()

    def leave(self, reason: Reason) -> None:
        """End: the work is done, a signal came, or the restarts are used up."""
        if self.leaving or self.editor.errand is not None:
            return
        self.leaving = True
        if self.view.state in (State.CLOSED, State.IDLE, State.REFUSED):
            self._exit()
            return
        self.order(lambda: self.editor.leave(reason))
        self.later(3 * self.world.settings.heartbeat_interval_s, self._exit)

    def close(self) -> None:
        """Close the run for everybody."""
        if not self.leaving:
            self.order(self.editor.close)

    def _react(self) -> None:
        """What an agent does that looks at num_nodes_waiting() all the time."""
        state = self.view.state
        if self.leaving:
            serves = state is State.FINISHED and self.view.world is not None and self.view.world.rank == 0
            if not self._orders and self.editor.errand is None and not serves:
                self._exit()
        elif state in (State.REFUSED, State.CLOSED):
            if not self._ends:
                self._ends = True
                self.later(1.5 * self.world.settings.heartbeat_interval_s, self._exit)
        elif core.num_nodes_waiting(self.view, self.now) > 0 and not self.stopping:
            self.stopping = True
            self.later(self.stop_s, self.join)

    def _check_deadline(self) -> None:
        if core.overdue(self.view, self.now) and not self.leaving:
            self.world.note(self.name, f"timed out: {self.view.why}")
            self.leave(Reason.WITHDREW)

    def _exit(self) -> None:
        if self.alive:
            self.world.end_process(self)

    # What its thread does -----------------------------------------------------------------------------------------

    def order(self, action: Action) -> None:
        """Let the editor do something, soon."""
        self._orders.append(action)
        self._wake()

    def _turn(self) -> None:
        self._waits += 1
        orders, self._orders = self._orders, []
        before = self.view
        for action in orders:
            action()
            self._pace.reset()
        self._seen(before)
        if self.editor.errand is None and self.view.state in _OUT:
            self._asleep = True  # until there is an order
            if self._orders:
                self._wake()
            return
        self._step(self._cycle.turn(), None)

    def _step(self, calls: Calls, answer: Any) -> None:
        """Go on to the next call, which reaches the medium a little later."""
        before = self.view
        try:
            call = calls.send(answer)
        except StopIteration as done:
            self._retry_s = 0.0
            self._wait(done.value)
        else:
            self.clockwork.after(self.world.delay(), lambda: self._reach(calls, call))
        self._seen(before)

    def _reach(self, calls: Calls, call: Callable[[], Any]) -> None:
        """A call reaches the medium, or does not; that its caller is dead by now makes no difference."""
        medium = self.world.medium
        if medium.is_away and medium.hangs:
            medium.hold(lambda: self._reach(calls, call))
            return
        answer: Any = None
        if medium.is_away or self.cut:
            answer = RendezvousConnectionError("out of reach")
        else:
            answer = self._made(call)
        self.clockwork.after(self.world.delay(), lambda: self.when_running(lambda: self._answered(calls, answer)))

    def _made(self, call: Callable[[], Any]) -> Any:
        """What a call gave; sometimes that is not heard, or a call of several operations breaks off between them."""
        medium, writes = self.world.medium, getattr(call, "func", None) == self.world.medium.set_state
        lost = self._chance.random() < medium.loss
        if lost and self._store is not None:
            self._store.fuse = self._chance.choice([None, 0, 1, 2])
        try:
            with self.world.written_by(self):
                answer = call()
        except RendezvousConnectionError as exc:
            return exc
        finally:
            if self._store is not None:
                self._store.fuse = None
        if writes and self.world.unsaid:
            return None
        if lost:
            return None if writes and self._chance.random() < 0.5 else RendezvousConnectionError("no answer")
        return answer

    def _answered(self, calls: Calls, answer: Any) -> None:
        if not isinstance(answer, Exception):
            self._step(calls, answer)
            return
        calls.close()
        before = self.view
        self.editor.away(self.now)
        longest_s = min(2.0, self.editor.settings.heartbeat_timeout_s / 3)
        self._retry_s = min(max(self._retry_s * 2, 0.05), longest_s)
        self._sleep(self._retry_s * self._chance.uniform(0.5, 1.0))
        self._seen(before)

    def _wait(self, wait_s: float) -> None:
        page = self.editor.page
        if wait_s <= 0 or self._orders:
            self._sleep(0.0)
            return
        if page is not None and self.editor.beats_beside and self.world.rings and self._store is not None:
            key = self._beside.bell_key(page.nonce, page.epoch + 1)
            if key != self._rung:
                ring = partial(self._ring, key, self._waits)
                if self._store.has(key):
                    self.clockwork.after(self.world.delay(), ring)
                self._store.bells.setdefault(key, []).append(ring)
                self._sleep(wait_s)
                return
        self._sleep(min(wait_s, self._pace.pause_s(self._chance.random())))

    def _ring(self, key: str, waits: int) -> None:
        if waits == self._waits and not self.cut:
            self._rung = key
            self._wake()

    def _sleep(self, seconds: float) -> None:
        waits = self._waits
        self._asleep = True
        self.later(seconds, lambda: self._woken(waits))

    def _wake(self) -> None:
        waits = self._waits
        if self._asleep:
            self.clockwork.after(0.0, lambda: self.when_running(lambda: self._woken(waits)))

    def _woken(self, waits: int) -> None:
        if waits == self._waits and self._asleep:
            self._asleep = False
            self._turn()

    def _seen(self, before: View) -> None:
        """Let the world see what changed."""
        if self.view is not before:
            self.world.writer_changed(self, before)
        self._react()
