"""A server at a fixed address: the first process on the endpoint's machine that can bind it serves the run.

The others connect.  A hosted server knows its own run only, is administered from its own machine only, and ends with the
process (rule 16).  When that process dies, another one of the machine binds the address; it knows from its own node
which ranks were in the process that served, and does not wait for them (rule 14).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import defaultdict
from contextlib import suppress
from functools import partial

from rallypoint.client.background import background, run_in_thread
from rallypoint.client.identity import process_token
from rallypoint.client.locator import Locator, Seeker, Target
from rallypoint.client.session import Session
from rallypoint.core.model import Predecessor
from rallypoint.errors import RendezvousConnectionError
from rallypoint.forks import run_in_children
from rallypoint.location.member import ranks_of_process
from rallypoint.net import listen
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.service import Service
from rallypoint.server.sockets import is_taken
from rallypoint.tls import NO_TLS, TlsContext, TlsFiles
from rallypoint.tokens import AccessRole, Token, client_token

log = logging.getLogger("rallypoint.server")

_Key = tuple[str, int]
_hosted: dict[_Key, Service] = {}
_users: defaultdict[_Key, set[FixedLocator]] = defaultdict(set)
"""What this process hosts, and which of its nodes meet at an endpoint; touched on the background loop only."""


class FixedLocator(Locator):
    """The server is at this host and port, and this process serves there if it may and nobody else does.

    `is_host` says whether this process may serve the endpoint: True insists on it, False forbids it, None lets it serve
    if the endpoint is an address of this machine and nobody else serves it.
    """

    def __init__(
        self,
        host: str,
        port: int,
        run_id: str,
        *,
        is_host: bool | None = None,
        token: Token | None = None,
        tls: TlsFiles = NO_TLS,
    ) -> None:
        self.run_id = run_id
        self._token, self._tls = token, tls
        self.session: Session | None = None
        """That of the node which this is for, once it has asked where to connect."""
        self._target = Target(
            (host,),
            port,
            token=client_token(token, run_id, AccessRole.NODE) if token is not None else None,
            tls=TlsContext(tls, is_server=False) if tls else None,
        )
        address = run_in_thread(lambda: local_address(host)) if is_host is not False else ""
        self._key: _Key | None = (address, port) if address else None
        if is_host and self._key is None:
            raise RendezvousConnectionError(
                f"is_host is set, but {host} is not an address of this machine: give the endpoint as an address of "
                f"one of its interfaces, or leave is_host out"
            )
        serves = background().run(self._serve_if_free()) if self._key is not None else False
        if is_host and not serves:
            raise RendezvousConnectionError(
                f"is_host is set, but {host}:{port} cannot be bound: another process has it; use another port, or "
                f"leave is_host out to connect to what is there"
            )

    async def find(self, seeker: Seeker) -> Target:
        """The fixed address, which this process binds first where it may and nobody has."""
        session = self.session = seeker.session
        if self._key is not None:
            _users[self._key].add(self)
        if not session.has_standalone_server:
            # A standalone server comes back on its own, and would find its port taken.
            await self._serve_if_free()
        return self._target

    def where(self) -> str:
        return f"{self._target.hosts[0]}:{self._target.port}"

    def explain(self, trouble: str) -> str:
        return trouble

    def doubt(self) -> str:
        return ""  # a server at a fixed address has no claim

    def welcomed(self, seeker: Seeker, target: Target) -> None:
        """The address stays as it is, whatever becomes of connections to it."""

    def failed(self, seeker: Seeker, target: Target, *, refused: bool) -> None:
        """Nothing else is to be tried."""

    def beat(self, seeker: Seeker) -> None:
        """Nothing is to be found out."""

    @property
    def hosts_medium(self) -> bool:
        """Whether this process serves: what the server knows of the run, such as who has finished, ends with it."""
        return self._key in _hosted

    async def abandon(self) -> None:
        await self.release(0.0)

    async def release(self, timeout_s: float) -> bool:
        """Serve the others until they are gone, for so long at most; the server ends with its last user here.

        Where other nodes of this process go on using it, there is nothing to wait for.
        """
        if self._key is None:
            return True
        users, service = _users[self._key], _hosted.get(self._key)
        in_time = True
        if service is not None and service.coordinator.is_attended and users <= {self}:
            service.quiet.clear()
            try:
                await asyncio.wait_for(service.quiet.wait(), timeout_s)
            except (TimeoutError, asyncio.TimeoutError):
                in_time = False
        users.discard(self)
        if not users:
            _users.pop(self._key, None)
            if (service := _hosted.pop(self._key, None)) is not None:
                await service.stop()
        return in_time

    async def _serve_if_free(self) -> bool:
        """Bind the endpoint if nobody has it; whether this process serves it now."""
        key = self._key
        if key is None:
            return False
        if key not in _hosted:
            try:
                listener = listen(*key)
            except OSError as exc:
                if not is_taken(exc):
                    log.warning("cannot serve %s:%s: %s", *key, exc.strerror or exc)
                return False
            try:
                service = self._service(key)
            except ValueError as exc:  # its certificates cannot be used to serve; another process may serve
                listener.close()
                log.warning("cannot serve %s:%s: %s", *key, exc)
                return False
            _hosted[key] = service
            await _hosted[key].start(listener)
        _users[key].add(self)
        return True

    def _service(self, key: _Key) -> Service:
        if self._token is None and not self._tls.cacert:
            warning = "serving run %r on %s:%s for its nodes; there is no token, so whoever reaches this port can join the run"
            log.warning(warning, self.run_id, *key)
        sessions = [user.session for user in _users[key] if user.session is not None and user.run_id == self.run_id]
        seal_id, ranks = ranks_of_process(sessions)
        predecessor = None
        if self.session is not None and (gone := self.session.server_ranks)[1]:
            # These ranks went with the process that served before: they are awaited for the reconnect grace only, and
            # are gone when this process dies, too.
            predecessor = Predecessor(*gone, self.session.view.settings.reconnect_grace_s)
            ranks = tuple(sorted({*ranks, *gone[1]})) if gone[0] == seal_id else ranks
        make = partial(
            Coordinator,
            only_run=self.run_id,
            remote_admins=False,
            process=process_token(),
            own_place=(seal_id, ranks),
            predecessor=predecessor,
            token=self._token,
        )
        return Service(make, tls=TlsContext(self._tls, is_server=True) if self._tls else None)


# A forked child hosts nothing.
run_in_children(_hosted.clear)
run_in_children(_users.clear)


def local_address(host: str) -> str:
    """The address of this machine that a host name stands for; empty where it stands for another machine."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return ""
    for family, kind, protocol, _, address in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return str(probe.getsockname()[0])
    return ""
