"""The run as its leader sees it, and what of it the others are still to be told.  Sans-IO.

It takes what nodes said, in the order of etcd's revisions, runs the core, and drafts what to write.  Taking the same word
twice changes nothing; so a new leader just takes all that lies in etcd, and goes on where the old one stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from rallypoint.core import codec, explain, transition
from rallypoint.core.changes import Step
from rallypoint.core.events import CloseAsked, Event, Joined, Left, Lost, Message
from rallypoint.core.model import Phase, Reason, Run, World
from rallypoint.core.notices import Broken, KeepWaiting, Notice, Refused, Said, Sealed, place
from rallypoint.core.ranks import POLICIES, RankPolicy
from rallypoint.errors import RendezvousStateError
from rallypoint.etcd.board import Board, Crashes, Ended, Sealing, Seated, encode_roster, spans
from rallypoint.etcd.heirs import heirs

MOST_CRASHES = 64
REMARK_INTERVAL_S = 1.0
REMARKS_A_SECOND = 250
"""How often the board changes at most for the sake of a sentence alone, and how many nodes are sent it in a second."""

EXPIRED = "its lease ended"


class Word(msgspec.Struct, frozen=True):
    """What lies under one node's key: its message, and the revisions that it was created and last written at."""

    node_id: str
    value: bytes
    created: int
    written: int


class Wish(msgspec.Struct, frozen=True):
    """Somebody's wish to close the run."""

    token: str
    value: bytes
    written: int


class Gone(msgspec.Struct, frozen=True):
    """A node's key is gone."""

    node_id: str
    at: int


Saying = Word | Wish | Gone


class Turn(msgspec.Struct, frozen=True):
    """Something that happened: the run before and after, why, and whom it concerned."""

    before: Run
    after: Run
    why: str
    losses: tuple[Lost, ...] = ()
    leave: Left | None = None


class Draft(msgspec.Struct, frozen=True):
    """What is to be written, in this order: the parts of a roster, what single nodes are told, the board.

    `departed` are the nodes whose keys nobody needs any more, `granted` the wishes that were taken.
    """

    seal_id: str
    parts: tuple[bytes, ...]
    told: Mapping[str, Said]
    board: Board | None
    departed: tuple[str, ...]
    granted: tuple[str, ...]


