"""The asyncio side of a store server.  Imported only when a server starts, because asyncio is slow to import."""

from __future__ import annotations

import asyncio
import logging
import socket

from rallypoint.stores.serving import Send, Session, StoreServerCore

_BACKLOG = 4096
_BUFFER_BYTES = 1 << 18

_log = logging.getLogger("rallypoint.stores")


class Listener:
    """Accepts connections on a socket and carries bytes between them and the core, on one event loop."""

    def __init__(self, core: StoreServerCore) -> None:
        self._core = core
        self._server: asyncio.Server | None = None
        self._transports: dict[Session, asyncio.Transport] = {}
        self._closed = False
        # All connections read into one buffer: asyncio's own way makes a large one for every message.
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))

    async def open(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=sock, backlog=_BACKLOG)

    def close(self) -> None:
        """Closes the socket and all connections; to be called on the event loop."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for transport in list(self._transports.values()):
            transport.abort()

    def connected(self, transport: asyncio.Transport) -> Session:
        sock = transport.get_extra_info("socket")
        # A peer whose machine died says nothing: the operating system asks for it now and then.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer = transport.get_extra_info("peername")
        session = self._core.connect(f"{peer[0]}:{peer[1]}" if peer else "unknown")
        self._transports[session] = transport
        if self._closed:
            transport.abort()  # it was accepted in the last moment
        return session

    def received(self, session: Session, data: bytes) -> None:
        transport = self._transports[session]
        unread = transport.get_write_buffer_size()
        self._perform(self._core.receive(session, data, unread))
        if session.refusal is not None and not transport.is_closing():
            _log.warning("The store closed the connection from %s: %s.", session.name, session.refusal)
            if transport.get_write_buffer_size():
                transport.abort()  # whoever does not read would keep it open
            else:
                transport.close()

    def lost(self, session: Session, exc: Exception | None) -> None:
        del self._transports[session]
        if session.refusal is None and (query := session.reader.unfinished) is not None:
            _log.info("%s left in the middle of a %s request: %s.", session.name, query.name.lower(), exc or "end")
        self._perform(self._core.disconnect(session))

    def _perform(self, sends: list[Send]) -> None:
        for session, data in sends:
            transport = self._transports.get(session)
            if transport is not None:
                # Of bytes that do not fit into the socket asyncio would copy the rest, twice.
                transport.write(memoryview(data) if len(data) > _BUFFER_BYTES else data)


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._session: Session | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._session = self._listener.connected(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listener.buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert self._session is not None
        self._listener.received(self._session, bytes(self._listener.buffer[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._session is not None
        self._listener.lost(self._session, exc)


async def finish_tasks() -> None:
    """Ends what a loop that was stopped left behind: connections that were just being accepted."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
