"""A node's link to its server: the session on a real socket, made anew whenever it breaks, on the background loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import random
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from rallypoint import protocol
from rallypoint.client.addresses import as_seen_by_others
from rallypoint.client.background import background
from rallypoint.client.dialing import connect
from rallypoint.client.locator import Locator, Target
from rallypoint.client.session import Session
from rallypoint.client.view import State, View
from rallypoint.client.waiters import Waiters
from rallypoint.core.model import EndedIncarnation
from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rallypoint.messages.types import Node, Reason
from rallypoint.net import host_of

log = logging.getLogger("rallypoint.link")

FIRST_RETRY_S = 0.02
CONNECT_S = 5.0

_FAILURES = (OSError, UnicodeError, asyncio.TimeoutError)
_ELSEWHERE = "another server was found meanwhile"
_REPLACED = "another server has taken its place"

Prepare = Callable[[Node, Callable[[], str]], Node]
"""Completes a node before it joins, given how to learn the address by which this machine reaches the server; or raises
the RendezvousError that a link makes its `refusal`."""


class Link:
    """One node's connection to one run.  Other threads give it orders and wait for the view to change."""

    def __init__(self, locator: Locator, session: Session, *, prepare: Prepare, reborn: Callable[[Node], Node]) -> None:
        self.session = session
        """The node's end of the protocol; on the loop only."""
        self.refused_by: Exception | None = None
        """What the locator found to be in the way for good."""
        self._locator = locator
        self._prepare = prepare
        self._reborn = reborn
        self._target: Target | None = None
        self._waiters = Waiters()
        self._joins_ordered = self._joins_made = 0
        self._tried: list[str] = []
        self._trouble = "no connection was tried yet"
        self._background = background()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._hurry = asyncio.Event()
        """Set when the next attempt to connect is not to be put off: the node leaves, or the server is elsewhere."""
        self._connecting: asyncio.Task[Any] | None = None
        self._gave_up = ""
        self._was_silent = False
        """Whether a connection was taken and heard nothing: it may be large packets that do not come through."""
        self._closed = False

    @property
    def view(self) -> View:
        """What the node knows at the moment."""
        return self.session.view

    def join(self, timeout_s: float, unless: Callable[[], bool]) -> None:
        """Ask for a place in the next world, unless that is of no use by then; the view tells what came of it."""
        self._joins_ordered = number = self._joins_ordered + 1
        self._order(lambda: self._join(number, timeout_s, unless))

    @property
    def is_joining(self) -> bool:
        """Whether a join was ordered that the view says nothing of yet."""
        return self._joins_made < self._joins_ordered

    def connect(self) -> None:
        """Connect without joining."""
        self._order(self._start)

    @property
    def trouble(self) -> str:
        """Why the server is not reached, or was not when it was tried last; half a sentence."""
        if self.session.welcomed and self.session.serving.in_doubt:
            return self._locator.doubt()
        return self._locator.explain(self._trouble)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at the moment, and the server has taken it."""
        return self.session.welcomed

    @property
    def refusal(self) -> str | None:
        """Why the server will not have this node at all; None for a node that holds a world: it keeps trying (rule 14)."""
        return None if self.view.state is State.HOLDS else self._turned_away

    @property
    def _turned_away(self) -> str | None:
        goodbye = self.session.goodbye
        return goodbye.why if goodbye is not None and goodbye.final else None

    def leave(self, reason: Reason, why: str = "") -> None:
        """Leave for good; the connection stays until `close`."""
        self._background.run(self._say(lambda: self.session.leave(reason, why)))
        self._order(self._hurry.set)

    def ask_to_close(self) -> None:
        """Ask the server to close the run, again and again until it has answered; `is_heard` tells."""
        self._background.run(self._say(self.session.close_run))

    def is_heard(self, deadline: float) -> bool:
        """Wait until the server has acknowledged what must not be lost: a leave, a close; False where it does not."""
        self.wait(lambda _: self.session.is_heard or self.refusal is not None, deadline)
        return self.session.is_heard

    def ask(self, ask: Callable[[int], protocol.Ask], timeout_s: float) -> protocol.Answer:
        """Ask the server something and wait for the answer."""
        deadline = time.monotonic() + timeout_s
        if not self.wait(lambda _: self.is_connected or self.refusal is not None, deadline):
            raise RendezvousConnectionError(f"the server at {self.where()} cannot be reached: {self.trouble}")
        answer: concurrent.futures.Future[protocol.Answer] = concurrent.futures.Future()
        self._order(lambda: self._ask(ask, answer.set_result))
        try:
            return answer.result(max(deadline - time.monotonic(), 0.0))
        except concurrent.futures.TimeoutError:
            why = f"the server at {self.where()} did not answer within {timeout_s:.0f} s"
            raise RendezvousConnectionError(why) from None

    def wait(self, until: Callable[[View], bool], deadline: float | None = None) -> bool:
        """Wait until the view is as wanted; False where the deadline passes first."""
        self.check()
        return self._waiters.wait(lambda: until(self.view), deadline)

    def close(self) -> None:
        """End the link."""
        self._order(self._end)

    def check(self) -> None:
        """Refuse to be used in a forked child."""
        self._background.check()

    def where(self) -> str:
        """Where the server is looked for, with the addresses that a name was found at."""
        return self._locator.where() + (f" ({', '.join(self._tried)})" if self._tried else "")

    # On the loop --------------------------------------------------------------------------------------------------

    def _order(self, action: Callable[[], object]) -> None:
        self._background.call(action)

    def _join(self, number: int, timeout_s: float, unless: Callable[[], bool]) -> None:
        try:
            if not unless():
                self._ask_for_place(timeout_s)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it belongs to the thread that joins
            self.refused_by = exc
            self._refuse(str(exc) or repr(exc))
        finally:
            self._joins_made = number
            self._waiters.wake()

    def _ask_for_place(self, timeout_s: float) -> None:
        self.session.goodbye = self.refused_by = None
        if self.view.state is State.FENCED:
            self._do(lambda: self.session.reborn(self._reborn(self.view.node)))
            self._drop()
        elif self._transport is not None:
            self._complete_node(self._transport, joining=True)
        try:
            self._do(lambda: self._send(self.session.join(time.monotonic(), timeout_s)))
        except ValueError as exc:
            log.debug("not joined: %s", exc)
        self._start()
        if self._timer is not None:
            # Nodes that join together beat together, and a server that hears many at a time works half as much.
            self._plan_beat()

    async def _say(self, say: Callable[[], bytes]) -> None:
        self._do(lambda: self._send(say()))

    def _ask(self, ask: Callable[[int], protocol.Ask], answer: Callable[[protocol.Answer], None]) -> None:
        if self._transport is None or self._transport.is_closing() or not self.session.connected:
            answer(protocol.Done(0, False, "the connection to the server ended"))
        else:
            self._send(self.session.ask(ask, answer))

    def _start(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._stay_connected())

    def _end(self) -> None:
        self._closed = True
        self._stop_beating()
        if self._task is not None:
            self._task.cancel()
        self._send(self.session.parting())
        self._drop()
        self._waiters.wake()

    def _drop(self, why: str = "") -> None:
        self._gave_up = why or self._gave_up
        if self._transport is not None:
            self._transport.close()

    async def _stay_connected(self) -> None:
        """Connect, stay, and connect again with a growing pause; beat all the while."""
        self._plan_beat()
        pause, is_wanted = FIRST_RETRY_S, False
        try:
            while not self._closed and self.refusal is None:
                connection = _LinkConnection(self)
                try:
                    await self._connect(connection)
                    began = time.monotonic()
                    welcomed = await connection.ended
                    # A server that turns nodes away, for want of room say, is not to be stormed by them.
                    lasted = time.monotonic() - began > self.view.settings.reconnect_backoff_s
                    pause = FIRST_RETRY_S if welcomed and (lasted or self.session.goodbye is None) else pause
                    if self._gave_up and not welcomed and not self.view.incarnation and self._target is not None:
                        self._trouble += await self._target.what_answers()
                except _FAILURES as exc:
                    self._lost(_in_words(exc), refused=isinstance(exc, ConnectionRefusedError))
                pause = await self._pause(pause)
        except asyncio.CancelledError:
            # A join since the refusal that ended this has to find out whether the refusal still holds.
            is_wanted = not self._closed and self.refusal is None
            raise
        finally:
            self._stop_beating()
            self._task = None
            if is_wanted:
                self._start()

    async def _pause(self, pause_s: float) -> float:
        """Pause between two attempts to connect, unless the next one is in a hurry; how long the next pause is."""
        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), random.uniform(pause_s / 2, pause_s))
            return FIRST_RETRY_S
        # A node that pauses for longer than it is waited for would be lost with every outage.
        settings = self.view.settings
        return min(pause_s * 2, settings.reconnect_backoff_s, settings.heartbeat_timeout_s / 3)

    async def _connect(self, connection: _LinkConnection) -> None:
        target = self._target = await self._locator.find(self)
        self._hurry.clear()
        self.session.claim_id, self.session.token = target.claim_id, target.token
        for host in target.hosts[:-1]:
            with suppress(*_FAILURES):
                return await self._connect_to(host, target.port, connection)
        return await self._connect_to(target.hosts[-1], target.port, connection)

    async def _connect_to(self, host: str, port: int, connection: _LinkConnection) -> None:
        loop = asyncio.get_running_loop()
        dialing = connect(lambda: connection, host, port, self._tried, small=self._was_silent, **self._tls(host))
        self._connecting = loop.create_task(dialing)
        timer = loop.call_later(CONNECT_S, self._connecting.cancel)
        try:
            await self._connecting
        except asyncio.CancelledError:
            if self._closed:
                raise
            why = _ELSEWHERE if self._hurry.is_set() else f"no answer within {CONNECT_S:.0f} s"
            raise asyncio.TimeoutError(why) from None
        finally:
            timer.cancel()
            self._connecting = None

    def _tls(self, host: str) -> dict[str, Any]:
        target = self._target
        return (
            {"ssl": target.tls.current(), "server_hostname": host}
            if target is not None and target.tls is not None
            else {}
        )

    def _lost(self, why: str, *, refused: bool = False) -> None:
        """There is no connection, for this reason."""
        self._trouble = why
        self._do(lambda: self.session.ended(time.monotonic()), always=True)
        if self._target is not None and not self._closed:
            self._locator.failed(self, self._target, refused=refused)

    def move(self) -> None:
        """The server is elsewhere now: connect there at once."""
        self._hurry.set()
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
        elif self._transport is not None:
            self._drop(_REPLACED)

    def tell_ended(self, how: EndedIncarnation) -> None:
        """The register says that this incarnation has ended (rule 17h)."""
        self._do(lambda: self.session.told_ended(how))

    def refuse(self, problem: Exception) -> None:
        """There is no use in looking for the server; a node that is connected to one need not."""
        if self._transport is not None:
            return
        self.refused_by = problem
        self._refuse(str(problem) or repr(problem))
        self._do(lambda: self.session.ended(time.monotonic()), always=True)
        if self._task is not None and self.refusal is not None:
            self._task.cancel()

    def _stop_beating(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan_beat(self) -> None:
        self._stop_beating()
        self._timer = asyncio.get_running_loop().call_later(self.session.beat_after_s, self._beat)

    def _beat(self) -> None:
        now = time.monotonic()
        if self.session.is_stale(now) and self._transport is not None:
            silence_s = self.view.settings.heartbeat_timeout_s
            self._gave_up = f"it took the connection and was silent for {silence_s:.1f} s"
            self._was_silent = True
            self._transport.abort()
        self._plan_beat()
        self._do(lambda: self._send(self.session.beat(now)))
        self._locator.beat(self)

    def opened(self, transport: asyncio.Transport) -> None:
        """A connection was made; the node needs an address before it speaks."""
        self._transport = transport
        self._gave_up = ""
        self._complete_node(transport)
        if self.refusal is None:
            self._do(lambda: self._send(self.session.opening(time.monotonic())))

    def received(self, data: bytes) -> None:
        """Bytes arrived."""
        was_welcomed = self.session.welcomed
        try:
            self._do(lambda: self._send(self.session.received(data, time.monotonic())))
        except RendezvousStateError as exc:
            if self._target is not None and self._target.claim_id:
                # Something else answers at the port of a claim: it may be another's by now, and is never final (17a).
                self._drop(str(exc))
            else:
                self._refuse(str(exc))
        if self.session.is_outdated:
            self._drop(_REPLACED)
        elif self.session.welcomed and not was_welcomed and self._target is not None:
            self._locator.welcomed(self, self._target)

    def ended(self, transport: asyncio.Transport, exc: Exception | None) -> None:
        """A connection is gone."""
        if transport is not self._transport:
            return
        self._transport = None
        why = self.session.goodbye.why if self.session.goodbye is not None else self._gave_up
        why = why or (_in_words(exc) if isinstance(exc, ssl.SSLError) else str(exc or ""))
        if not why and self._target is not None and not self.session.welcomed:
            why = self._target.silence
        self._lost(why or "it closed the connection")

    def _refuse(self, why: str) -> None:
        """There is no use in trying again."""
        self.session.goodbye = protocol.Goodbye(why, final=True)
        self._drop()

    def _complete_node(self, transport: asyncio.Transport, *, joining: bool = False) -> None:
        """Give the node an address, and a place for the store that it may come to serve, before it joins."""
        if self.view.state in (State.FINISHED, State.CLOSED) or (self.view.state is State.HOLDS and not joining):
            return
        try:
            node = self._prepare(self.view.node, lambda: self._own_address(transport))
        except RendezvousError as exc:
            self._refuse(str(exc))
            return
        self.session.view = msgspec.structs.replace(self.view, node=node)

    def _own_address(self, transport: asyncio.Transport) -> str:
        """The address by which this machine reaches the server."""
        local = host_of(transport.get_extra_info("sockname"))
        return as_seen_by_others(local, self._target.hosts[-1]) if self._target is not None else local

    def _send(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def _do(self, action: Callable[[], object], *, always: bool = False) -> None:
        """Let the session do something, and wake the threads whose condition may be met by it."""
        before, told = self.view, (self.session.welcomed, self.session.is_heard)
        action()
        if always or (self.session.welcomed, self.session.is_heard) != told or _differs(before, self.view):
            self._waiters.wake()


def _in_words(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLError):
        return f"the two do not believe each other's certificates, or it has no TLS: {exc}"
    if not isinstance(exc, OSError):
        return f"{type(exc).__name__}: {exc}"
    # The numbers of name resolution are below 0, and have words of their own.
    return (os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror) or str(exc)


def _differs(before: View, after: View) -> bool:
    """Whether a thread may wait for this change; a new sentence alone wakes none."""
    if after is before:
        return False
    changed = (after.state, after.waiting, after.out_since) != (before.state, before.waiting, before.out_since)
    return changed or after.world is not before.world


_BUFFER = memoryview(bytearray(64 * 1024))
"""All links live on one loop and read one after another."""


class _LinkConnection(asyncio.BufferedProtocol):
    """One connection of a link."""

    _transport: asyncio.Transport

    def __init__(self, link: Link) -> None:
        self._link = link
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._link.opened(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self._link.received(bytes(_BUFFER[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        welcomed = self._link.is_connected
        self._link.ended(self._transport, exc)
        if not self.ended.done():
            self.ended.set_result(welcomed)
