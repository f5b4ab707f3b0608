"""The server as it runs: asyncio sockets and a clock around `coordinator`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from rallypoint import recording
from rallypoint.errors import RendezvousError
from rallypoint.net import BACKLOG
from rallypoint.server.admission import ServerLimits
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.effects import Effects
from rallypoint.server.sockets import file_limit, is_from_this_machine
from rallypoint.server.state_file import StateFile, StateWriter, restored_runs
from rallypoint.tls import TlsContext

log = logging.getLogger("rallypoint.server")

KEPT_BACK_S = 0.05
"""How long the reason for a wait is kept back: in most rounds a place follows at once, and both go in one piece."""

RESERVE = 128
"""Open files that are kept for other purposes than connections, unless that were more than a quarter of all."""
FEWEST_FILES = 32


def mint() -> str:
    """Fresh randomness for the core."""
    return secrets.token_hex(8)


class Service:
    """A server on its listening sockets, on the loop it is started on.

    `make` makes its coordinator, given the time, limits and the like.  Records go to `state`; those of an elected server
    go to the function `acted`, which is told of all effects and has `recorded` called (rule 17c).  With `tls` every
    connection is encrypted, and where that has a CA, callers show a certificate.  A process that does nothing but serve
    `raises_file_limit`; in a program of a user that is not ours to change.
    """

    def __init__(
        self,
        make: Callable[..., Coordinator] = Coordinator,
        *,
        state: StateFile | None = None,
        acted: Callable[[Effects], None] | None = None,
        tls: TlsContext | None = None,
        raises_file_limit: bool = False,
    ) -> None:
        self._tls = tls
        self._state = StateWriter(state) if state is not None else None
        self._acted = acted
        files = file_limit(raised=raises_file_limit)
        if files < FEWEST_FILES:
            raise RendezvousError(
                f"this process may open {files} files, too few to serve: allow it {FEWEST_FILES} or more (ulimit -n)"
            )
        self._limits = ServerLimits(connections=files - min(RESERVE, files // 4))
        self._connections: dict[int, _ServerConnection] = {}
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._kept_back: list[_ServerConnection] = []
        self._servers: list[asyncio.Server] = []
        self._is_stopped = False
        self.quiet = asyncio.Event()
        """Set when the last node that took part has gone."""
        self.buffer = memoryview(bytearray(64 * 1024))
        now, records = time.monotonic(), dict[str, Any]()
        if state is not None:
            records = {"keeps_records": True, "restored": restored_runs(state, now)}
        self.coordinator = make(monotonic=now, mint=mint, name=socket.gethostname(), limits=self._limits, **records)

    async def start(self, *listeners: socket.socket) -> None:
        """Serve every caller that connects to these sockets from now on."""
        self._loop = asyncio.get_running_loop()
        backlog = min(1024, self._limits.connections)
        context = self._tls.current() if self._tls is not None else None
        for listener in listeners:
            server = await self._loop.create_server(
                lambda: _ServerConnection(self),
                sock=listener,
                backlog=backlog,
                ssl=context,
                ssl_handshake_timeout=self._limits.hello_s if context is not None else None,
            )
            # asyncio has shortened the kernel's queue to the number that it takes from it at a time.
            listener.listen(BACKLOG)
            self._servers.append(server)
        self._tick()

    async def stop(self) -> None:
        """Close the listening socket and every connection."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        for connection in list(self._connections.values()):
            connection.transport.close()
        if self._state is not None:
            await self._state.close()

    def perform(self, effects: Effects) -> None:
        """Do what the coordinator decided: begin to write it down, send it, hang up, tell of it."""
        if self._state is not None and (effects.records or effects.forgotten):
            self._state.write(effects, self.recorded)
        for caller, data in _by_caller(effects.sends):
            if (connection := self._connections.get(caller)) is not None:
                if caller in effects.urgent:
                    connection.send(data, self._limits.unread)
                else:
                    self._send_soon(connection, data)
        for caller, why in effects.hang_ups:
            if (connection := self._connections.get(caller)) is not None:
                log.info("hung up on %s: %s", connection.peer, why)
                connection.transport.close()
        for each in effects.happenings:
            if each.why:
                log.info("run %r: %s", each.run_id, each.why)
            recording.tell(each.before, each.after, each.why, each.losses, each.leave)
        self._plan()
        if self._acted is not None:
            self._acted(effects)

    def recorded(self, run_id: str) -> None:
        """The record of a run is written."""
        self.perform(self.coordinator.recorded(run_id, time.monotonic()))

    def opened(self, connection: _ServerConnection) -> int:
        """A connection was made."""
        self._numbers += 1
        self._connections[self._numbers] = connection
        self.perform(self.coordinator.opened(self._numbers, time.monotonic(), is_local=connection.is_local))
        if self._is_stopped:
            connection.transport.close()  # it was accepted in the moment when the service ended
        return self._numbers

    def received(self, number: int, data: bytes) -> None:
        """Bytes arrived."""
        effects = self.coordinator.received(number, data, time.monotonic())
        if effects.is_due or self.coordinator.must_renew:
            self.perform(effects)

    def ended(self, number: int) -> None:
        """A connection is gone."""
        del self._connections[number]
        self.perform(self.coordinator.ended(number, time.monotonic()))
        if not self.coordinator.is_attended:
            self.quiet.set()

    def _send_soon(self, connection: _ServerConnection, data: bytes) -> None:
        """Send what is not urgent with the next message to the same caller, or a moment later."""
        if not self._kept_back:
            self._loop.call_later(KEPT_BACK_S, self._send_kept_back)
        if not connection.kept_back:
            self._kept_back.append(connection)
        connection.kept_back += data

    def _send_kept_back(self) -> None:
        connections, self._kept_back = self._kept_back, []
        for connection in connections:
            if connection.kept_back and not connection.transport.is_closing():
                connection.send(b"", self._limits.unread)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.perform(self.coordinator.tick(time.monotonic()))
        finally:
            self._plan()  # whatever happened: the clock of all runs goes on

    def _plan(self) -> None:
        if not self._servers:
            return
        due = self.coordinator.wake_at(time.monotonic())
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tick)


def _by_caller(sends: list[tuple[int, bytes]]) -> Iterable[tuple[int, bytes]]:
    """Join what goes to one caller in a row."""
    if len(sends) < 2:
        return sends
    return ((caller, b"".join([data for _, data in run])) for caller, run in groupby(sends, key=lambda send: send[0]))


class _ServerConnection(asyncio.BufferedProtocol):
    """One connection.  All of a service read into one buffer: asyncio's own way makes a large one for every message."""

    transport: asyncio.Transport
    _number = 0

    def __init__(self, service: Service) -> None:
        self._service = service
        self.kept_back = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = str(peer)
        self.is_local = is_from_this_machine(peer, transport.get_extra_info("sockname"))
        self._number = self._service.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._service.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._service.received(self._number, bytes(self._service.buffer[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._service.ended(self._number)

    def send(self, data: bytes, limit: int) -> None:
        """Send, after what was kept back, unless the peer has stopped reading long ago."""
        self.transport.write(self.kept_back + data)
        self.kept_back = b""
        if self.transport.get_write_buffer_size() > limit:
            log.warning("hung up on %s: it does not read what it is sent", self.peer)
            self._service.coordinator.messages["callers turned away"] += 1
            self.transport.abort()
