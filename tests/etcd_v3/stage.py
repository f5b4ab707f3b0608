"""A stage for the leader hosting without etcd: keys with revisions, nodes and leaders that may stop at any step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from rallypoint.core import codec
from rallypoint.core import node as core
from rallypoint.core.events import CloseAsked, Joined
from rallypoint.core.model import Bounds, Node, Phase, Reason, Settings
from rallypoint.core.node import State, View
from rallypoint.core.notices import Fenced, Placed, Said
from rallypoint.etcd.adopting import Estate, adopt
from rallypoint.etcd.board import Board, Seated, decode_board, decode_roster, encode_board
from rallypoint.etcd.following import lacks_place, notices
from rallypoint.etcd.leading import Draft, Gone, Leading, Saying, Wish, Word

RUN = "run"
BOUNDS = Bounds(2, 4)
SETTINGS = Settings(last_call_s=5.0, regroup_s=8.0, closed_ttl_s=3.0, crash_pause_s=0.0)


@dataclass
class Kept:
    """What lies under a key."""

    value: bytes
    created: int
    written: int


@dataclass
class Etcd:
    """Keys with revisions, and all that ever happened to them."""

    revision: int = 1
    keys: dict[str, Kept] = field(default_factory=dict)
    history: list[tuple[int, str, bytes | None]] = field(default_factory=list)

    def put(self, key: str, value: bytes) -> int:
        self.revision += 1
        created = self.keys[key].created if key in self.keys else self.revision
        self.keys[key] = Kept(value, created, self.revision)
        self.history.append((self.revision, key, value))
        return self.revision

    def delete(self, key: str) -> None:
        if self.keys.pop(key, None) is not None:
            self.revision += 1
            self.history.append((self.revision, key, None))

    def since(self, revision: int, prefix: str) -> Iterator[tuple[int, str, bytes | None]]:
        return ((at, key, value) for at, key, value in self.history if at > revision and key.startswith(prefix))


class StoppedError(Exception):
    """A process was killed between two writes."""


class Stage:
    """One run: its nodes, its leader, and the dice."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.etcd = Etcd()
        self.now = 100.0
        self.actors: dict[str, Actor] = {}
        self.leading: Leading | None = None
        self.leader_key = 0
        self.leader_heard = 0
        self.shown = 0
        self.leader_name = ""
        self.boards: list[Board] = []
        self.ids = 0
        self.log: list[str] = []

    def mint(self) -> str:
        return f"{self.dice.getrandbits(48):012x}"

    # Nodes --------------------------------------------------------------------------------------------------------

    def arrive(self) -> Actor:
        self.ids += 1
        actor = Actor(self, Node(id=f"n{self.ids}.x", name=f"n{self.ids}", store=f"h:{self.ids}"))
        self.actors[actor.id] = actor
        actor.join()
        return actor

    def die(self, actor: Actor) -> None:
        """kill -9; its lease ends at some time after."""
        actor.alive = False
        if self.leader_name == actor.id:
            self.leading = None

    def expire(self, actor: Actor) -> None:
        self.etcd.delete(f"in/{actor.id}")
        del self.actors[actor.id]
        if self.leader_name == actor.id:
            self.leading, self.leader_name = None, ""

    # The leader ---------------------------------------------------------------------------------------------------

    def elect(self) -> None:
        here = [actor for actor in self.actors.values() if actor.alive and actor.takes_part]
        if self.leader_name or not here:
            return
        self.leader_name = self.dice.choice(here).id
        self.adopt()

    def adopt(self) -> None:
        self.leading = adopt(RUN, self.estate(), self.now, self.mint)
        self.leader_heard = self.etcd.revision
        self.shown = self.etcd.keys["board"].written if "board" in self.etcd.keys else 0

    def estate(self) -> Estate:
        words, wishes = [], []
        for key, kept in self.etcd.keys.items():
            if key.startswith("in/"):
                words.append(Word(key[3:], kept.value, kept.created, kept.written))
            elif key.startswith("wish/"):
                wishes.append(Wish(key[5:], kept.value, kept.written))
        board_kept = self.etcd.keys.get("board")
        board = decode_board(board_kept.value, RUN) if board_kept else None
        roster: tuple[Seated, ...] = ()
        if board is not None and board.world is not None and board.ended is None:
            world = board.world
            parts = [self.etcd.keys[f"world/{world.seal_id}/{n}"].value for n in range(world.parts)]
            roster = decode_roster(parts, world, RUN)
        shown = board_kept.written if board_kept else 0
        return Estate(self.etcd.revision, tuple(words), tuple(wishes), board, shown, roster)

    def lead(self, *, stops_after: int | None = None) -> None:
        """Take what was said, tick, write; perhaps be killed after so many writes."""
        leading = self.leading
        if leading is None:
            return
        sayings: list[Saying] = []
        for at, key, value in self.etcd.since(self.leader_heard, ""):
            if key.startswith("in/"):
                if value is None:
                    sayings.append(Gone(key[3:], at))
                else:
                    kept = self.etcd.keys.get(key)
                    created = kept.created if kept else at
                    sayings.append(Word(key[3:], value, created, at))
            elif key.startswith("wish/") and value is not None:
                sayings.append(Wish(key[5:], value, at))
        self.leader_heard = self.etcd.revision
        leading.take(sayings, self.now)
        leading.tick(self.now)
        draft = leading.draft(self.now)
        if draft is None:
            return
        try:
            self.write(draft, stops_after)
        except StoppedError:
            self.die(self.actors[self.leader_name])
            return
        leading.written(draft, self.now)
        leading.turns.clear()

    def write(self, draft: Draft, stops_after: int | None) -> None:
        writes = 0

        def step() -> None:
            nonlocal writes
            if stops_after is not None and writes >= stops_after:
                raise StoppedError
            writes += 1

        for number, part in enumerate(draft.parts):
            step()
            self.etcd.put(f"world/{draft.seal_id}/{number}", part)
        for node_id, said in draft.told.items():
            step()
            self.etcd.put(f"told/{node_id}", codec.encode_message(said))
        if draft.board is not None:
            step()
            self.shown = self.etcd.put("board", encode_board(draft.board))
            self.boards.append(draft.board)
        for node_id in draft.departed:
            step()
            self.etcd.delete(f"in/{node_id}")
            self.etcd.delete(f"told/{node_id}")
        for token in draft.granted:
            step()
            self.etcd.delete(f"wish/{token}")

    def wish_to_close(self, actor: Actor) -> None:
        asked = CloseAsked(by=actor.id, incarnation=actor.view.incarnation)
        self.etcd.put(f"wish/{self.mint()}", codec.encode_message(asked))


