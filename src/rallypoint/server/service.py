"""The server as it runs: asyncio sockets and a clock around `coordinator`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from itertools import groupby

from rallypoint.core.model import Predecessor, Run
from rallypoint.net import BACKLOG
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.effects import Effects, RunChange
from rallypoint.server.limits import ServerLimits
from rallypoint.server.sockets import is_from_this_machine, raise_file_limit
from rallypoint.server.state_file import StateFile
from rallypoint.server.state_writer import StateWriter, restored_runs

log = logging.getLogger("rallypoint.server")

COMPANY_S = 0.02
"""How long the reason for a wait is kept back: in most rounds a place follows at once, and both go in one piece."""

RESERVE = 128
"""Open files that are kept for other purposes than connections."""


def mint() -> str:
    """Fresh randomness for the core."""
    return secrets.token_hex(8)


class Service:
    """A server on one listening socket, on the loop it is started on.

    Records go to `state`, or, where an elected server has a claim, to whoever is told by `acted` what it decided; that one
    calls `recorded` (rule 17c).  The other arguments are the coordinator's.
    """

    def __init__(
        self,
        *,
        only_run: str = "",
        remote_admins: bool = True,
        state: StateFile | None = None,
        limits: ServerLimits | None = None,
        tell: Callable[[RunChange], None] | None = None,
        process: str = "",
        claim_id: str = "",
        secret: str = "",
        pause_s: float = float("inf"),
        restored: Iterable[tuple[Run, int]] = (),
        own_place: tuple[str, tuple[int, ...]] = ("", ()),
        predecessor: Predecessor | None = None,
        acted: Callable[[Effects], None] | None = None,
    ) -> None:
        self._state = StateWriter(state) if state is not None else None
        self._tell = tell
        self._acted = acted
        self._limits = limits or ServerLimits(connections=raise_file_limit() - RESERVE)
        self._lines: dict[int, _ServerConnection] = {}
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._kept_back: list[_ServerConnection] = []
        self._server: asyncio.Server | None = None
        self._is_stopped = False
        self.quiet = asyncio.Event()
        """Set when the last node that took part has gone."""
        self.buffer = memoryview(bytearray(64 * 1024))
        now = time.monotonic()
        self.coordinator = Coordinator(
            monotonic=now,
            mint=mint,
            name=f"{socket.gethostname()}",
            only_run=only_run,
            remote_admins=remote_admins,
            keeps_records=state is not None or bool(claim_id),
            restored=restored_runs(state, now) if state is not None else restored,
            limits=self._limits,
            process=process,
            claim_id=claim_id,
            secret=secret,
            pause_s=pause_s,
            own_place=own_place,
            predecessor=predecessor,
        )

    async def start(self, listener: socket.socket) -> None:
        """Serve whoever connects to this socket from now on."""
        self._loop = asyncio.get_running_loop()
        backlog = min(1024, self._limits.connections)
        self._server = await self._loop.create_server(lambda: _ServerConnection(self), sock=listener, backlog=backlog)
        # asyncio has shortened the kernel's queue to the number that it takes from it at a time.
        listener.listen(BACKLOG)
        self.perform(self.coordinator.tick(time.monotonic()))

    async def stop(self) -> None:
        """Close the listening socket and every connection."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
        for line in list(self._lines.values()):
            line.transport.close()
        if self._state is not None:
            await self._state.close()

    def perform(self, effects: Effects) -> None:
        """Do what the coordinator decided: begin to write it down, send it, hang up, tell of it."""
        if self._state is not None and (effects.records or effects.forgotten):
            self._state.write(effects, self.recorded)
        for caller, data in _by_caller(effects.sends):
            line = self._lines.get(caller)
            if line is not None and caller in effects.urgent:
                line.send(data, self._limits.unread)
            elif line is not None:
                self._send_soon(line, data)
        for caller, why in effects.hang_ups:
            line = self._lines.get(caller)
            if line is not None:
                log.info("hung up on %s: %s", line.peer, why)
                line.transport.close()
        for happening in effects.happenings:
            if happening.why:
                log.info("run %r: %s", happening.run_id, happening.why)
            if self._tell is not None:
                self._tell(happening)
        self._plan()
        if self._acted is not None:
            self._acted(effects)

    def recorded(self, run_id: str) -> None:
        """The record of a run is written."""
        self.perform(self.coordinator.recorded(run_id, time.monotonic()))

    def opened(self, line: _ServerConnection) -> int:
        """A connection was made."""
        self._numbers += 1
        self._lines[self._numbers] = line
        self.perform(self.coordinator.opened(self._numbers, time.monotonic(), is_local=line.is_local))
        if self._is_stopped:
            line.transport.close()  # it was accepted in the moment when the service ended
        return self._numbers

    def received(self, number: int, data: bytes) -> None:
        """Bytes arrived."""
        effects = self.coordinator.received(number, data, time.monotonic())
        if effects.is_due or self.coordinator.must_renew:
            self.perform(effects)

    def ended(self, number: int) -> None:
        """A connection is gone."""
        del self._lines[number]
        self.perform(self.coordinator.ended(number, time.monotonic()))
        if not self.coordinator.is_attended:
            self.quiet.set()

    def _send_soon(self, line: _ServerConnection, data: bytes) -> None:
        """Send what is not urgent with the next message to the same caller, or a moment later."""
        if not self._kept_back:
            self._loop.call_later(COMPANY_S, self._send_kept_back)
        if not line.kept_back:
            self._kept_back.append(line)
        line.kept_back += data

    def _send_kept_back(self) -> None:
        lines, self._kept_back = self._kept_back, []
        for line in lines:
            if line.kept_back and not line.transport.is_closing():
                line.send(b"", self._limits.unread)

    def _tick(self) -> None:
        self._timer = None
        self.perform(self.coordinator.tick(time.monotonic()))

    def _plan(self) -> None:
        if self._server is None:
            return
        due = self.coordinator.wake_at(time.monotonic())
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tick)


def _by_caller(sends: list[tuple[int, bytes]]) -> Iterable[tuple[int, bytes]]:
    """What goes to one caller in a row goes in one piece."""
    if len(sends) < 2:
        return sends
    pieces = ((caller, [data for _, data in run]) for caller, run in groupby(sends, key=lambda send: send[0]))
    return ((caller, run[0] if len(run) == 1 else b"".join(run)) for caller, run in pieces)


class _ServerConnection(asyncio.BufferedProtocol):
    """One connection.  All of a service read into one buffer: asyncio's own way makes a large one for every message."""

    transport: asyncio.Transport

    def __init__(self, service: Service) -> None:
        self._service = service
        self._number = 0
        self.peer = ""
        self.is_local = False
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
            self.transport.abort()
