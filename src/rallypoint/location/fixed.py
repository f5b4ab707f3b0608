"""Who hosts: the first process on the endpoint's machine that can bind it serves the run, and the others connect.

A hosted server knows its own run only, offers no listing and no administration, and ends with the process (rule 16).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import defaultdict

from rallypoint.server.coordinator import Happening
from rallypoint.server.recording import tell
from rallypoint.server.service import Service
from rallypoint.server.sockets import is_taken, listen

log = logging.getLogger("rallypoint.server")

_hosted: dict[tuple[str, int], Service] = {}
_users: defaultdict[tuple[str, int], set[Host]] = defaultdict(set)
"""What this process hosts, and for whom; touched on the background loop only."""


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
            _users[key].add(self)
            return True
        try:
            listener = listen(self.address, self.port)
        except OSError as exc:
            if not is_taken(exc):
                log.warning("cannot serve %s:%s: %s", self.address, self.port, exc.strerror or exc)
            return False
        self._start(key, listener)
        return True

    async def release(self) -> None:
        """This process has no more use for the server; it ends with its last user.  On the background loop only."""
        key = (self.address, self.port)
        _users[key].discard(self)
        if not _users[key]:
            del _users[key]
            service = _hosted.pop(key, None)
            if service is not None:
                await service.stop()

    @property
    def is_alone(self) -> bool:
        """Whether nobody else of this process uses the server.  On the background loop only."""
        return _users.get((self.address, self.port), set()) <= {self}

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
        _users[key].add(self)
        starting = asyncio.get_running_loop().create_task(service.start(listener))
        starting.add_done_callback(lambda _: None)


def _tell(happening: Happening) -> None:
    tell(happening)


def _forget_hosted() -> None:
    """A forked child hosts nothing."""
    _hosted.clear()
    _users.clear()


os.register_at_fork(after_in_child=_forget_hosted)


def local_address(host: str) -> str:
    """The address of this machine that a host name stands for; empty where it stands for another machine."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return ""
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return ""
