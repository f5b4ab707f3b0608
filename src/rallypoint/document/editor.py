"""One node's part in editing the document, sans-IO: what the document says goes in, what to write or wait for comes out.

The core decides, as everywhere: a node announces itself to the run in the document, as it would to a server.  Where
that changes nothing, the answer holds and is heard; where it changes something, the change is written first, and heard
of only once it stands.  Whoever brings the IO calls `read`, then `plan`, and says what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from rallypoint.core import node as core
from rallypoint.core import transition
from rallypoint.core.changes import Step
from rallypoint.core.events import CloseAsked, Event, Left, Lost
from rallypoint.core.model import Node, Phase, Reason, Run, Settings
from rallypoint.core.node import State, View
from rallypoint.core.notices import Broken, Notice, Said, Sealed
from rallypoint.document import clock as clocks
from rallypoint.document import page as pages
from rallypoint.document.clock import DocumentClock
from rallypoint.document.life import SignsOfLife
from rallypoint.document.line import TURN_S, is_here, live, turn_s, watched_by
from rallypoint.document.page import MOST_GAPS, Page
from rallypoint.document.plans import Heard, Plan

TICKET_TURN_S = 0.005
LONGEST_TICKET_TURN_S = 2.0
"""Whoever announced first takes in all announcements; the others look after their own, each a little later."""

Errand = Left | CloseAsked

_GIVEN_UP = "it was silent for too long, and given up"


class Editor:
    """One node in one run.  `mint` gives a fresh random text; `has_store` says whether a store lies beside the document."""

    def __init__(self, run_id: str, view: View, mint: Callable[[], str], *, has_store: bool) -> None:
        self.run_id = run_id
        self.view = view
        self.nonce = mint()
        self.errand: Errand | None = None
        self.page: Page | None = None
        self.uses_store = has_store
        self.life = SignsOfLife()
        self.why = ""
        self._mint = mint
        self._data: bytes | None = None
        self._lost_page = False
        self._restore_at = 0.0
        self._clock = DocumentClock()
        self._due_since: float | None = None
        self._settled: tuple[Page | None, View, float | None] = (None, view, None)
        self._ticket: int | None = None
        self._ahead: Sequence[int] = ()
        self._said_at = 0.0

    # What the node wants ------------------------------------------------------------------------------------------

    def join(self, now: float, timeout_s: float) -> None:
        """Ask for a place in the next world."""
        self.view, _ = core.join(self.view, now, timeout_s)
        self._ticket = None

    def leave(self, reason: Reason, why: str = "") -> None:
        """Leave for good."""
        self.view, self.errand = core.leave(self.view, reason, why)
        self._ticket = None

    def close(self) -> None:
        """Close the run for everybody."""
        self.errand = CloseAsked(by=self.view.node.name, incarnation=self.view.incarnation)
        self._ticket = None

    def forget_errand(self) -> None:
        """What could not be written by now is not written any more: the others find out by themselves."""
        self.errand = None

    def reborn(self, node: Node) -> None:
        """After being fenced: the same process under a new identity (rule 9)."""
        self.view = core.reborn(self.view, node)
        self.life = SignsOfLife()
        self._ticket = None

    # What the document says ---------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The run as the document has it; a blank one where there is none."""
        return self.page.run if self.page is not None else Run(run_id=self.run_id)

    @property
    def settings(self) -> Settings:
        """The run's, once somebody has founded it; until then the node's own."""
        return self.run.settings if self.run.incarnation else self.view.settings

    @property
    def beats_beside(self) -> bool:
        """Whether beats and announcements go beside the document: everybody's store must be one and the same."""
        return self.uses_store and (self.page is None or self.page.beside)

    @property
    def is_listed(self) -> bool:
        """Whether the document counts this node among the living."""
        return is_here(self.run, self.view.node.id)

    def read(self, data: bytes | None, now: float) -> None:
        """The document was read: these bytes, or there was none.  RendezvousStateError when it makes no sense."""
        self._clock = clocks.look(self._clock, now, self._longest_gap_s)
        if self.view.out_since is not None:
            self.view = core.connected(self.view)
        if data is not None and data != self._data:
            page = pages.decode(data, self.run_id)
            if self._is_older(page):
                self._lost_page = True
            else:
                self._take(data, page, now)
        elif data is None and self.page is not None:
            # Its medium has lost it: whoever remembers it puts it back, and nobody is judged by what was lost.
            self._lost_page = True
            self.life.forget_others()
        elif data is not None:
            self._lost_page = False

    def away(self, now: float) -> None:
        """The document cannot be reached: an outage, not a loss (rule 14)."""
        self.view = core.passed(core.disconnected(self.view, now), now)
        self.life.forget_others()

    def written(self, plan: Plan, now: float) -> None:
        """What the plan wanted to write stands."""
        assert plan.write is not None, "only what was to be written was written"
        assert plan.page is not None, "and what it says is known"
        self._take(plan.write, plan.page, now)
        self._restore_at = now + self.settings.heartbeat_interval_s
        self.why = plan.why or self.why
        if not self.beats_beside:
            count = plan.page.beats.get(self.view.node.id, self.life.count)
            self.life.wrote(count, now, self.settings.heartbeat_interval_s)

    def not_shared(self) -> None:
        """The store beside the document does not work, or is not the one that the others use."""
        self.uses_store = False
        self.life.forget_others()

    # Signs of life ------------------------------------------------------------------------------------------------

    def next_sign(self) -> str:
        """This node's next sign of life."""
        return self.life.next_sign(self._clock.time)

    def beat(self, sign: str, now: float) -> None:
        """A beat beside the document got through, and this stands there now: perhaps that the node was given up."""
        self.life.beat(sign, now, self.settings.heartbeat_interval_s)
        if self.life.is_evicted and self.view.state in (State.WAITING, State.SPARE):
            # Who holds a world is told by the document.  Who waits would join again under a name that was given up.
            self.view = msgspec.structs.replace(self.view, state=State.FENCED, why=_GIVEN_UP)

    def must_beat(self, now: float) -> bool:
        """Whether a beat beside the document is due: before a node is in the document, and as long as it is."""
        takes_part = core.announce(self.view) is not None and self.view.state is not State.FINISHED
        return takes_part and now >= self.life.beat_at

    def must_look(self, now: float) -> bool:
        """Whether the others' signs are to be read again."""
        return self.life.must_look(now, self.settings)

    def watched(self) -> list[str]:
        """Whose signs to read."""
        return watched_by(self.run, self.view.node.id)

    def look(self, signs: Mapping[str, str], now: float) -> dict[str, str]:
        """Everybody's signs were read: who is to be given up, with the sign that did not change."""
        for sign in signs.values():
            self._hear_time(sign, now)
        return self.life.look(signs, now, self.settings, self.run, self.view.node.id, beside=self.beats_beside)

    def given_up(self, node_id: str, now: float, *, by_me: bool) -> None:
        """A silent node was given up beside the document, by this node or another; or it spoke after all."""
        if by_me:
            self.life.gave_up(node_id, now)

    # Announcements ------------------------------------------------------------------------------------------------

    def said(self, ticket: int, ahead: Sequence[int], now: float) -> None:
        """What the plan wanted to be said stands beside the document, under this number."""
        self._ticket, self._ahead, self._said_at = ticket, ahead, now

    # The decision -------------------------------------------------------------------------------------------------

    def plan(self, now: float, heard: Heard | None = None) -> Plan:
        """What to do about the document as it was last read, with announcements where they were fetched."""
        for _ in range(4):
            plan = self._plan(now, heard)
            if plan is not None:
                return plan
        return Plan(wait_s=TURN_S)

    def _plan(self, now: float, heard: Heard | None) -> Plan | None:
        """None where something was heard, and the next step follows from it."""
        time, base = self._clock.time, self.run
        lost = self.life.losses(base, self.view.node.id)
        if heard is None and not lost and self._is_settled(time) and not self._must_write(now):
            return Plan(wait_s=self._wait_s(now))
        losses = [Lost(node_id, self._why_lost(node_id)) for node_id in lost]
        step = transition.time_passed(base, losses, time, self._mint())
        timed = step.run
        for message in heard.messages if heard is not None else ():
            step = transition.step(step.run, message, time, self._mint()).after(step)
        others, said_before = step.run, len(step.notices)
        for event in self._own_events(base):
            step = transition.step(step.run, event, time, self._mint()).after(step)
        desired = step.run
        if desired == base and not self._must_write(now):
            self._due_since = None
            self.errand = None
            if self._hear(step.notices[said_before:]):
                return None
            self._settled = (self.page, self.view, transition.wake_at(base, time))
            return Plan(wait_s=self._wait_s(now))
        own = desired != others or self.errand is not None
        if own and self._must_say():
            return Plan(say=self.errand or core.announce(self.view))
        at = self._write_at(now, timed=timed != base, lost=bool(losses), own=own)
        if at > now and heard is None:
            return Plan(wait_s=min(at - now, self._wait_s(now)))
        return self._edit(base, step, heard)

    def _is_settled(self, time: float) -> bool:
        """Whether the same was asked before, about the same document, and nothing came of it.

        Who waits is told in words for how long still, and these change.
        """
        page, view, until = self._settled
        same = page is self.page and view is self.view and view.state is not State.WAITING and self.errand is None
        return same and page is not None and (until is None or time < until)

    def _own_events(self, base: Run) -> Iterable[Event]:
        if self.errand is not None:
            yield self.errand
        message = core.announce(self.view)
        if message is None or (isinstance(self.errand, Left) and self.view.state is not State.FINISHED):
            return
        if self.life.is_evicted and self.view.state is State.CLOSED:
            # It knows all that there is to know, and would stand in a closed run under a name that was given up.
            return
        if self._is_judging(base):
            left_s = max(self.settings.heartbeat_timeout_s - self.life.longest_silence_s, 0.0)
            why = (
                f"the run is closed; whether a node of it is still there is seen within {left_s:.1f} s, and if none is, "
                f"it starts anew"
            )
            self.view = msgspec.structs.replace(self.view, why=why)
            return
        yield message

    def _is_judging(self, base: Run) -> bool:
        """A newcomer at a closed run waits for a sign of its nodes: they may all be dead, and it may start anew."""
        fresh = self.view.state is State.WAITING and self.view.incarnation != base.incarnation
        alive = base.phase is Phase.CLOSED and base.live > 0
        return fresh and alive and not self.life.anyone_spoke

    def _hear(self, notices: Iterable[Notice]) -> bool:
        before = self.view
        for notice in notices:
            if notice.to == self.view.node.id and not isinstance(notice.what, Sealed):
                self.view = core.hear(self.view, self._with_reason(notice.what))
        return (before.state, before.world, before.waiting) != (self.view.state, self.view.world, self.view.waiting)

    def _with_reason(self, said: Said) -> Said:
        """A world was broken by somebody else's edit, which says why."""
        page = self.page
        if isinstance(said, Broken) and page is not None and page.broken == said.seal_id:
            return Broken(said.seal_id, page.why)
        return said

    def _must_write(self, now: float) -> bool:
        """Whether something other than the run has to be written: a beat, a lost page, where to beat."""
        if self.page is None:
            return False
        if self._lost_page:
            return now >= self._restore_at
        if self.page.beside and not self.uses_store:
            return True
        return not self.beats_beside and self.is_listed and now >= self.life.beat_at

    def _must_say(self) -> bool:
        """Whether an announcement comes first: so that whoever is at it takes in all of them with one write."""
        return self.beats_beside and self.page is not None and not self._lost_page and self._ticket is None

    def _write_at(self, now: float, *, timed: bool, lost: bool, own: bool) -> float:
        """When it is this node's turn to write."""
        due = [now] if self._must_write(now) else []
        if own:
            due.append(self._own_turn(now))
        if lost:
            due.append(min(self.life.losses_at(), default=now) if not self.life.is_evicted else now)
        if timed and not lost:
            if self._due_since is None:
                self._due_since = now
            due.append(self._due_since + turn_s(self.run, self.view.node.id))
        return min(due, default=now)

    def _own_turn(self, now: float) -> float:
        if self._ticket is None or self.page is None or self._ticket <= self.page.folded:
            return now
        before = sum(ticket > self.page.folded for ticket in self._ahead)
        return self._said_at + min(before * TICKET_TURN_S, LONGEST_TICKET_TURN_S)

    def _edit(self, base: Run, step: Step, heard: Heard | None) -> Plan:
        desired = step.run
        page = self.page or Page(run=base, nonce=self.nonce, beside=self.uses_store)
        me, here = self.view.node.id, live(desired)
        beats: dict[str, int] = {}
        if not self.uses_store or not page.beside:
            beats = {node_id: count for node_id, count in page.beats.items() if node_id in here}
            if me in here:
                beats[me] = max(beats.get(me, 0), self.life.count) + 1
        rings = self.page is None or self._lost_page or _is_news(base, desired) or page.beside != self.uses_store
        breaks = (n.what for n in step.notices if isinstance(n.what, Broken) and not isinstance(n.to, str))
        broken = next(breaks, None)
        edited = msgspec.structs.replace(
            page,
            run=desired,
            clock=self._clock.time,
            beside=page.beside and self.uses_store,
            epoch=page.epoch + rings,
            folded=page.folded if heard is None else max(heard.last, page.folded),
            gaps=page.gaps if heard is None else heard.gaps[-MOST_GAPS:],
            beats=beats,
            broken=broken.seal_id if broken is not None else page.broken,
            why=broken.why[: pages.LONGEST_WHY] if broken is not None else page.why,
        )
        return Plan(write=pages.encode(edited), page=edited, rings=rings, why=step.why)

    # Inside -------------------------------------------------------------------------------------------------------

    def _take(self, data: bytes, page: Page, now: float) -> None:
        if self.page is not None and self.page.nonce != page.nonce:
            self._ticket = None
        if self.page is not None and self.page.beside != page.beside:
            self.life.forget_others()
        self._data, self.page, self._lost_page = data, page, False
        self._due_since = None
        self._clock = clocks.heard(self._clock, page.clock, now, self._longest_gap_s)

    def _is_older(self, page: Page) -> bool:
        """Whether the medium went back in time: this node has read a later edit of the same document."""
        known = self.page
        return known is not None and known.nonce == page.nonce and page.epoch < known.epoch

    def _why_lost(self, node_id: str) -> str:
        if node_id == self.view.node.id:
            return _GIVEN_UP
        return f"nothing was heard of it for {self.settings.heartbeat_timeout_s:.1f} s"

    def _wait_s(self, now: float) -> float:
        time = self._clock.time
        due = [self.life.beat_at - now if self.is_listed else self.settings.heartbeat_interval_s]
        wake_at = transition.wake_at(self.run, time)
        if wake_at is not None:
            due.append(wake_at - time)
        due += [at - now for at in self.life.losses_at()]
        if self.page is not None:
            due.append(self.life.look_in_s(now, self.settings, beside=self.beats_beside))
        return max(min(due), 0.001)

    @property
    def _longest_gap_s(self) -> float:
        """A look later than this after the last one comes after a stall."""
        return 2 * self.settings.heartbeat_interval_s

    def _hear_time(self, sign: str, now: float) -> None:
        _, _, time = sign.partition(":")
        try:
            told = min(float(time or 0.0), 1e9)
        except ValueError:
            return
        self._clock = clocks.heard(self._clock, told, now, self._longest_gap_s)


def _is_news(before: Run, after: Run) -> bool:
    """Whether somebody waits for this change: joins alone ring no bell."""
    return _told(before) != _told(after)


def _told(run: Run) -> tuple[object, ...]:
    seal_id = run.world.seal_id if run.world is not None else ""
    return run.incarnation, run.phase, seal_id, run.told_waiting, run.ending_started
