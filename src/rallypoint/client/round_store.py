"""The bootstrap store of a round (rule 12): offered by every node before it joins, served by rank 0, over with its round."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rallypoint import forks
from rallypoint.client.addresses import on_our_link
from rallypoint.errors import RendezvousError
from rallypoint.forks import OpenedIn
from rallypoint.messages.notices import Placed
from rallypoint.net import parse_endpoint, written
from rallypoint.stores import PrefixStore, Store, StoreServer, StoreServerCore, TcpStore
from rallypoint.stores.errors import RoundOverError, StoreConnectionError, StoreError, StoreForkError, StoreTimeoutError
from rallypoint.stores.prefix import LazyPrefixStore
from rallypoint.stores.tcp.guarded import GuardedStoreCore
from rallypoint.stores.tcp.server import listen
from rallypoint.waiting import Deadline

if TYPE_CHECKING:
    from rallypoint.client.member import Member

VERDICT_S = 10.0
"""How long the news is awaited that a world is over: a host that dies breaks its connections before it is declared lost."""

_SOON_S = 0.5
"""How long that news is awaited before a connection shows whether the store's server is still there."""

_ATTEMPT = timedelta(seconds=1)
"""How long one attempt to connect takes, before a look at whether the world still stands."""


class StoreHosting(NamedTuple):
    """How a node serves the store of a round in which it has rank 0.

    `serve` takes a listening socket over, and the secret that clients are to prove; it returns what ends the store.
    `has_secret` is False for servers that cannot ask for one.
    """

    serve: Callable[[socket.socket, str], Callable[[], None]]
    has_secret: bool = True


def _serve(listener: socket.socket, secret: str, *, for_workers: bool) -> Callable[[], None]:
    """Serve a store in a thread of this process."""
    others = StoreServerCore() if for_workers else None
    server = StoreServer(GuardedStoreCore(secret, others=others) if secret else StoreServerCore())
    server.start_in_thread(listener)
    return server.stop


FOR_MEMBERS = StoreHosting(partial(_serve, for_workers=False))
"""Our own server, for those who know the secret and nobody else."""
FOR_WORKERS = StoreHosting(partial(_serve, for_workers=True))
"""Our own server where workers are told its address, which may use torch: clients without the secret have keys of their own."""


def cannot_listen(address: str, problem: StoreError) -> RendezvousError:
    """What to say, and to do, where a node cannot offer a store on its own address."""
    advice = "local_addr must be an address of this machine"
    if isinstance(problem.__cause__, OSError) and problem.__cause__.errno in (errno.EMFILE, errno.ENFILE):
        advice = "let this process open more files (ulimit -n), or see what has so many open"
    return RendezvousError(f"this node would serve a store on {address}, but {problem}: {advice}")


