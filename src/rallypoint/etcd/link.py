"""A node's link to its run in etcd, as other threads use it: they ask, and wait for what comes of it."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from rallypoint.core import codec
from rallypoint.core import node as core
from rallypoint.core.events import CloseAsked
from rallypoint.core.model import Reason
from rallypoint.core.node import State, View
from rallypoint.core.notices import Placed
from rallypoint.errors import RendezvousConnectionError, RendezvousError
from rallypoint.etcd import estate
from rallypoint.etcd.link_turns import HURRY_S, LinkTurns
from rallypoint.etcd_client import EtcdError
from rallypoint.protocol import Peer

log = logging.getLogger("rallypoint.etcd")

_WISH_S = 10.0
"""How long it may take to write down a wish."""


class EtcdLink(LinkTurns):
    """One node's link to one run.  Methods may be called from any thread."""

    @property
    def view(self) -> View:
        """What the node knows at the moment."""
        return self._view

    @property
    def trouble(self) -> str:
        """Why etcd could not be reached when it was tried last."""
        return self._trouble

    @property
    def refusal(self) -> str | None:
        """Why there is no use in trying again; None while there is hope."""
        return self._refusal

    @property
    def is_connected(self) -> bool:
        """Whether etcd answered when it was asked last."""
        return self._reached

    @property
    def run_lease(self) -> int:
        """The lease that all of the run hangs on, as far as is known; 0 where there was no board yet."""
        return self._reading.run_lease

    def get_ready(self) -> None:
        """Ask for what a first join needs, without waiting for it: a way to etcd, and a lease."""
        self._client.warm_up()
        if not self._client.needs_login:
            with suppress(EtcdError, RuntimeError):  # whoever joins tries again, and hears what is wrong
                self._own_lease()

    def join(self, timeout_s: float) -> None:
        """Ask for a place in the next world; the view tells what became of it."""
        self.check()
        with self.changed:
            self._ask()
            has_left = self._view.state is State.IDLE and (self._reading.node_id or self._is_worn)
            if self._view.state is State.FENCED or has_left:
                # Who was given up or has left comes back as another: its old name is about to be cleared away.
                self._view, self._is_worn = core.reborn(self._view, self._reborn(self._view.node)), False
            try:
                self._view, self._to_say = core.join(self._view, time.monotonic(), timeout_s)
            except ValueError as exc:
                log.debug("not joined: %s", exc)
        self._start()

    def leave(self, reason: Reason, why: str = "") -> None:
        """Leave for good; the link stays until `close`."""
        self.check()
        with self.changed:
            self._view, left = core.leave(self._view, reason, why)
            self._ask()
            self._to_say = left
            self.changed.notify_all()
        self._start()

    def connect(self) -> None:
        """Connect without joining."""
        self.check()
        self._start()

    def ask_to_close(self, why: str = "") -> bool:
        """Write down the wish; False where etcd cannot be reached now."""
        self.check()
        with self.changed:
            self._ask()
            asked = CloseAsked(by=self._view.node.id, why=why, incarnation=self._view.incarnation)
            self._to_wish, self._wish = codec.encode_message(asked), self._keys.wish(secrets.token_hex(8))
        self._start()
        deadline = time.monotonic() + _WISH_S
        return self.wait(lambda _: not self._to_wish or self._refusal is not None, deadline) and not self._to_wish

    def is_heard(self, deadline: float) -> bool:
        """Wait until all that was said is in etcd for good, and a wish to close is granted."""
        if not self.wait(lambda _: self._to_say is None or self._refusal is not None, deadline):
            return False
        if self._refusal is not None or self._unsaid:
            return False
        return not self._wish or estate.is_granted(self._client, self._keys, self._run_id, self._wish, deadline)

    def peers(self, placed: Placed, timeout_s: float) -> Iterator[Peer]:
        """The members of a world in the order of their ranks."""
        board = self._reading.board
        if board is None or board.world is None or board.world.seal_id != placed.seal_id:
            raise RendezvousError("that world is over: join again to learn who is in the next one")
        try:
            roster = estate.read_roster(self._client, self._keys, self._run_id, board.world, timeout_s=timeout_s)
        except EtcdError as exc:
            raise RendezvousConnectionError(f"the roster cannot be read: {exc}") from exc
        for rank, seated in enumerate(roster):
            node = seated.node
            yield Peer(rank, node.name, node.address, node.topology)

    def wait(self, until: Callable[[View], bool], deadline: float | None = None) -> bool:
        """Wait until the view is as wanted; False where the deadline passes first."""
        self.check()
        with self.changed:
            while not until(self._view):
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                self.changed.wait(left_s)
        return True

    def where(self) -> str:
        """The endpoints."""
        return f"etcd {','.join(self._client.endpoints)}"

    def check(self) -> None:
        """Refuse to be used in a forked child."""
        if os.getpid() != self._pid:
            raise RendezvousError(
                "this handler belongs to the process that forked this one: create a handler after the fork, or start "
                "the process by exec or spawn"
            )

    def close(self) -> None:
        """End the link: the node's lease goes, and with it its key.  In a forked child there is nothing to end."""
        if os.getpid() != self._pid:
            return
        with self.changed:
            self._ending = True
            self.changed.notify_all()
        self._wake()
        if self._post is not None:
            self._post.over.wait(4 * HURRY_S)
        elif self._lease is not None and self._lease.is_granted:
            self._end()  # it never had a turn, and will have none
        elif self._lease is not None:
            self._lease.release()
