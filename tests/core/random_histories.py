"""Random histories: a server and a few nodes that obey one order after another.

The nodes are `View`s, so whatever they say is what real nodes would say; messages may be lost in either direction
and repeated, and the server may forget everything or come back from its document.  It keeps a record, as rule 17c
demands, and another server may take over with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from hypothesis import strategies as st

from rallypoint import record
from rallypoint.client import view as views
from rallypoint.client.view import State, View
from rallypoint.core import recovery, transition
from rallypoint.core.changes import Step
from rallypoint.core.events import Event, Lost, TimePassed
from rallypoint.core.model import Run
from rallypoint.messages.requests import CloseAsked, NodeMessage
from rallypoint.messages.types import Bounds, Ending, Node, OnGiveUp, Reason, Role, Settings
from rallypoint.server.run_state import spell_out

NODES = 5
VERBS = (
    "join",
    "join",
    "join",
    "join",
    "announce",
    "announce",
    "announce",
    "wait",
    "wait",
    "lose",
    "lose",
    "finish",
    "withdraw",
    "give up",
    "repeat",
    "close",
    "forget",
    "take over",
)
KEEPING = tuple(verb for verb in VERBS if verb != "forget")
"""What happens where the record is never lost."""
# Fractions of powers of two: adding and subtracting them is exact, so that times can be compared.
MOMENT_S = 1 / 64
WAITS_S = (0.0, 0.5, 1.0, 7.0, 31.0, 61.0, 700.0)


class Order(msgspec.Struct, frozen=True):
    """One thing that happens, to one node; `deaf` means that nobody hears the answers."""

    verb: str
    who: int
    wait_s: float
    deaf: bool


class Moment(msgspec.Struct, frozen=True):
    """One step of a history: the run before, what happened and when, and what came of it."""

    before: Run
    event: Event
    now: float
    step: Step


class History:
    """Plays orders and keeps every moment."""

    def __init__(self, bounds: Bounds, settings: Settings) -> None:
        self.bounds, self.settings = bounds, settings
        self.run = Run(run_id="run")
        self.now = 0.0
        self.lives = 0
        self.takeovers = 0
        self.record: bytes | None = None
        self.views: dict[int, View] = {}
        self.last_words: dict[int, NodeMessage] = {}
        self.moments: list[Moment] = []

    def obey(self, order: Order) -> None:
        """Let it happen."""
        who, view = order.who, self.views.get(order.who)
        self.now += order.wait_s if order.verb == "wait" else MOMENT_S
        if order.verb == "wait":
            self._take(TimePassed(), order.deaf)
        elif order.verb == "forget":
            self.run = recovery.blank("run", self.now, self.now, self.settings.hold_s)
            self.record = None
            self.last_words.clear()
        elif order.verb == "take over":
            self._take_over()
        elif order.verb == "join":
            self._join(who, order.deaf)
        elif view is None:
            return
        elif order.verb == "lose":
            self._take(Lost(view.node.id, "it fell silent"), order.deaf)
        elif order.verb == "repeat" and who in self.last_words:
            self._take(self.last_words[who], order.deaf)
        elif order.verb == "close":
            self._take(CloseAsked(view.node.id, ending=Ending.FAILED, incarnation=self.run.incarnation), order.deaf)
        elif order.verb == "announce":
            said = views.announce(view)
            if said is not None:
                self._say(who, said, order.deaf)
        elif order.verb in ("finish", "withdraw", "give up"):
            self._leave(who, view, order)

    def _join(self, who: int, deaf: bool) -> None:
        view = self.views.get(who)
        if view is None or view.state in (State.FENCED, State.REFUSED, State.CLOSED, State.FINISHED, State.IDLE):
            self.lives += 1
            role = Role.SPARE if who == NODES - 1 else Role.MEMBER
            view = View(
                node=Node(id=f"n{who}.{self.lives}", name=f"n{who}", wanted_rank=who % 3, role=role),
                bounds=self.bounds,
                settings=self.settings,
            )
        self.views[who], said = views.join(view, self.now, 600.0)
        self._say(who, said, deaf)

    def _leave(self, who: int, view: View, order: Order) -> None:
        reason = {"finish": Reason.FINISHED, "withdraw": Reason.WITHDREW, "give up": Reason.GAVE_UP}[order.verb]
        self.views[who], said = views.leave(view, reason)
        self._say(who, said, order.deaf)

    def _take_over(self) -> None:
        """Another server starts with the record, on a clock of its own, and on new connections."""
        self.now += 1000.0
        self.takeovers += 1
        self.last_words.clear()
        if self.record is None:
            self.run = recovery.blank("run", self.now, self.now, self.settings.hold_s)
        else:
            self.run = record.restored(record.decode(self.record), self.now, self.settings.hold_s)

    def _say(self, who: int, said: NodeMessage, deaf: bool) -> None:
        self.last_words[who] = said
        self._take(said, deaf)

    def _take(self, event: Event, deaf: bool) -> None:
        step = transition.step(self.run, event, self.now, str(len(self.moments)))
        self.moments.append(Moment(self.run, event, self.now, step))
        self.run = step.run
        if step.durability:
            written = record.of(self.run, epoch=self.takeovers, write_id=str(len(self.moments)))
            self.record = record.encode(written)
        by_id = {view.node.id: who for who, view in self.views.items()}
        for node_id, what in (sent for notice in step.notices for sent in spell_out(notice)):
            if not deaf and node_id in by_id:
                who = by_id[node_id]
                self.views[who] = views.hear(self.views[who], what)


def play(bounds: Bounds, settings: Settings, orders: Iterable[Order]) -> History:
    """The history that these orders make."""
    history = History(bounds, settings)
    for order in orders:
        history.obey(order)
    return history


def histories(verbs: Sequence[str] = VERBS) -> st.SearchStrategy[History]:
    """Random histories of a few nodes, to which these things happen."""
    order = st.builds(
        Order,
        verb=st.sampled_from(verbs),
        who=st.integers(0, NODES - 1),
        wait_s=st.sampled_from(WAITS_S),
        deaf=st.sampled_from((False, False, False, True)),
    )
    settings = st.builds(
        Settings,
        last_call_s=st.sampled_from((0.0, 30.0)),
        admit_delay_s=st.sampled_from((0.0, 10.0)),
        on_give_up=st.sampled_from(OnGiveUp),
        rank_policy=st.sampled_from(("sticky", "arrival")),
    )
    bounds = st.sampled_from((Bounds(1, 1), Bounds(2, 2), Bounds(1, 3), Bounds(2, 3), Bounds(2, 4)))
    return st.builds(play, bounds, settings, st.lists(order, min_size=10, max_size=40))
