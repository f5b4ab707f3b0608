"""What a new leader makes of what it finds, without etcd."""

from __future__ import annotations

from itertools import count

import pytest

from rallypoint.core import codec
from rallypoint.core.events import Joined
from rallypoint.core.model import Bounds, Node, Phase, Run, Settings
from rallypoint.etcd.adopting import Estate, adopt
from rallypoint.etcd.board import Board, decode_roster
from rallypoint.etcd.leading import EXPIRED, Leading, Word

LAST_CALL_S = 1.0

_numbers = count()


def mint() -> str:
    return f"m{next(_numbers)}"


def joins(name: str, created: int, written: int = 0) -> Word:
    joined = Joined(Node(id=name, name=name, store=f"h:{name}"), Bounds(2, 3), Settings(last_call_s=LAST_CALL_S))
    return Word(name, codec.encode_message(joined), created, written or created)


def publishes(leading: Leading, now: float) -> tuple[Board, tuple[bytes, ...]]:
    """The board that a leader writes, and the parts of the roster."""
    draft = leading.draft(now)
    assert draft is not None
    assert draft.board is not None
    leading.written(draft, now)
    return draft.board, draft.parts


def test_a_new_leader_begins_a_last_call_again() -> None:
    """It cannot know how much of it is over: no clock is shared."""
    words = (joins("a", 1), joins("b", 2))
    leader = Leading(Run(run_id="run"), mint)
    leader.take(words, now=10.0)
    assert leader.wake_at() == 10.0 + LAST_CALL_S
    board, _ = publishes(leader, 10.0)
    took_over = 10.0 + 0.9 * LAST_CALL_S
    heir = adopt("run", Estate(4, words, board=board, shown=3), took_over, mint)
    assert heir.wake_at() == took_over + LAST_CALL_S
    heir.tick(10.0 + LAST_CALL_S)
    assert heir.run.world is None, "that was the last call of the leader before"
    heir.tick(took_over + LAST_CALL_S - 0.01)
    assert heir.run.world is None
    heir.tick(took_over + LAST_CALL_S)
    assert heir.run.phase is Phase.SEALED


def test_a_last_call_that_was_over_unseen_begins_again_as_well() -> None:
    words = (joins("a", 1), joins("b", 2))
    leader = Leading(Run(run_id="run"), mint)
    leader.take(words, now=10.0)
    board, _ = publishes(leader, 10.0)
    heir = adopt("run", Estate(4, words, board=board, shown=3), 500.0, mint)
    assert (heir.run.phase, heir.wake_at()) == (Phase.GATHERING, 500.0 + LAST_CALL_S)


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        pytest.param(joins("b", 2), [], id="the same key"),
        pytest.param(joins("b", 2, 9), [], id="the same key, written again"),
        pytest.param(joins("b", 9), ["b"], id="another key of the same name"),
        pytest.param(None, ["b"], id="no key"),
    ],
)
def test_a_member_is_its_key_and_the_revision_that_created_it(found: Word | None, lost: list[str]) -> None:
    """One who is back under its old name is not the one that has the place."""
    a, b, c = joins("a", 1), joins("b", 2), joins("c", 3)
    leader = Leading(Run(run_id="run"), mint)
    leader.take((a, b, c), now=10.0)
    board, parts = publishes(leader, 10.0)
    assert board.world is not None
    roster = decode_roster(list(parts), board.world, "run")
    assert [seated.created for seated in sorted(roster, key=lambda seated: seated.node.id)] == [1, 2, 3]
    words = (a, c) if found is None else (a, found, c)
    heir = adopt("run", Estate(9, words, board=board, shown=4, roster=roster), 20.0, mint)
    losses = [loss for turn in heir.turns for loss in turn.losses]
    assert [(loss.node_id, loss.why) for loss in losses] == [(name, EXPIRED) for name in lost]
    if lost:
        assert heir.run.phase is Phase.GATHERING, "its world is over"
        assert "b" not in heir.run.active
    if found is not None and lost:
        assert "b" in heir.run.queue, "it is a newcomer"
