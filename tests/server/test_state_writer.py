"""What reaches the state file: the newest of what a server decided, however much of that arrives in one piece."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from rallypoint import protocol, record
from rallypoint.messages.requests import Joined, Left
from rallypoint.messages.types import Bounds, Node, Reason
from rallypoint.server.clock import LOOK_S
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.effects import Effects
from rallypoint.server.state_file import StateFile, StateWriter, restored_runs

NODE = Node(id="a.1", name="a")
HELLO = protocol.MAGIC + protocol.frame(protocol.Hello(protocol.VERSION, "run", NODE.id, 1))
JOIN = protocol.frame(Joined(NODE, Bounds(1, 1)))
LEAVE = protocol.frame(Left(NODE.id, Reason.WITHDREW))


def _coordinator() -> Coordinator:
    numbers = itertools.count(1)
    return Coordinator(monotonic=0.0, mint=lambda: str(next(numbers)), keeps_records=True, hold_s=0.0)


def test_a_run_that_is_forgotten_and_founded_again_at_once_is_on_file(tmp_path: Path) -> None:
    path = tmp_path / "state"

    async def serve() -> list[str]:
        state = StateFile(path)
        list(restored_runs(state, 0.0))
        writer, server = StateWriter(state), _coordinator()
        server.opened(1, 0.1)
        first = server.received(1, HELLO + JOIN, 0.1)
        assert [each.run.round for each in first.records] == [1]
        server.recorded("run", 0.1)
        both = server.received(1, LEAVE + JOIN, 0.2)
        assert both.forgotten == ["run"]
        assert [each.run.run_id for each in both.records] == ["run"]
        confirmed: list[str] = []
        writer.write(both, confirmed.append)
        await writer.close()
        return confirmed

    assert asyncio.run(serve()) == ["run"]
    state = StateFile(path)
    known = record.decode(state.read()["run"])
    state.close()
    assert known.world is not None
    assert known.world.size == 1


@pytest.mark.parametrize("reason", [Reason.WITHDREW, Reason.FINISHED])
def test_a_run_that_is_over_is_on_file_no_more(tmp_path: Path, reason: Reason) -> None:
    """One that has closed is forgotten once nobody can be away any longer who would bring it back."""
    path, server, said = tmp_path / "state", _coordinator(), list[bytes]()

    async def write(effects: Effects) -> None:
        state = StateFile(path)
        list(restored_runs(state, 0.0))
        writer = StateWriter(state)
        writer.write(effects, lambda _: None)
        await writer.close()
        said.append(path.read_bytes().splitlines()[-1])

    server.opened(1, 0.1)
    asyncio.run(write(server.received(1, HELLO + JOIN, 0.1)))
    server.recorded("run", 0.1)
    current = server.runs.known["run"].run.current
    assert current is not None
    left = server.received(1, protocol.frame(Left(NODE.id, reason, current.seal_id)), 0.2)
    if reason is Reason.FINISHED:
        asyncio.run(write(left))
        server.recorded("run", 0.2)
        server.ended(1, 0.3)
        after = (server.tick(0.3 + LOOK_S * number) for number in itertools.count())
        left = next(effects for effects in after if effects.forgotten)
    asyncio.run(write(left))
    assert all(b'"record"' in line for line in said[:-1])
    assert b'"record"' not in said[-1]
    state = StateFile(path)
    assert state.read() == {}
    state.close()
