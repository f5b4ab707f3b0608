"""The shell around the editor: one thread that reads, writes, beats and waits; all IO of a node happens on it.

Other threads give it orders and wait for the view to change.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from rallypoint.core.node import State, View
from rallypoint.document.beside import Beside
from rallypoint.document.cycle import Backend, Cycle, carry_out
from rallypoint.document.editor import Editor
from rallypoint.document.pace import Pace
from rallypoint.document.waiting import Bell, Waker, bell_for
from rallypoint.document.watching import Watch, Watchable
from rallypoint.errors import RendezvousConnectionError, RendezvousError
from rallypoint.recording import tell

log = logging.getLogger("rallypoint.document")

LONGEST_POLL_S = 0.5
LONGEST_ASKING_POLL_S = 0.25
LONGEST_RETRY_S = 2.0
_END_S = 5.0
_PARKED_S = 3600.0
_ASKING = (State.WAITING, State.SPARE)
_OUT = (State.IDLE, State.REFUSED, State.FENCED)


class Heart:
    """Drives an editor.  `changed` is notified whenever the view may have changed."""

    def __init__(self, editor: Editor, backend: Backend, store: Any | None) -> None:
        self.editor = editor
        self.changed = threading.Condition()
        self.trouble = ""
        self.failure: Exception | None = None
        self.medium = threading.Lock()
        self._store = store
        self._beside = Beside(store, editor.run_id)
        self._bell: Bell | None = None
        self._bell_at = 0.0
        self._rung = ""
        self._waker: Waker | None = None
        self._pace = Pace(LONGEST_POLL_S)
        self._chance = random.Random()
        self._cycle = Cycle(
            editor,
            backend,
            self._beside,
            clock=time.monotonic,
            chance=self._chance,
            pace=self._pace,
            told=tell,
        )
        self._watch = Watch(backend) if isinstance(backend, Watchable) else None
        self._watched_epoch = -1
        self._quiet = Pace(LONGEST_ASKING_POLL_S)
        self._orders: list[Callable[[], None]] = []
        self._retry_s = 0.0
        self._thread: threading.Thread | None = None
        self._ended = False
        self._pid = os.getpid()

    @property
    def view(self) -> View:
        """What the node knows at the moment."""
        return self.editor.view

    @property
    def is_idle(self) -> bool:
        """Whether all orders were taken."""
        return not self._orders

    # For other threads --------------------------------------------------------------------------------------------

    def order(self, action: Callable[[], None]) -> None:
        """Let the editor do something, soon, and look at the document."""
        self.check()
        with self.changed:
            self._orders.append(action)
            if self._thread is None and not self._ended:
                self._waker = Waker()
                self._thread = threading.Thread(target=self._run, name="rallypoint-document", daemon=True)
                self._thread.start()
        self._wake()

    def wait(self, is_so: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until something is so; False where it is not by the deadline."""
        with self.changed:
            while not is_so():
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                self.changed.wait(left_s)
        return True

    def end(self) -> None:
        """End the thread, and wait for that; the document is not read any more."""
        self.abandon()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_S)

    def abandon(self) -> None:
        """Let the thread end when it likes: nobody needs it any more."""
        self._ended = True
        self._wake()

    def check(self) -> None:
        """Refuse to work in a forked child, where the thread does not exist."""
        if os.getpid() != self._pid:
            raise RendezvousError(
                f"this rendezvous was opened in process {self._pid} and is used in process {os.getpid()}, its child by "
                f"fork: threads do not survive a fork; open it in the child, or start the child with 'spawn' or exec"
            )

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker.wake()

    # The thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended:
                before = self.view
                try:
                    wait_s = self._turn()
                except Exception as exc:  # noqa: BLE001  # see there
                    wait_s = self._failed(exc)
                self._tell(before)
                if wait_s > 0 and not self._ended:
                    self._rest(wait_s)
        finally:
            self._drop_bell()
            if self._watch is not None:
                self._watch.end()
            if self._waker is not None:
                self._waker.close()

    def _turn(self) -> float:
        """One look at the document, and what follows from it; how long to wait then."""
        with self.changed:
            orders, self._orders = self._orders, []
            for action in orders:
                action()
                self._pace.reset()
                self.failure = None
        if self.editor.errand is None and self.view.state in _OUT:
            return _PARKED_S
        try:
            with self.medium:
                wait_s = carry_out(self._cycle.turn())
        except RendezvousConnectionError as exc:
            return self._away(str(exc))
        self.trouble, self._retry_s = "", 0.0
        return wait_s

    def _failed(self, exc: Exception) -> float:
        """A user's backend or store may raise anything: who joins is told, and the thread goes on."""
        if self.view.state not in _ASKING and self.editor.errand is None:
            log.error("the document of run %r cannot be used; trying again", self.editor.run_id, exc_info=exc)
        self.failure = exc
        return self._away(f"{type(exc).__name__}: {exc}")

    def _away(self, trouble: str) -> float:
        self.trouble = trouble
        self.editor.away(time.monotonic())
        self._drop_bell()
        # Who pauses for longer than it is waited for would be lost with every outage.
        longest_s = min(LONGEST_RETRY_S, self.editor.settings.heartbeat_timeout_s / 3)
        self._retry_s = min(max(self._retry_s * 2, 0.05), longest_s)
        return self._retry_s * self._chance.uniform(0.5, 1.0)

    # Waiting ------------------------------------------------------------------------------------------------------

    def _rest(self, wait_s: float) -> None:
        before = self.view
        try:
            self._wait(wait_s)
        except Exception as exc:  # noqa: BLE001  # the same
            pause_s = self._failed(exc)
            self._tell(before)
            self._pause(pause_s)

    def _wait(self, wait_s: float) -> None:
        assert self._waker is not None, "the thread has its waker"
        page = self.editor.page
        if wait_s >= _PARKED_S or page is None or self.trouble or not self.editor.beats_beside:
            self._wait_asking(wait_s)
            return
        key = self._beside.bell_key(page.nonce, page.epoch + 1)
        if key == self._rung:
            # It rang before, and the document did not change: somebody died between the two, or it was put back.
            self._pause(min(wait_s, self._poll_s()))
            return
        bell = self._open_bell()
        if bell is not None:
            try:
                if bell.wait(key, wait_s, self._waker):
                    self._rung = key
            except OSError:
                self._drop_bell()
            return
        if self._can_watch:
            self._wait_watching(wait_s)
            return
        self._wait_checking(page.nonce, page.epoch + 1, wait_s)

    def _wait_asking(self, wait_s: float) -> None:
        """Nothing rings: read again after a while, or when the backend says that something changed."""
        if wait_s >= _PARKED_S or self.trouble:
            self._pause(wait_s)
        elif self._can_watch:
            self._wait_watching(wait_s)
        else:
            self._pause(min(wait_s, self._poll_s()))

    @property
    def _can_watch(self) -> bool:
        return self._watch is not None and self._watch.works

    def _wait_watching(self, wait_s: float) -> None:
        """The backend watches.  After a change that was no news, as a beat is, it may wait a little until it does."""
        assert self._watch is not None, "who asked knows that it can watch"
        assert self._waker is not None, "the thread has its waker"
        started, epoch = time.monotonic(), self.editor.page.epoch if self.editor.page is not None else 0
        if epoch == self._watched_epoch:
            self._pause(min(wait_s, self._quiet.pause_s(self._chance.random())))
            if self._orders or self._ended:
                return
        else:
            self._watched_epoch = epoch
            self._quiet.reset()
        self._watch.wait(self._cycle.token, wait_s - (time.monotonic() - started), self._waker)

    def _wait_checking(self, nonce: str, epoch: int, wait_s: float) -> None:
        """A bell that one has to look at."""
        deadline = time.monotonic() + wait_s
        while not self._ended and not self._orders:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            self._pause(min(left_s, self._poll_s()))
            try:
                with self.medium:
                    if self._beside.has_rung(nonce, epoch):
                        self._rung = self._beside.bell_key(nonce, epoch)
                        return
            except RendezvousConnectionError:
                return

    def _pause(self, pause_s: float) -> None:
        assert self._waker is not None, "the thread has its waker"
        self._waker.wait(pause_s)

    def _poll_s(self) -> float:
        asking = self.view.state in _ASKING or self.editor.errand is not None
        return self._pace.pause_s(self._chance.random(), LONGEST_ASKING_POLL_S if asking else None)

    def _open_bell(self) -> Bell | None:
        if self._bell is None and time.monotonic() >= self._bell_at:
            self._bell = bell_for(self._store)
            self._bell_at = time.monotonic() + 10.0
        return self._bell

    def _drop_bell(self) -> None:
        if self._bell is not None:
            self._bell.close()
            self._bell = None

    def _tell(self, before: View) -> None:
        if self.view is not before or self.failure is not None or self.editor.errand is None:
            with self.changed:
                self.changed.notify_all()