class Leading:
    """A run in its leader's hands.

    `mint` gives a fresh random text with each call.  `shown` is the board as it is, and `known` are the words that an
    earlier leader has taken.  `leader` is the id of the node that leads.
    """

    def __init__(
        self,
        run: Run,
        mint: Callable[[], str],
        policies: Mapping[str, RankPolicy] = POLICIES,
        *,
        shown: Board | None = None,
        known: Iterable[Word] = (),
    ) -> None:
        self.run = run
        self.leader = ""
        self.lease = shown.lease if shown is not None else 0
        self.is_shown = shown is not None and shown.ended is None  # whether etcd has a board of this run, which goes on
        self.folded = 0
        self.turns: list[Turn] = []
        self._mint = mint
        self._policies = policies
        self._created: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._read_at = 0  # all that lay in etcd then was taken; news of what was said and gone by then come too late
        self._sealing: Sealing | None = shown.world if shown is not None else None
        self._parts: tuple[bytes, ...] = ()
        self._told: dict[str, Said] = {}
        self._departed: dict[str, None] = {}
        self._granted: dict[str, None] = {}
        self._broken = shown.broken if shown is not None else ""
        self._shown = shown
        self._shown_at = float("-inf")
        self._stepped_at = float("-inf")
        for word in known:
            self._known(word)

    # What nodes say -----------------------------------------------------------------------------------------------

    def take(self, sayings: Iterable[Saying], now: float) -> None:
        """What was said, in the order of its revisions."""
        for saying in sayings:
            if isinstance(saying, Gone):
                self._take_gone([saying], now)
            elif isinstance(saying, Wish):
                self._take_wish(saying, now)
            else:
                self._take_word(saying, now)

    def take_all(self, words: Sequence[Word], wishes: Sequence[Wish], revision: int, now: float) -> None:
        """All that lies in etcd at one revision: who is not there any more is gone."""
        here = {word.node_id for word in words}
        gone = [Gone(node_id, revision) for node_id in self._written if node_id not in here]
        self._take_gone(gone, now)
        said: list[Word | Wish] = [*words, *wishes]
        said.sort(key=_written)
        self.take(said, now)
        self.folded, self._read_at = max(self.folded, revision), revision

    def unsaid(self, words: Iterable[Word]) -> list[Left]:
        """The last words of those who have finished that are not among these, though they ought to be (rule 8)."""
        said = {word.node_id for word in words}
        seal_id = self.run.world.seal_id if self.run.world is not None else ""
        return [Left(node_id, Reason.FINISHED, seal_id) for node_id in self.run.finished if node_id not in said]

    def restore(self, words: Sequence[Word], wishes: Sequence[Wish], revision: int, now: float) -> None:
        """What was written of the run is gone from etcd, and with it last words, which were said anew: all is to be written.

        Who has a place is told it once more; what other nodes were told they have heard.
        """
        for word in words:
            if word.node_id in self.run.finished:
                self._known(word)
                self._departed.pop(word.node_id, None)
        self.take_all(words, wishes, revision, now)
        self._shown = None
        world = self.run.world
        if world is not None and self._sealing is not None and self.run.phase is not Phase.CLOSED:
            self._parts = tuple(encode_roster(self._seated(world)))
            self._sealing = msgspec.structs.replace(self._sealing, parts=len(self._parts))
            for node_id, rank in self.run.active.items():
                self._told.setdefault(node_id, place(world, rank))

    def tick(self, now: float) -> None:
        """Time passed; due whenever `wake_at` says so."""
        self._done(transition.time_passed(self.run, (), now, self._mint(), self._policies), now)

    def wake_at(self) -> float | None:
        """When `tick` is due next, be it in the past; None where only a word can change anything.

        What fell due since the last step, while the leader was writing, is due still.
        """
        return transition.wake_at(self.run, self._stepped_at)

    def _take_word(self, word: Word, now: float) -> None:
        node_id = word.node_id
        if word.written <= max(self._written.get(node_id, 0), self._read_at):
            return
        if self._created.get(node_id, word.created) != word.created:
            self._take_gone([Gone(node_id, word.created)], now)
        self._known(word)
        try:
            message = codec.decode_message(word.value)
        except RendezvousStateError as exc:
            self._told[node_id] = Refused(f"what this node wrote into etcd is no message: {exc}"[:4096])
            return
        if not isinstance(message, Joined | Left) or _speaker(message) != node_id:
            self._told[node_id] = Refused("what lies under this node's key in etcd is not this node's")
            return
        if isinstance(message, Joined):
            self._departed.pop(node_id, None)  # who is back under its old name is not cleared away
        if isinstance(message, Left) and (message.reason is not Reason.FINISHED or self.run.phase is Phase.CLOSED):
            self._departed[node_id] = None
        self._step(message, now)

    def _known(self, word: Word) -> None:
        """This word was taken, now or by an earlier leader."""
        self._created[word.node_id], self._written[word.node_id] = word.created, word.written
        self.folded = max(self.folded, word.written)

    def _take_wish(self, wish: Wish, now: float) -> None:
        if wish.token in self._granted or wish.written <= self._read_at:
            return
        self._granted[wish.token] = None
        message = message_of(wish)
        if isinstance(message, CloseAsked):
            self._step(message, now)

    def _take_gone(self, gone: Sequence[Gone], now: float) -> None:
        """All of them together, so that no world is sealed with one of them."""
        losses = []
        for one in gone:
            if one.at > self._written.get(one.node_id, one.at):
                losses.append(Lost(one.node_id, EXPIRED))
                del self._created[one.node_id], self._written[one.node_id]
                self._departed[one.node_id] = None
            self.folded = max(self.folded, one.at)
        if losses:
            step = transition.time_passed(self.run, losses, now, self._mint(), self._policies)
            self._done(step, now, tuple(losses))

    def _step(self, event: Event, now: float) -> None:
        leave = event if isinstance(event, Left) else None
        self._done(transition.step(self.run, event, now, self._mint(), self._policies), now, (), leave)

    def _done(self, step: Step, now: float, losses: tuple[Lost, ...] = (), leave: Left | None = None) -> None:
        if step.run is not self.run or losses or leave is not None:
            self.turns.append(Turn(self.run, step.run, step.why, losses, leave))
        self.run, self._stepped_at = step.run, now
        for notice in step.notices:
            self._note(notice)

    def _note(self, notice: Notice) -> None:
        what = notice.what
        if isinstance(what, Sealed):
            world = what.world
            self._parts = tuple(encode_roster(self._seated(world)))
            self._sealing = Sealing(world.seal_id, world.round, world.size, world.store, len(self._parts), self.folded)
            self._broken = ""
            for rank, node in enumerate(world.members):
                self._told[node.id] = what.place(rank)
        elif isinstance(what, Broken) and not isinstance(notice.to, str):
            self._broken = what.why
        elif isinstance(notice.to, str) and (not isinstance(what, KeepWaiting) or notice.to in self.run.paused):
            # What all of those who wait are told stands on the board.
            self._told[notice.to] = what

    def _seated(self, world: World) -> Iterable[Seated]:
        return (Seated(node, self._created.get(node.id, 0)) for node in world.members)

    # What is to be written ----------------------------------------------------------------------------------------

    def draft(self, now: float) -> Draft | None:
        """What is to be written now; None where there is nothing."""
        board = self._board(now) if self.run.incarnation else None
        due = board is not None and (self._is_news(board) or self._remark_due(board, now))
        if not due and not self._told and not self._granted:
            return None
        return Draft(
            seal_id=self._sealing.seal_id if self._sealing is not None else "",
            parts=self._parts,
            told=dict(self._told),
            board=board if due else None,
            departed=tuple(self._departed),
            granted=tuple(self._granted),
        )

    def _is_news(self, board: Board) -> bool:
        return self._shown is None or _news(board) != _news(self._shown)

    def _remark_due(self, board: Board, now: float) -> bool:
        shown = self._shown
        assert shown is not None, "the first board is news"
        return _remarks(board) != _remarks(shown) and now >= self._next_remark

    def written(self, draft: Draft, now: float) -> None:
        """All of a draft is in etcd."""
        self._parts = ()
        for node_id, said in draft.told.items():
            if self._told.get(node_id) is said:
                del self._told[node_id]
        for token in draft.granted:
            self._granted.pop(token, None)
        for node_id in draft.departed:
            self._departed.pop(node_id, None)
        if draft.board is not None:
            self._shown, self._shown_at = draft.board, now
            self.is_shown = draft.board.ended is None

    def remark_at(self, now: float) -> float | None:
        """When something that is not urgent may be written; None where there is nothing."""
        if self._shown is None or not self.run.incarnation:
            return None
        return self._next_remark if _remarks(self._board(now)) != _remarks(self._shown) else None

    @property
    def _next_remark(self) -> float:
        return self._shown_at + max(REMARK_INTERVAL_S, self.run.live / REMARKS_A_SECOND)

    def _board(self, now: float) -> Board:
        run = self.run
        closing = run.closing
        return Board(
            token=self._mint(),
            lease=self.lease,
            phase=run.phase,
            incarnation=run.incarnation,
            bounds=run.bounds,
            settings=run.settings,
            round=run.round,
            world=self._sealing if run.world is not None else None,
            broken=self._broken if run.phase is Phase.GATHERING else "",
            waiting=run.told_waiting,
            finished=len(run.finished),
            why=_remark(run, now),
            ended=Ended(closing.ending, closing.why) if closing is not None else None,
            successors=heirs(run, self.leader),
            crashes=_crashes(run, now),
            gone=_gone(run),
        )