class StoreOffer:
    """A bound port that a node would serve a round's store on, if it became rank 0; it stands until that happens."""

    def __init__(self, address: str, *, has_secret: bool = True) -> None:
        self.address = address
        self.secret = secrets.token_hex(16) if has_secret else ""
        self._listener: socket.socket | None = listen(address)
        self.endpoint = written(address, self._listener.getsockname()[1])
        forks.release_in_children(self)

    @property
    def is_open(self) -> bool:
        """Whether it still stands: neither taken nor withdrawn."""
        return self._listener is not None

    def take(self) -> socket.socket | None:
        """The listening socket, to be served; once."""
        listener, self._listener = self._listener, None
        return listener

    def withdraw(self) -> None:
        """It is not needed."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def forked(self) -> None:
        """In a forked child: a copy of the socket would take connections in when the parent has died."""
        self.withdraw()


class RoundStore(LazyPrefixStore):
    """The store of one sealed world, with that world's own keys only; it connects on first use.

    Rank 0 serves it, on the socket that it had bound before it joined, until it calls `stop`.  When the world is over for
    this node, every call raises `RoundOverError`, also one that waits.  A forked child may open the store, if its parent
    did not, but is not told of the world's end.
    """

    def __init__(
        self, member: Member, placed: Placed, timeout: timedelta, stop: Callable[[], None] | None = None
    ) -> None:
        self.seal_id = placed.seal_id
        host, self.port = parse_endpoint(placed.store, 0)
        self.host = on_our_link(host, member.view.node.address)
        self.secret = placed.store_secret
        self._member, self._placed = member, placed
        self._title = f"the store of round {placed.round} of run {member.run_id!r}"
        self._opened_in = OpenedIn()
        self._why_over: str | None = None
        self._closing: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._ending = threading.Lock()
        self._watched = False
        self._stop = stop
        self.prefix = f"{member.run_id}/{placed.incarnation}/{placed.round}"
        super().__init__(self.prefix, lambda: self._open_in_round(timeout), self._judge)

    def clone(self) -> PrefixStore:
        timeout = self.timeout
        return LazyPrefixStore(self.prefix, lambda: self._open_in_round(timeout), self._judge)

    def open(self, timeout: timedelta) -> PrefixStore:
        """The same keys over a connection of its own, which ends with the round."""
        return PrefixStore(self.prefix, self._open_in_round(timeout))

    def connect(self, timeout: timedelta) -> tuple[PrefixStore, Callable[[], None]]:
        """The same keys over a connection that outlasts the round, and what ends it, from any thread."""
        store, close = self._open(timeout)
        return PrefixStore(self.prefix, store), close

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Whether the round is over for this node; waits for the news for so long."""
        return self._why_over is not None or self._member.wait_until_over(self._placed, wait_s)

    def stop(self) -> None:
        """The round is over for this node: end its connections, and the server, where this process has it."""
        self._end()
        if self._stop is not None:
            self._stop()

    def _open(self, timeout: timedelta) -> tuple[Store, Callable[[], None]]:
        """The store below and a method that closes it; whoever holds the store holds that method's object."""
        store = TcpStore(self.host, self.port, timeout=timeout, secret=self.secret)
        return store, store.close

    def _open_in_round(self, timeout: timedelta) -> Store:
        """Connect for as long as the round lasts; the connection ends with it."""
        if self._is_forked:
            return self._open(timeout)[0]
        term = Deadline.of(timeout)
        while not self.is_over():
            try:
                store, close = self._open(min(_ATTEMPT, timedelta(seconds=term.left_s())))
            except StoreTimeoutError as exc:  # noqa: PERF203  # trying again is the point
                if not term.left_s():
                    raise StoreTimeoutError(
                        f"{self._title} was not reached within {term.timeout_s:g} s: {exc}"
                    ) from exc
            else:
                store.set_timeout(timeout)
                self._end_with_round(close)
                return store
        raise self._over()

    def _end_with_round(self, close: Callable[[], None]) -> None:
        with self._ending:
            self._closing = [each for each in self._closing if each() is not None]
            self._closing.append(weakref.WeakMethod(close))
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="rallypoint-round", daemon=True).start()
        if self.is_over():
            self._end()

    def _watch(self) -> None:
        self._member.wait_until_over(self._placed)
        self._end()

    def _end(self) -> None:
        with self._ending:
            if self._why_over is None:
                self._why_over = self._member.why_over(self._placed)
            closing, self._closing = self._closing, []
        for each in closing:
            if (close := each()) is not None:
                close()

    def _judge(self, problem: Exception) -> Exception:
        """The error of a call that failed: where the round is over, one that says so, and why."""
        is_final = isinstance(problem, (RoundOverError, StoreForkError)) or self._is_forked
        if is_final or not isinstance(problem, (StoreError, TimeoutError)):
            return problem
        is_over = self.is_over() or (isinstance(problem, StoreConnectionError) and self._has_broken())
        return self._over() if is_over else problem

    def _has_broken(self) -> bool:
        """After a connection was lost: whether the round is over.  That is awaited for long only if the server is gone."""
        if self.is_over(_SOON_S):
            return True
        try:
            _, close = self._open(_ATTEMPT)
        except (StoreError, TimeoutError):
            return self.is_over(VERDICT_S)
        close()
        return False

    def _over(self) -> RoundOverError:
        why = self._why_over or self._member.why_over(self._placed)
        return RoundOverError(f"{self._title} is of no use any more, because the round is over: {why}")

    @property
    def _is_forked(self) -> bool:
        """Whether this is a child by fork, which hears nothing of its parent's membership."""
        return not self._opened_in.is_this_process
