"""What a node makes of the board, and of what it alone is told: notices, as if the leader had sent them.  Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.core.model import Phase
from rallypoint.core.node import State, View, hear
from rallypoint.core.notices import Broken, Fenced, KeepWaiting, Placed, RunClosed, Said, WaitingCount
from rallypoint.etcd.board import Board, Sealing

_ASKING = (State.WAITING, State.SPARE)


def notices(view: View, board: Board | None, told: Said | None) -> Iterator[Said]:
    """Everything that follows, in the order in which it happened.

    A place counts once the board names its world; whatever else a node is told counts at once.
    """
    if told is not None and not isinstance(told, Placed):
        yield told
    if board is None:
        return
    world = board.world
    if board.ended is not None:
        if view.incarnation == board.incarnation:
            yield RunClosed(board.incarnation, board.ended.ending, board.ended.why)
        return
    seal_id = view.world.seal_id if view.world is not None else ""
    placed = _place(view, world, told)
    if placed is not None:
        yield placed
        seal_id = placed.seal_id
    elif view.state is State.WAITING:  # a spare has been told what it waits for
        yield KeepWaiting(board.incarnation, world.round if world is not None else 0, board.why)
    if seal_id:
        yield from _of_my_world(view, seal_id, board)


def _place(view: View, world: Sealing | None, told: Said | None) -> Placed | None:
    """The node's place in the world that the board names, if it takes it.

    One that it has not asked for is none: the node goes on in its own world, as far as it knows, and must hear that this
    is over.  So it is where a run was deleted and founded anew from words that were said in the one before.
    """
    if not isinstance(told, Placed) or world is None or told.seal_id != world.seal_id:
        return None
    return told if hear(view, told) is not view else None


def _of_my_world(view: View, seal_id: str, board: Board) -> Iterator[Said]:
    """What became of the world that the node is in."""
    world = board.world
    if world is not None and world.seal_id == seal_id:
        if board.phase is Phase.GATHERING:
            yield Broken(seal_id, board.broken or f"round {world.round} is broken")
        else:
            yield WaitingCount(seal_id, board.waiting)
    elif view.incarnation == board.incarnation:
        came = f"round {world.round} came after it" if world is not None else "it is over"
        yield Broken(seal_id, came)
    else:
        yield Fenced(seal_id, "the run was founded anew without this node")


def lacks_place(view: View, board: Board | None, told: Said | None) -> bool:
    """Whether the board names a world that the node may be in, while its place has not arrived: it must be looked up.

    The place is written before the board, but nothing makes it arrive first.
    """
    if board is None or board.world is None or board.ended is not None or view.state not in _ASKING:
        return False
    known = told.seal_id if isinstance(told, Placed) else view.world.seal_id if view.world is not None else ""
    return known != board.world.seal_id


def lacks_word(view: View, board: Board | None, told: Said | None) -> bool:
    """Whether the run has ended while the node waits for its first word: it may have been told to stand by just before.

    That was written first, but nothing makes it arrive first.
    """
    return board is not None and board.ended is not None and view.state is State.WAITING and told is None
