"""One look at the document, and what follows from it: which calls are made, and in what order.  Sans-IO.

Each step yields a call of the backend or of the store beside the document.  Whoever drives it makes the call and sends
back what it gave, or lets go of the cycle where it failed; so a simulation can let anything happen between two calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol

from rallypoint.core.model import Run
from rallypoint.document.beside import Beside
from rallypoint.document.editor import Editor
from rallypoint.document.pace import Pace, step_back_s
from rallypoint.document.plans import Plan

Calls = Generator[Callable[[], Any], Any, float]
"""Calls to make, one after another; what is returned in the end is how long to wait."""


class Backend(Protocol):
    """What a medium must be able to do to hold the document: PyTorch's `RendezvousBackend`."""

    def get_state(self) -> tuple[bytes, Any] | None:
        """What is there, and its token."""

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        """Write if the token is still right; what is there then, its token, and whether it was written."""


class Cycle:
    """An editor's way with its backend.  `told` hears of every edit that this node made: before, after, why."""

    def __init__(
        self,
        editor: Editor,
        backend: Backend,
        beside: Beside,
        *,
        clock: Callable[[], float],
        chance: random.Random,
        pace: Pace,
        told: Callable[[Run, Run, str], None],
    ) -> None:
        self.editor = editor
        self.token: Any = None
        self._backend = backend
        self._beside = beside
        self._clock = clock
        self._chance = chance
        self._pace = pace
        self._told = told
        self._checked = ""
        self._conflicts = 0

    def turn(self) -> Calls:
        """Read, beat, look who else does, and write or say what is to be written or said; how long to wait then."""
        editor = self.editor
        found = yield self._backend.get_state
        data, self.token = (None, None) if found is None else found
        known = editor.page
        editor.read(data, self._clock())
        if editor.page is not known:
            self._pace.reset()
        yield from self._use_store()
        yield from self._look()
        plan = editor.plan(self._clock())
        if plan.say is not None and editor.page is not None:
            page = editor.page
            ticket, ahead = yield partial(self._beside.say, page.nonce, plan.say, page.folded)
            editor.said(ticket, ahead, self._clock())
            # Others may have come first meanwhile, and may be at it.
            return 0.0
        if plan.write is None:
            return plan.wait_s
        return (yield from self._write(plan))

    def _use_store(self) -> Generator[Callable[[], Any], Any, None]:
        """Find out, once for each document, whether the store beside it is everybody's."""
        page = self.editor.page
        if page is not None and page.beside and self.editor.uses_store and self._checked != page.nonce:
            is_shared = yield partial(self._beside.is_shared, page.nonce)
            if not is_shared:
                self.editor.not_shared()
            self._checked = page.nonce

    def _look(self) -> Generator[Callable[[], Any], Any, None]:
        """Beat, and look who else does."""
        editor, page = self.editor, self.editor.page
        now = self._clock()
        if page is None:
            return
        if not editor.beats_beside:
            editor.look({node_id: str(page.beats.get(node_id, 0)) for node_id in editor.watched()}, now)
            return
        me = editor.view.node.id
        if editor.must_beat(now):
            sign = yield partial(self._beside.beat, page.nonce, me, editor.life.sign, editor.next_sign())
            editor.beat(sign, self._clock())
        if editor.must_look(now):
            signs = yield partial(self._beside.signs, page.nonce, editor.watched())
            for node_id, sign in editor.look(signs, self._clock()).items():
                by_me = yield partial(self._beside.evict, page.nonce, node_id, sign, me)
                editor.given_up(node_id, self._clock(), by_me=by_me)

    def _write(self, plan: Plan) -> Calls:
        editor, known = self.editor, self.editor.page
        if known is None and editor.uses_store:
            opened = yield partial(self._beside.open, editor.nonce)
            if not opened:
                editor.not_shared()
                return 0.0
            self._checked = editor.nonce
        elif known is not None and editor.beats_beside:
            heard = yield partial(self._beside.pending, known.nonce, known.folded, known.gaps)
            plan = editor.plan(self._clock(), heard)
            if plan.write is None:
                return plan.wait_s
        assert plan.write is not None, "a plan that writes has something to write"
        started = self._clock()
        stands = yield from self._set(plan.write)
        if not stands:
            self._conflicts += 1
            self._pace.reset()
            return step_back_s(self._conflicts, self._clock() - started, self._chance.random())
        self._conflicts = 0
        before = editor.run
        editor.written(plan, self._clock())
        yield from self._after(plan, known.folded if known is not None else 0)
        self._told(before, editor.run, plan.why)
        # What stands is heard at once; whatever else there is to do follows after the next look.
        after = editor.plan(self._clock())
        return 0.0 if after.write is not None or after.say is not None else after.wait_s

    def _set(self, state: bytes) -> Generator[Callable[[], Any], Any, bool]:
        """Write; a backend that does not say what became of it is asked what is there (None: what was written)."""
        result = yield partial(self._backend.set_state, state, self.token)
        if result is not None:
            self.token = result[1]
            return bool(result[2])
        found = yield self._backend.get_state
        if found is not None:
            self.token = found[1]
        return found is None or bytes(found[0]) == state

    def _after(self, plan: Plan, folded: int) -> Generator[Callable[[], Any], Any, None]:
        page = plan.page
        if page is None or not self.editor.beats_beside:
            return
        if plan.rings:
            yield partial(self._beside.ring, page.nonce, page.epoch)
        if page.folded > folded:
            last_bell = page.epoch - 8 if plan.rings else 0
            yield partial(self._beside.tidy, page.nonce, folded + 1, page.folded, last_bell)


def carry_out(calls: Calls) -> float:
    """Make the calls here and now; what fails is raised."""
    answer: Any = None
    while True:
        try:
            call = calls.send(answer)
        except StopIteration as done:
            wait_s: float = done.value
            return wait_s
        answer = call()
