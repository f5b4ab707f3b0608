"""Editors in a virtual world: one document, no threads, and a clock that the test turns."""

from __future__ import annotations

from collections.abc import Callable

from rallypoint.core.model import Bounds, Node, Reason, Settings
from rallypoint.core.node import State, View
from rallypoint.document.beside import Beside
from rallypoint.document.editor import Editor, Heard
from rallypoint.stores import MemoryStore

FAST = Settings(last_call_s=3.0, heartbeat_interval_s=1.0, heartbeat_timeout_s=5.0, regroup_s=10.0)
STEP_S = 0.05


class Paper:
    """A document that is written by compare-and-set."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.token = 0
        self.writes = 0
        self.is_away = False

    def write(self, data: bytes, token: int) -> bool:
        if token != self.token:
            return False
        self.data, self.token, self.writes = data, self.token + 1, self.writes + 1
        return True


class Writer:
    """A node: an editor, and a clock that started when it liked."""

    def __init__(self, stage: Stage, name: str, bounds: Bounds, settings: Settings, starts_at: float) -> None:
        self.stage, self.name, self.starts_at = stage, name, starts_at
        node = Node(id=f"{name}.1", name=name, store=f"10.0.0.1:{len(stage.writers)}")
        view = View(node=node, bounds=bounds, settings=settings)
        self.editor = Editor("run", view, stage.mint, has_store=stage.store is not None)
        self.is_paused = False
        self.wake_at = 0.0
        self.checked = ""

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
        editor, stage = self.editor, self.stage
        if editor.errand is None and self.view.state in (State.IDLE, State.REFUSED, State.FENCED):
            self.wake_at = stage.now + STEP_S
            return
        if stage.paper.is_away:
            editor.away(self.now())
            self.wake_at = stage.now + STEP_S
            return
        editor.read(stage.paper.data, self.now())
        token = stage.paper.token
        self._look()
        plan = editor.plan(self.now())
        if plan.say is not None:
            assert stage.beside is not None
            assert editor.page is not None
            editor.said(stage.beside.say(editor.page.nonce, plan.say), self.now())
            return
        if plan.write is None:
            self.wake_at = stage.now + min(plan.wait_s, 0.5)
            return
        if editor.page is None and editor.uses_store:
            assert stage.beside is not None
            assert stage.beside.open(editor.nonce)
        elif editor.beats_beside:
            plan = editor.plan(self.now(), self._pending())
        if plan.write is not None and stage.paper.write(plan.write, token):
            editor.written(plan, self.now())

    def _pending(self) -> Heard:
        page, beside = self.editor.page, self.stage.beside
        assert page is not None
        assert beside is not None
        return beside.pending(page.nonce, page.folded, page.gaps)

    def _look(self) -> None:
        editor, page, beside = self.editor, self.editor.page, self.stage.beside
        if page is None:
            return
        if beside is not None and page.beside and editor.uses_store and self.checked != page.nonce:
            if not beside.is_shared(page.nonce):
                editor.not_shared()
            self.checked = page.nonce
        if not editor.beats_beside or beside is None:
            editor.look({i: str(page.beats.get(i, 0)) for i in editor.watched()}, self.now())
            return
        if editor.must_beat(self.now()):
            editor.beat(beside.beat(page.nonce, self.view.node.id, editor.sign, editor.next_sign()), self.now())
        if editor.must_look(self.now()):
            for node_id, sign in editor.look(beside.signs(page.nonce, editor.watched()), self.now()).items():
                by_me = beside.evict(page.nonce, node_id, sign, self.view.node.id)
                editor.given_up(node_id, self.now(), by_me=by_me)


class Stage:
    """Lets writers take turns while virtual time passes."""

    def __init__(self, *, with_store: bool) -> None:
        self.now = 0.0
        self.paper = Paper()
        self.store = MemoryStore() if with_store else None
        self.beside = Beside(self.store, "run") if self.store is not None else None
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
