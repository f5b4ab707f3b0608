"""A server at a fixed address: the first process on the endpoint's machine that can bind it serves the run.

The others connect.  A hosted server knows its own run only, is administered from its own machine only, and ends with the
process (rule 16).  When that process dies, another one of the machine binds the address; it knows from its own node
which ranks were in the process that served, and does not wait for them (rule 14).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from functools import partial

from rallypoint.client.background import background
from rallypoint.client.dialing import look_up
from rallypoint.client.identity import process_token
from rallypoint.client.locator import Locator, Seeker, Target
from rallypoint.client.session import Session
from rallypoint.core.model import Predecessor
from rallypoint.errors import RendezvousConnectionError
from rallypoint.forks import run_in_children
from rallypoint.location.member import ranks_of_process
from rallypoint.net import listen_at_all, own_and_foreign, to_serve_at, written
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.service import Service
from rallypoint.server.sockets import is_taken
from rallypoint.tls import NO_TLS, TlsContext, TlsFiles
from rallypoint.tokens import AccessRole, Token, client_token

log = logging.getLogger("rallypoint.server")

_Key = tuple[tuple[str, ...], int]
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
        self._is_host = is_host
        self._key: _Key | None = None
        """Where this process serves, or would; None where it must not, or where it is not known yet what the name is."""
        if is_host is not False:
            # A name that is not known yet is looked up again with every attempt to connect (rule 13).
            with suppress(OSError, UnicodeError, asyncio.TimeoutError):
                background().run(self._serve_if_free())

    async def find(self, seeker: Seeker) -> Target:
        """The fixed address, which this process binds first where it may and nobody has."""
        session = self.session = seeker.session
        if self._key is not None:
            _users[self._key].add(self)
        if self._is_host is not False and not session.has_standalone_server:
            # A standalone server comes back on its own, and would find its port taken.
            try:
                await self._serve_if_free()
            except RendezvousConnectionError as exc:
                seeker.refuse(exc)
                if session.view.world is None:
                    raise ConnectionError(str(exc)) from exc
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
        """Nothing is to be found out, but a node that stays connected may have a certificate that ends."""
        if self._target.tls is not None:
            self._target.tls.keep_watch()

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
        if not self._forget_user(self._key) and (service := _hosted.pop(self._key, None)) is not None:
            await service.stop()
        return in_time

    async def _serve_if_free(self) -> None:
        """Bind the endpoint if it is this machine's and nobody has it.

        RendezvousConnectionError where this process must serve and cannot, or cannot know whether it is to.
        """
        key = self._key
        if key not in _hosted:
            self._move_to(await self._key_here())
        serves = self._key is not None and await self._host(self._key)
        if self._is_host and key is None and not serves:
            raise RendezvousConnectionError(
                f"is_host is set, but {self.where()} cannot be bound: another process has it; use another port, or "
                f"leave is_host out to connect to what is there"
            )

    def _move_to(self, key: _Key | None) -> None:
        """The endpoint is to be served here from now on."""
        if self._key is not None and key != self._key:
            self._forget_user(self._key)
        self._key = key
        if key is not None and self.session is not None:
            _users[key].add(self)

    def _forget_user(self, key: _Key) -> bool:
        """This is no user of that place any longer; whether others are."""
        _users[key].discard(self)
        if not _users[key]:
            del _users[key]
        return key in _users

    async def _key_here(self) -> _Key | None:
        """Where on this machine the endpoint is to be served; None where it is elsewhere."""
        (host,), port = self._target.hosts, self._target.port
        own, foreign = own_and_foreign(await look_up(host, port))
        if own and foreign and not self._is_host:
            raise RendezvousConnectionError(
                f"the name {host} stands for several machines: {', '.join(own)} is this one, and {', '.join(foreign)} "
                f"is not, so that each of them would serve the run: give the endpoint as the name or address of one "
                f"machine, or set is_host on each node"
            )
        if self._is_host and not own:
            raise RendezvousConnectionError(
                f"is_host is set, but {host} is not an address of this machine: give the endpoint as an address of "
                f"one of its interfaces, or leave is_host out"
            )
        addresses = to_serve_at(host, own)
        if not addresses:
            return None
        # Endpoints that are written otherwise may be the same place.
        known = (key for key in (*_hosted, *_users) if key[1] == port and not set(addresses).isdisjoint(key[0]))
        return next(known, (addresses, port))

    async def _host(self, key: _Key) -> bool:
        """Bind these addresses if nobody has them; whether this process serves there now."""
        if key not in _hosted:
            try:
                listeners = listen_at_all(*key)
            except OSError as exc:
                if not is_taken(exc):
                    log.warning("cannot serve %s: %s", self.where(), exc.strerror or exc)
                return False
            try:
                service = self._service(key)
            except ValueError as exc:  # its certificates cannot be used to serve; another process may serve
                for listener in listeners:
                    listener.close()
                log.warning("cannot serve %s: %s", self.where(), exc)
                return False
            _hosted[key] = service
            await _hosted[key].start(*listeners)
        _users[key].add(self)
        return True

    def _service(self, key: _Key) -> Service:
        if self._token is None and not self._tls.cacert:
            warning = (
                "serving run %r on %s for its nodes; there is no token, so whoever reaches this port can join the run"
            )
            log.warning(warning, self.run_id, ", ".join(written(address, key[1]) for address in key[0]))
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