def _written(said: Word | Wish) -> int:
    return said.written


def message_of(said: Word | Wish) -> Message | None:
    """What was said; None where it cannot be read."""
    try:
        return codec.decode_message(said.value)
    except RendezvousStateError:
        return None


def _speaker(message: Joined | Left) -> str:
    return message.node.id if isinstance(message, Joined) else message.node_id


def _news(board: Board) -> Board:
    """What of a board is news: all but its sentence, who may succeed, who has gone, and how long ago crashes were."""
    crashes = tuple(Crashes(crash.name, crash.count, 0.0) for crash in board.crashes)
    return msgspec.structs.replace(board, token="", why="", successors=(), gone=(), crashes=crashes)


def _remarks(board: Board) -> tuple[object, ...]:
    """What of a board may wait a little, because it changes often: everybody is sent all of it."""
    return _timeless(board.why), board.successors, board.gone


def _timeless(why: str) -> str:
    """A sentence without its times: that they pass is no news."""
    return re.sub(r"\d+\.\d s", "… s", why)


def _crashes(run: Run, now: float) -> tuple[Crashes, ...]:
    latest = sorted(run.crashes.items(), key=lambda item: -item[1].last)[:MOST_CRASHES]
    return tuple(Crashes(name, crash.count, max(now - crash.last, 0.0)) for name, crash in latest)


def _gone(run: Run) -> tuple[tuple[int, int], ...]:
    """Which ranks of a broken world are neither awaited nor back nor done."""
    world = run.world
    if world is None or run.phase is not Phase.GATHERING or len(run.active) + len(run.returned) >= world.size:
        return ()
    here = (run.active, run.returned, run.finished)
    return spans(rank for rank, node in enumerate(world.members) if not any(node.id in table for table in here))


def _remark(run: Run, now: float) -> str:
    """What those who wait are told (rule 11)."""
    world = run.current
    if world is not None:
        full = world.size >= run.bounds.max or run.ending_started
        return explain.standing_by(run) if full else explain.admission(run, now)
    return transition.situation(run, now)
