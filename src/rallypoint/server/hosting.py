"""Who hosts: the first process on the endpoint's machine that can bind it serves the run, and the others connect.

A hosted server knows its own run only, offers no listing and no administration, and ends with the process (rule 16).
"""

from __future__ import annotations

import asyncio
import logging
import socket

from rallypoint.server.coordinator import Happening
from rallypoint.server.recording import tell
from rallypoint.server.service import Service
from rallypoint.server.sockets import is_taken, listen

log = logging.getLogger("rallypoint.server")

_hosted: dict[tuple[str, int], Service] = {}
"""What this process hosts; touched on the background loop only."""


class Host:
    """Serves an endpoint of this machine whenever nobody else does."""

    def __init__(self, address: str, port: int, run_id: str) -> None:
        self.address = address
        self.port = port
        self.run_id = run_id

    def serve_if_free(self) -> bool:
        """Bind the endpoint if nobody has it; whether this process serves it now.  On the background loop only."""
        key = (self.address, self.port)
        if key in _hosted:
            return True
        try:
            listener = listen(self.address, self.port)
        except OSError as exc:
            if not is_taken(exc):
                log.warning("cannot serve %s:%s: %s", self.address, self.port, exc.strerror or exc)
            return False
        self._start(key, listener)
        return True

    @property
    def service(self) -> Service | None:
        """The server, if this process hosts it."""
        return _hosted.get((self.address, self.port))

    def _start(self, key: tuple[str, int], listener: socket.socket) -> None:
        log.warning(
            "serving run %r on %s:%s for its nodes; there is no token, so whoever reaches this port can join the run",
            self.run_id,
            *key,
        )
        service = Service(only_run=self.run_id, visitors=False, tell=_tell)
        _hosted[key] = service
        starting = asyncio.get_running_loop().create_task(service.start(listener))
        starting.add_done_callback(lambda _: None)


def _tell(happening: Happening) -> None:
    tell(happening)


def local_address(host: str) -> str:
    """The address of this machine that a host name stands for; empty where it stands for another machine."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return ""
