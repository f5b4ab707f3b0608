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
from typing import Any, Protocol

from rallypoint.core.node import State, View
from rallypoint.document.beside import Beside
from rallypoint.document.editor import Editor, Plan
from rallypoint.document.pace import Pace, step_back_s
from rallypoint.document.recording import tell
from rallypoint.document.waiting import Bell, Waker, bell_for
from rallypoint.errors import RendezvousConnectionError, RendezvousError

log = logging.getLogger("rallypoint.document")

LONGEST_POLL_S = 0.5
LONGEST_ASKING_POLL_S = 0.25
LONGEST_RETRY_S = 2.0
_END_S = 5.0
_PARKED_S = 3600.0
_ASKING = (State.WAITING, State.SPARE)
_OUT = (State.IDLE, State.REFUSED, State.FENCED)


class Backend(Protocol):
    """What a medium must be able to do to hold the document: PyTorch's `RendezvousBackend`."""

    def get_state(self) -> tuple[bytes, Any] | None:
        """What is there, and its token."""

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        """Write if the token is still right; what is there then, its token, and whether it was written."""


class Heart:
    """Drives an editor.  `changed` is notified whenever the view may have changed."""

    def __init__(self, editor: Editor, backend: Backend, store: Any | None) -> None:
        self.editor = editor
        self.changed = threading.Condition()
        self.trouble = ""
        self.failure: Exception | None = None
        self.medium = threading.Lock()
        self._backend = backend
        self._store = store
        self._beside = Beside(store, editor.run_id)
        self._bell: Bell | None = None
        self._bell_at = 0.0
        self._rung = ""
        self._waker: Waker | None = None
        self._pace = Pace(LONGEST_POLL_S)
        self._chance = random.Random()
        self._orders: list[Callable[[], None]] = []
        self._checked = ""
        self._conflicts = 0
        self._write_s = 0.0
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
                wait_s = self._turn()
                self._tell(before)
                if wait_s > 0 and not self._ended:
                    self._wait(wait_s)
        finally:
            self._drop_bell()
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
                wait_s = self._cycle()
        except RendezvousConnectionError as exc:
            return self._away(str(exc))
        except Exception as exc:  # a user's backend may raise anything; who joins is told
            if self.view.state not in _ASKING and self.editor.errand is None:
                log.exception("the document of run %r cannot be used; trying again", self.editor.run_id)
            self.failure = exc
            return self._away(f"{type(exc).__name__}: {exc}")
        self.trouble, self._retry_s = "", 0.0
        return wait_s

    def _away(self, trouble: str) -> float:
        self.trouble = trouble
        self.editor.away(time.monotonic())
        self._drop_bell()
        # Who pauses for longer than it is waited for would be lost with every outage.
        longest_s = min(LONGEST_RETRY_S, self.editor.settings.heartbeat_timeout_s / 3)
        self._retry_s = min(max(self._retry_s * 2, 0.05), longest_s)
        return self._retry_s * self._chance.uniform(0.5, 1.0)

    def _cycle(self) -> float:
        editor = self.editor
        found = self._backend.get_state()
        data, token = (None, None) if found is None else found
        changed = editor.page
        editor.read(data, time.monotonic())
        if editor.page is not changed:
            self._pace.reset()
        self._use_store()
        self._look()
        plan = editor.plan(time.monotonic())
        if plan.say is not None and editor.page is not None:
            ticket = self._beside.say(editor.page.nonce, plan.say)
            editor.said(ticket, time.monotonic())
            # Others may have come first meanwhile, and may be at it.
            return 0.0
        if plan.write is None:
            return plan.wait_s
        return self._write(plan, token)

    def _use_store(self) -> None:
        """Find out, once for each document, whether the store beside it is everybody's."""
        page = self.editor.page
        if page is not None and page.beside and self.editor.uses_store and self._checked != page.nonce:
            if not self._beside.is_shared(page.nonce):
                self.editor.not_shared()
            self._checked = page.nonce

    def _look(self) -> None:
        """Beat, and look who else does."""
        editor, page = self.editor, self.editor.page
        now = time.monotonic()
        if page is None:
            return
        if not editor.beats_beside:
            editor.look({node_id: str(page.beats.get(node_id, 0)) for node_id in editor.watched()}, now)
            return
        if editor.must_beat(now):
            there = self._beside.beat(page.nonce, editor.view.node.id, editor.sign, editor.next_sign())
            editor.beat(there, time.monotonic())
        if editor.must_look(now):
            signs = self._beside.signs(page.nonce, editor.watched())
            for node_id, sign in editor.look(signs, time.monotonic()).items():
                by_me = self._beside.evict(page.nonce, node_id, sign, editor.view.node.id)
                editor.given_up(node_id, time.monotonic(), by_me=by_me)

    def _write(self, plan: Plan, token: Any) -> float:
        editor, known = self.editor, self.editor.page
        if known is None and editor.uses_store:
            if not self._beside.open(editor.nonce):
                editor.not_shared()
                return 0.0
            self._checked = editor.nonce
        elif known is not None and editor.beats_beside:
            heard = self._beside.pending(known.nonce, known.folded, known.gaps)
            plan = editor.plan(time.monotonic(), heard)
            if plan.write is None:
                return plan.wait_s
        assert plan.write is not None, "a plan that writes has something to write"
        started = time.monotonic()
        stands = self._confirmed(plan.write, self._backend.set_state(plan.write, token))
        self._write_s = time.monotonic() - started
        if not stands:
            self._conflicts += 1
            self._pace.reset()
            return step_back_s(self._conflicts, self._write_s, self._chance.random())
        self._conflicts = 0
        before = editor.run
        editor.written(plan, time.monotonic())
        self._after(plan, known.folded if known is not None else 0)
        tell(before, editor.run, plan.why)
        # What stands is heard at once; whatever else there is to do follows after the next look.
        after = editor.plan(time.monotonic())
        return 0.0 if after.write is not None or after.say is not None else after.wait_s

    def _confirmed(self, written: bytes, result: tuple[bytes, Any, bool] | None) -> bool:
        """Whether a write stands; a backend that does not say so is asked what is there (None: what was written)."""
        if result is not None:
            return bool(result[2])
        found = self._backend.get_state()
        return found is None or bytes(found[0]) == written

    def _after(self, plan: Plan, folded: int) -> None:
        page = plan.page
        if page is None or not self.editor.beats_beside:
            return
        if plan.rings:
            self._beside.ring(page.nonce, page.epoch)
        if page.folded > folded:
            self._beside.tidy(page.nonce, folded + 1, page.folded, page.epoch - 8 if plan.rings else 0)

    # Waiting ------------------------------------------------------------------------------------------------------

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
        self._wait_checking(page.nonce, page.epoch + 1, wait_s)

    def _wait_asking(self, wait_s: float) -> None:
        """Nothing rings: read again after a while."""
        parked = wait_s >= _PARKED_S or self.trouble
        self._pause(wait_s if parked else min(wait_s, self._poll_s()))

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