class Actor:
    """A node, as its link would play it."""

    def __init__(self, stage: Stage, node: Node) -> None:
        self.stage = stage
        self.view = View(node=node, bounds=BOUNDS, settings=SETTINGS)
        self.alive = True
        self.board: Board | None = None
        self.told: Said | None = None
        self.heard = 0
        self.held: list[Placed] = []

    @property
    def id(self) -> str:
        return self.view.node.id

    @property
    def takes_part(self) -> bool:
        return self.view.state in (State.WAITING, State.SPARE, State.HOLDS, State.BROKEN, State.FINISHED)

    def join(self) -> None:
        self.view, message = core.join(self.view, self.stage.now, 1000.0)
        self.say(message)

    def say(self, message: Joined | object) -> None:
        self.stage.etcd.put(f"in/{self.id}", codec.encode_message(message))  # type: ignore[arg-type]
        if not self.heard:
            self.heard = self.stage.etcd.revision
            kept = self.stage.etcd.keys.get("board")
            if kept is not None:
                self.board = decode_board(kept.value, RUN)
                self.hear()

    def leave(self, reason: Reason) -> None:
        self.view, left = core.leave(self.view, reason)
        self.say(left)

    def listen(self) -> None:
        """Hear what arrived: what concerns this node alone may come after the board that was written later."""
        arrived = list(self.stage.etcd.since(self.heard, ""))
        self.heard = self.stage.etcd.revision
        boards = [decode_board(value, RUN) for _, key, value in arrived if key == "board" and value]
        told = [codec.decode_notice(value) for _, key, value in arrived if key == f"told/{self.id}" and value]
        late = self.stage.dice.random() < 0.3
        for said in () if late else told:
            self.told = said
            self.hear()
        for board in boards:
            self.board = board
            self.hear()
        for said in told if late else ():
            self.told = said
            self.hear()

    def hear(self) -> None:
        if lacks_place(self.view, self.board, self.told):
            kept = self.stage.etcd.keys.get(f"told/{self.id}")
            if kept is not None:
                self.told = codec.decode_notice(kept.value)
        for said in list(notices(self.view, self.board, self.told)):
            before = self.view.world
            self.view = core.hear(self.view, said)
            if self.view.world is not before and self.view.world is not None:
                self.held.append(self.view.world)
        if not isinstance(self.told, Placed):
            self.told = None

    def lose_lease(self) -> None:
        """etcd has given it up though it lives."""
        self.stage.etcd.delete(f"in/{self.id}")
        if self.view.world is not None:
            self.view = core.hear(self.view, Fenced(self.view.world.seal_id, "its lease ended"))


__all__ = ["BOUNDS", "RUN", "SETTINGS", "Actor", "Phase", "Stage"]
