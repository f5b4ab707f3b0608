"""What a leader does when, without etcd: words in, drafts out."""

from __future__ import annotations

from itertools import count

from rallypoint.core import codec
from rallypoint.core.events import Joined
from rallypoint.core.model import Bounds, Node, Phase, Run, Settings
from rallypoint.etcd.leading import Leading, Word

LAST_CALL_S = 1.0


def leading() -> Leading:
    numbers = count()
    return Leading(Run(run_id="run"), lambda: f"m{next(numbers)}")


def joins(name: str, at: int) -> Word:
    settings = Settings(last_call_s=LAST_CALL_S)
    joined = Joined(Node(id=name, name=name), Bounds(2, 3), settings)
    return Word(name, codec.encode_message(joined), at, at)


def test_what_fell_due_while_the_leader_was_writing_is_due_still() -> None:
    run = leading()
    run.take([joins("a", 1), joins("b", 2)], now=10.0)
    assert run.run.world is None
    # Whatever the time is by now: nobody has looked at the run since.
    assert run.wake_at() == 10.0 + LAST_CALL_S
    run.tick(15.0)
    assert run.run.phase is Phase.SEALED
    due = run.wake_at()
    assert due is None or due > 15.0, "what was done is due no more"
