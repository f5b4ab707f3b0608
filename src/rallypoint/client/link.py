"""A node's link to its server: the session on a real socket, made anew whenever it breaks.

Links live on the background loop.  Other threads give them orders and wait for the view to change.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from rallypoint import protocol
from rallypoint.client.addresses import is_address
from rallypoint.client.background import background
from rallypoint.client.locator import Locator, Target
from rallypoint.client.probe import what_answers
from rallypoint.client.session import Session
from rallypoint.client.view import State, View
from rallypoint.client.waiters import Waiters
from rallypoint.core.model import EndedIncarnation
from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rallypoint.messages.notices import Placed
from rallypoint.messages.types import Node, Reason
from rallypoint.protocol import Peer

log = logging.getLogger("rallypoint.link")

FIRST_RETRY_S = 0.02
CONNECT_S = 5.0


Prepare = Callable[[Node, Callable[[], str]], Node]
"""Completes a node before it joins, given how to learn the address by which this machine reaches the server.

Raises RendezvousError where the node cannot take part as it is; a link makes that its `refusal`.
"""


class Link:
    """One node's connection to one run.  Methods may be called from any thread."""

    def __init__(self, locator: Locator, session: Session, *, prepare: Prepare, reborn: Callable[[Node], Node]) -> None:
        self._locator = locator
        self._target: Target | None = None
        self._waiters = Waiters()
        self._joins_ordered = self._joins_made = 0
        self.tried: list[str] = []
        self._trouble = "no connection was tried yet"
        self._session = session
        self._prepare = prepare
        self._reborn = reborn
        self._background = background()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._hurry = asyncio.Event()
        """Set when the next attempt to connect is not to be put off: the node leaves, or the server is elsewhere."""
        self._connecting: asyncio.Task[Any] | None = None
        self._gave_up = ""
        self._closed = False
        self.refused_by: Exception | None = None
        """What the locator found to be in the way for good."""

    # For other threads --------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """What the node knows at the moment."""
        return self._session.view

    def join(self, timeout_s: float, unless: Callable[[], bool]) -> None:
        """Ask for a place in the next world, unless that is of no use by then.

        The view tells what became of it, once the link `is_joining` no more.
        """
        number = self._joins_ordered = self._joins_ordered + 1
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
        if self._session.welcomed and self._session.serving.in_doubt:
            return self._locator.doubt()
        return self._locator.explain(self._trouble)

    @property
    def session(self) -> Session:
        """The node's end of the protocol; on the loop only."""
        return self._session

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at the moment, and the server has taken it."""
        return self._session.welcomed

    @property
    def refusal(self) -> str | None:
        """Why the server will not have this node at all; None while there is hope.

        Who holds a world hopes on, whatever answers in its server's place: that one may be back, or its grace ends
        (rule 14).
        """
        return None if self.view.state is State.HOLDS else self._turned_away

    @property
    def _turned_away(self) -> str | None:
        goodbye = self._session.goodbye
        return goodbye.why if goodbye is not None and goodbye.final else None

    def leave(self, reason: Reason, why: str = "") -> None:
        """Leave for good; the connection stays until `close`."""
        self._background.run(self._leave(reason, why))

    def ask_to_close(self) -> bool:
        """Ask the server to close the run; it is asked until it has answered, and then told by `is_heard`."""
        self._background.run(self._ask_to_close())
        return True

    def is_heard(self, deadline: float) -> bool:
        """Wait until the server has acknowledged what must not be lost: a leave, a close; False where it does not."""
        self.wait(lambda _: self._session.is_heard or self.refusal is not None, deadline)
        return self._session.is_heard

    def peers(self, placed: Placed, timeout_s: float) -> Iterator[Peer]:
        """The members of a world in the order of their ranks, page by page."""
        start = 0
        while start < placed.size:
            answer = self.ask(partial(_ask_peers, placed.seal_id, start), timeout_s)
            if not isinstance(answer, protocol.Peers):
                raise RendezvousError(getattr(answer, "why", "") or "the server did not say who the peers are")
            if not answer.page:
                raise RendezvousError(f"the server knows {answer.total} of {placed.size} peers only")
            yield from answer.page
            start += len(answer.page)

    def ask(self, ask: Callable[[int], protocol.Ask], timeout_s: float) -> protocol.Answer:
        """Ask the server something and wait for the answer."""
        deadline = time.monotonic() + timeout_s
        if not self.wait(lambda _: self.is_connected or self.refusal is not None, deadline):
            raise RendezvousConnectionError(f"the server at {self.where()} cannot be reached: {self.trouble}")
        answered: list[protocol.Answer] = []
        arrived = threading.Event()

        def answer(what: protocol.Answer) -> None:
            answered.append(what)
            arrived.set()

        self._order(lambda: self._ask(ask, answer))
        if not arrived.wait(max(deadline - time.monotonic(), 0.0)):
            raise RendezvousConnectionError(f"the server at {self.where()} did not answer within {timeout_s:.0f} s")
        return answered[0]

    def wait(self, until: Callable[[View], bool], deadline: float | None = None) -> bool:
        """Wait until the view is as wanted; False where the deadline passes first."""
        self._background.check()
        return self._waiters.wait(lambda: until(self.view), deadline)

    def close(self) -> None:
        """End the link."""
        self._order(self._end)

    def where(self) -> str:
        """Where the server is looked for, with the addresses that a name was found at."""
        found = f" ({', '.join(self.tried)})" if self.tried else ""
        return f"{self._locator.where()}{found}"

    # On the loop --------------------------------------------------------------------------------------------------

    def _order(self, action: Callable[[], object]) -> None:
        self._background.call(action)

    def check(self) -> None:
        """Refuse to be used in a forked child."""
        self._background.check()

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
        self._session.goodbye = self.refused_by = None
        if self.view.state is State.FENCED:
            self._do(lambda: self._session.reborn(self._reborn(self.view.node)))
            self._drop()
        elif self._transport is not None:
            self._complete_node(self._transport, joining=True)
        try:
            self._do(lambda: self._send(self._session.join(time.monotonic(), timeout_s)))
        except ValueError as exc:
            log.debug("not joined: %s", exc)
        self._start()
        if self._timer is not None:
            # Nodes that join together beat together, and a server that hears many at a time works half as much.
            self._plan_beat()

    async def _leave(self, reason: Reason, why: str) -> None:
        self._do(lambda: self._send(self._session.leave(reason, why)))
        self._hurry.set()

    async def _ask_to_close(self) -> None:
        self._do(lambda: self._send(self._session.close_run()))

    def _ask(self, ask: Callable[[int], protocol.Ask], answer: Callable[[protocol.Answer], None]) -> None:
        if self._transport is None or self._transport.is_closing():
            answer(protocol.Done(0, False, "the connection to the server ended"))
        else:
            self._send(self._session.ask(ask, answer))

    def _start(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._stay_connected())

    def _end(self) -> None:
        self._closed = True
        self._stop_beating()
        if self._task is not None:
            self._task.cancel()
        self._send(self._session.parting())
        self._drop()
        self._waiters.wake()

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def _stay_connected(self) -> None:
        """Connect, stay, and connect again with a growing pause; beat all the while."""
        self._plan_beat()
        pause = FIRST_RETRY_S
        is_wanted = False
        try:
            while not self._closed and self.refusal is None:
                line = _LinkConnection(self)
                try:
                    await self._connect(line)
                    # A server that turns nodes away is not to be stormed by them.
                    welcomed = await line.ended
                    pause = FIRST_RETRY_S if welcomed and self._turned_away is None else pause
                    if self._gave_up and not welcomed and not self.view.incarnation:
                        self._trouble += await what_answers(self._target) if self._target is not None else ""
                except (OSError, UnicodeError, asyncio.TimeoutError) as exc:
                    self._failed(exc)
                pause = await self._pause(pause)
        except asyncio.CancelledError:
            # Whoever joined since the refusal that ended this wants to know whether it still holds.
            is_wanted = not self._closed and self.refusal is None
            raise
        finally:
            self._stop_beating()
            self._task = None
            if is_wanted:
                self._start()

    async def _pause(self, pause_s: float) -> float:
        """Pause between two attempts to connect; how long the next pause is.

        A node that leaves has little time, and one that heard of another server knows better: they try again at once,
        and the pauses grow anew.
        """
        pausing = asyncio.wait_for(self._hurry.wait(), random.uniform(pause_s / 2, pause_s))
        with suppress(TimeoutError, asyncio.TimeoutError):
            await pausing
            return FIRST_RETRY_S
        # Who pauses for longer than it is waited for would be lost with every outage.
        settings = self.view.settings
        return min(pause_s * 2, settings.reconnect_backoff_s, settings.heartbeat_timeout_s / 3)

    async def _connect(self, line: _LinkConnection) -> None:
        target = self._target = await self._locator.find(self)
        self._hurry.clear()
        self._session.secret, self._session.claim_id = target.secret, target.claim_id
        for host in target.hosts[:-1]:
            with suppress(OSError, UnicodeError, asyncio.TimeoutError):
                await self._connect_to(host, target.port, line)
                return
        await self._connect_to(target.hosts[-1], target.port, line)

    async def _connect_to(self, host: str, port: int, line: _LinkConnection) -> None:
        loop = asyncio.get_running_loop()
        if not is_address(host):
            # Names are looked up anew each time: they may come late, and they may change.
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self.tried = [str(address[0]) for *_, address in found]
            if self._hurry.is_set():
                raise asyncio.TimeoutError("another server was found meanwhile")
        self._connecting = loop.create_task(loop.create_connection(lambda: line, host, port))
        timer = loop.call_later(CONNECT_S, self._connecting.cancel)
        try:
            await self._connecting
        except asyncio.CancelledError:
            if self._closed:
                raise
            why = (
                "another server was found meanwhile" if self._hurry.is_set() else f"no answer within {CONNECT_S:.0f} s"
            )
            raise asyncio.TimeoutError(why) from None
        finally:
            timer.cancel()
            self._connecting = None

    def _failed(self, exc: Exception) -> None:
        if isinstance(exc, OSError):
            # The numbers of name resolution are below 0, and have words of their own.
            words = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror
            self._trouble = words or str(exc)
        else:
            self._trouble = f"{type(exc).__name__}: {exc}"
        self._do(lambda: self._session.ended(time.monotonic()), always=True)
        if self._target is not None:
            self._locator.failed(self, self._target, refused=isinstance(exc, ConnectionRefusedError))

    # For the locator ----------------------------------------------------------------------------------------------

    def move(self) -> None:
        """The server is elsewhere now: connect there at once."""
        self._hurry.set()
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
        elif self._transport is not None:
            self._gave_up = "another server has taken its place"
            self._drop()

    def tell_ended(self, how: EndedIncarnation) -> None:
        """The register says that this incarnation has ended (rule 17h)."""
        self._do(lambda: self._session.told_ended(how))

    def refuse(self, problem: Exception) -> None:
        """There is no use in looking for the server; a node that is connected to one need not."""
        if self._transport is not None:
            return
        self.refused_by = problem
        self._session.goodbye = protocol.Goodbye(str(problem) or repr(problem), final=True)
        self._do(lambda: self._session.ended(time.monotonic()), always=True)
        if self._task is not None and self.refusal is not None:
            self._task.cancel()

    def _stop_beating(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan_beat(self) -> None:
        self._stop_beating()
        self._timer = asyncio.get_running_loop().call_later(self._session.beat_after_s, self._beat)

    def _beat(self) -> None:
        now = time.monotonic()
        if self._session.is_stale(now) and self._transport is not None:
            silence_s = self.view.settings.heartbeat_timeout_s
            self._gave_up = f"it took the connection and was silent for {silence_s:.1f} s"
            self._transport.abort()
        self._plan_beat()
        self._do(lambda: self._send(self._session.beat(now)))
        self._locator.beat(self)

    def opened(self, transport: asyncio.Transport) -> None:
        """A connection was made."""
        self._transport = transport
        self._gave_up = ""
        self._complete_node(transport)
        if self.refusal is None:
            self._do(lambda: self._send(self._session.opening(time.monotonic())))

    def received(self, data: bytes) -> None:
        """Bytes arrived."""
        was_welcomed = self._session.welcomed
        try:
            self._do(lambda: self._session.received(data, time.monotonic()))
        except RendezvousStateError as exc:
            if self._target is not None and self._target.claim_id:
                # Something else answers at the port of a claim: it may be another's by now, and is never final (17a).
                self._gave_up = str(exc)
                self._drop()
            else:
                self._refuse(str(exc))
        if self._session.is_outdated:
            self._gave_up = "another server has taken its place"
            self._drop()
        elif self._session.welcomed and not was_welcomed and self._target is not None:
            self._locator.welcomed(self, self._target)

    def ended(self, transport: asyncio.Transport, exc: Exception | None) -> None:
        """A connection is gone."""
        if transport is not self._transport:
            return
        self._transport = None
        self._trouble = self._why_ended(exc)
        self._do(lambda: self._session.ended(time.monotonic()), always=True)
        if self._target is not None and not self._closed:
            self._locator.failed(self, self._target, refused=False)

    def _why_ended(self, exc: Exception | None) -> str:
        if self._session.goodbye is not None:
            return self._session.goodbye.why
        if self._gave_up or exc is not None:
            return self._gave_up or str(exc)
        said = "" if self._session.welcomed else " without a word: something else may listen there"
        return f"it closed the connection{said}"

    def _refuse(self, why: str) -> None:
        """There is no use in trying again."""
        self._session.goodbye = protocol.Goodbye(why, final=True)
        self._drop()

    def _complete_node(self, transport: asyncio.Transport, *, joining: bool = False) -> None:
        """Give the node an address, and a place for the store that it may come to serve, before it joins."""
        if self.view.state in (State.FINISHED, State.CLOSED) or (self.view.state is State.HOLDS and not joining):
            return
        local = str(transport.get_extra_info("sockname")[0])
        try:
            node = self._prepare(self.view.node, lambda: local)
        except RendezvousError as exc:
            self._refuse(str(exc))
            return
        self._session.view = msgspec.structs.replace(self.view, node=node)

    def _send(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def _do(self, action: Callable[[], object], *, always: bool = False) -> None:
        """Let the session do something, and wake whoever waits for the view to change."""
        before, told = self.view, (self._session.welcomed, self._session.is_heard)
        action()
        if always or (self._session.welcomed, self._session.is_heard) != told or differs(before, self.view):
            self._waiters.wake()


def differs(before: View, after: View) -> bool:
    """Whether somebody may wait for this change; a new sentence alone wakes nobody."""
    if after is before:
        return False
    return (after.state, after.waiting, after.out_since) != (before.state, before.waiting, before.out_since) or (
        after.world is not before.world
    )


def _ask_peers(seal_id: str, start: int, number: int) -> protocol.AskPeers:
    return protocol.AskPeers(number, seal_id, start)


_BUFFER = memoryview(bytearray(64 * 1024))
"""All links live on one loop and read one after another."""


class _LinkConnection(asyncio.BufferedProtocol):
    """One connection of a link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._transport: asyncio.Transport | None = None
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
        assert self._transport is not None, "a connection that was made is lost"
        welcomed = self._link.is_connected
        self._link.ended(self._transport, exc)
        if not self.ended.done():
            self.ended.set_result(welcomed)
