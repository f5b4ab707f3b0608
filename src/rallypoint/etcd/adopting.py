"""Taking a run over: what lies in etcd at one revision is all that a new leader needs.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from rallypoint.core.events import Joined, Left
from rallypoint.core.model import Closing, Crash, Phase, Reason, Run, Waiter, World
from rallypoint.core.ranks import POLICIES, RankPolicy
from rallypoint.core.table import Table
from rallypoint.etcd.board import Board, Seated
from rallypoint.etcd.leading import Leading, Wish, Word, message_of


class Estate(msgspec.Struct, frozen=True):
    """All that is in etcd of a run at one revision; `shown` is the revision that the board was written at."""

    revision: int
    words: tuple[Word, ...] = ()
    wishes: tuple[Wish, ...] = ()
    board: Board | None = None
    shown: int = 0
    roster: tuple[Seated, ...] = ()


def adopt(
    run_id: str,
    estate: Estate,
    now: float,
    mint: Callable[[], str],
    policies: Mapping[str, RankPolicy] = POLICIES,
) -> Leading:
    """Take a run over from what is in etcd; a last call begins again."""
    board = estate.board
    known: tuple[Word, ...] = ()
    if board is None:
        run = Run(run_id=run_id)
    elif board.phase is Phase.CLOSED:
        run, known = _closed_run(run_id, board, estate, now), tuple(_before(estate.words, estate.shown))
    else:
        run = _run(run_id, board, estate, now)
        folded = board.world.folded if board.world is not None else 0
        # What members said up to then led to the world that they are in.  Who is known to have gone from it is not known.
        known = tuple(
            Word(seated.node.id, b"", seated.created, folded)
            for seated in estate.roster
            if seated.node.id in run.active
        )
    leading = Leading(run, mint, policies, shown=board, known=known)
    leading.take_all(estate.words, estate.wishes, estate.revision, now)
    return leading


def _before(words: Iterable[Word], revision: int) -> Iterable[Word]:
    return (word for word in words if word.written <= revision)


def _closed_run(run_id: str, board: Board, estate: Estate, now: float) -> Run:
    """A closed run: those who were in it are here until their keys are gone, and nobody founds another (rule 1)."""
    assert board.ended is not None, "a closed run knows how it closed"
    stay = [
        message.node for word in _before(estate.words, estate.shown) if isinstance(message := message_of(word), Joined)
    ]
    return Run(
        run_id=run_id,
        phase=Phase.CLOSED,
        incarnation=board.incarnation,
        bounds=board.bounds,
        settings=board.settings,
        round=board.round,
        queue=Table.build((node.id, Waiter(node, arrival)) for arrival, node in enumerate(stay)),
        arrivals=len(stay),
        closing=Closing(board.ended.ending, board.ended.why, now),
    )


def _run(run_id: str, board: Board, estate: Estate, now: float) -> Run:
    """The run as the board has it, before anything that nodes have said since."""
    sealing, roster, world = board.world, estate.roster, None
    if sealing is not None:
        members = tuple(seated.node for seated in roster)
        world = World(board.incarnation, sealing.round, sealing.seal_id, members, now)
    ranks = Table.build((seated.node.id, rank) for rank, seated in enumerate(roster))
    gone = {rank for first, last in board.gone for rank in range(first, min(last + 1, len(roster)))}
    gathering = board.phase is Phase.GATHERING
    return Run(
        run_id=run_id,
        phase=board.phase,
        incarnation=board.incarnation,
        bounds=board.bounds,
        settings=board.settings,
        round=board.round,
        world=world,
        ranks=ranks,
        active=Table.build((node_id, rank) for node_id, rank in ranks.items() if rank not in gone) if gone else ranks,
        finished=Table.build((node_id, -1) for node_id in _finished_before(estate.words, ranks)),
        crashes=Table.build((crash.name, Crash(crash.count, now - crash.ago_s)) for crash in board.crashes),
        regroup_ends=now + board.settings.regroup_s if gathering and world is not None else None,
        told_waiting=board.waiting,
        told_at=now,
    )


def _finished_before(words: Sequence[Word], ranks: Table[str, int]) -> Iterable[str]:
    """Who finished in an earlier world of this run: their word stays, and nobody new is admitted (rule 8)."""
    for word in words:
        message = message_of(word)
        if isinstance(message, Left) and message.reason is Reason.FINISHED and word.node_id not in ranks:
            yield word.node_id
