"""What reaches the state file: the newest of what a server decided, however much of that arrives in one piece."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from rallypoint import protocol, record
from rallypoint.messages.requests import Joined, Left
from rallypoint.messages.types import Bounds, Node, Reason
from rallypoint.server.coordinator import Coordinator
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
