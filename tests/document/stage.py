"""Editors in a virtual world: one document, no threads, and a clock that the test turns."""

from __future__ import annotations

import random
from collections.abc import Callable

from rallypoint.core.model import Bounds, Node, Reason, Settings
from rallypoint.core.node import State, View
from rallypoint.document.beside import Beside
from rallypoint.document.cycle import Cycle, carry_out
from rallypoint.document.editor import Editor
from rallypoint.document.pace import Pace
from rallypoint.errors import RendezvousConnectionError
from rallypoint.stores import MemoryStore

FAST = Settings(last_call_s=3.0, heartbeat_interval_s=1.0, heartbeat_timeout_s=5.0, regroup_s=10.0)
STEP_S = 0.05
LONGEST_WAIT_S = 0.5


class Paper:
    """A document that is written by compare-and-set."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.token = 0
        self.writes = 0
        self.is_away = False

    def get_state(self) -> tuple[bytes, int] | None:
        if self.is_away:
            raise RendezvousConnectionError("the paper is away")
        return None if self.data is None else (self.data, self.token)

    def set_state(self, state: bytes, token: int | None = None) -> tuple[bytes, int, bool] | None:
        stands = token == (None if self.data is None else self.token)
        if stands:
            self.data, self.token, self.writes = state, self.token + 1, self.writes + 1
        return None if self.data is None else (self.data, self.token, stands)


class Writer:
    """A node: an editor, and a clock that started when it liked."""

    def __init__(self, stage: Stage, name: str, bounds: Bounds, settings: Settings, starts_at: float) -> None:
        self.stage, self.name, self.starts_at = stage, name, starts_at
        node = Node(id=f"{name}.1", name=name, store=f"10.0.0.1:{len(stage.writers)}")
        view = View(node=node, bounds=bounds, settings=settings)
        self.editor = Editor("run", view, stage.mint, has_store=stage.store is not None)
        self.is_paused = False
        self.wake_at = 0.0
        self._cycle = Cycle(
            self.editor,
            stage.paper,
            stage.beside,
            clock=self.now,
            chance=random.Random(name),
            pace=Pace(LONGEST_WAIT_S),
            told=lambda before, after, why: None,
        )

    @property
    def view(self) -> View:
        return self.editor.view

    @property
    def rank(self) -> int | None:
        world = self.view.world
        return world.rank if world is not None and self.view.state is State.HOLDS else None

    def now(self) -> float:
        return self.stage.now + self.starts_at

    def turn(self) -> None:
        """One look at the document and what follows from it, all in one moment."""
        wait_s = STEP_S
        if self.editor.errand is not None or self.view.state not in (State.IDLE, State.REFUSED, State.FENCED):
            try:
                wait_s = carry_out(self._cycle.turn())
            except RendezvousConnectionError:
                self.editor.away(self.now())
        self.wake_at = self.stage.now + min(wait_s, LONGEST_WAIT_S)


class Stage:
    """Lets writers take turns while virtual time passes."""

    def __init__(self, *, with_store: bool) -> None:
        self.now = 0.0
        self.paper = Paper()
        self.store = MemoryStore() if with_store else None
        self.beside = Beside(self.store, "run")
        self.writers: list[Writer] = []
        self._minted = 0

    def mint(self) -> str:
        self._minted += 1
        return f"m{self._minted}"

    def writer(
        self, name: str, nodes: tuple[int, int] = (2, 2), settings: Settings = FAST, starts_at: float = 0.0
    ) -> Writer:
        self.writers.append(Writer(self, name, Bounds(*nodes), settings, starts_at))
        return self.writers[-1]

    def join(self, *names: str, nodes: tuple[int, int] = (2, 2), timeout_s: float = 600.0) -> list[Writer]:
        made = [self.writer(name, nodes) for name in names]
        for writer in made:
            writer.editor.join(writer.now(), timeout_s)
        return made

    def again(self, *writers: Writer) -> None:
        for writer in writers:
            writer.editor.join(writer.now(), 600.0)
            writer.wake_at = 0.0

    def leave(self, writer: Writer, reason: Reason) -> None:
        writer.editor.leave(reason)
        writer.wake_at = 0.0

    def beats_beside(self, writer: Writer) -> bool:
        return writer.editor.beats_beside

    def kill(self, writer: Writer) -> None:
        self.writers.remove(writer)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            for writer in [*self.writers]:
                if not writer.is_paused and writer.wake_at <= self.now:
                    writer.turn()
            self.now += STEP_S

    def until(self, is_so: Callable[[], bool], at_most_s: float = 60.0) -> float:
        """Let time pass until something is so; how much did."""
        started = self.now
        while not is_so():
            assert self.now - started < at_most_s, [(w.name, w.view) for w in self.writers]
            self.pass_time(STEP_S)
        return self.now - started


def worlds(*writers: Writer) -> set[str]:
    """The seal ids that writers hold; empty text for who holds none."""
    return {w.view.world.seal_id if w.view.state is State.HOLDS and w.view.world is not None else "" for w in writers}


def hold_one_world(*writers: Writer) -> bool:
    found = worlds(*writers)
    return len(found) == 1 and "" not in found
