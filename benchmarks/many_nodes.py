"""Thousands of nodes in one process: production's sessions on an asyncio loop, without a thread for each.

Any order means: let all of them join.  The answer is the seconds until the last has its place.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks.processes import answer
from rallypoint.client.session import Session
from rallypoint.client.view import State, View
from rallypoint.messages.types import Bounds, Node, Settings
from rallypoint.server.sockets import file_limit


class NodeConnection(asyncio.Protocol):
    """One node."""

    transport: asyncio.Transport

    def __init__(self, session: Session) -> None:
        self.session = session
        self.placed: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.session.opening(time.monotonic()))

    def data_received(self, data: bytes) -> None:
        self.session.received(data, time.monotonic())
        if self.session.view.state is State.HOLDS and not self.placed.done():
            self.placed.set_result(time.monotonic())


async def join(endpoint: str, run_id: str, nodes: int, first: int, mine: int) -> list[NodeConnection]:
    """Connect and join, all at once."""
    host, _, port = endpoint.rpartition(":")
    loop = asyncio.get_running_loop()
    settings = Settings()

    async def one(number: int) -> NodeConnection:
        node = Node(id=f"n{number}", name=f"n{number}", address="127.0.0.1", store="127.0.0.1:1")
        session = Session(run_id, View(node=node, bounds=Bounds(nodes, nodes), settings=settings))
        session.join(time.monotonic(), 600.0)
        _, member = await loop.create_connection(lambda: NodeConnection(session), host, int(port))
        await member.placed
        return member

    return list(await asyncio.gather(*(one(first + number) for number in range(mine))))


async def main() -> None:
    """Obey."""
    endpoint, run_id, nodes, first, mine = sys.argv[1:]
    file_limit(raised=True)
    answer("ready")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    began = time.monotonic()
    members = await join(endpoint, run_id, int(nodes), int(first), int(mine))
    answer(max(member.placed.result() for member in members) - began)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main())
