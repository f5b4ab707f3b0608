"""One node's membership in a run through a server, wherever that is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rallypoint.client.background import background
from rallypoint.client.identity import fresh_identity, process_token
from rallypoint.client.link import Link, Prepare
from rallypoint.client.locator import Locator
from rallypoint.client.member import Member
from rallypoint.client.round_store import FOR_MEMBERS, StoreHosting
from rallypoint.client.session import Session
from rallypoint.client.view import State, View
from rallypoint.messages.types import Bounds, Node, Reason, Settings

_OUT = (State.CLOSED, State.REFUSED, State.FENCED)


class LocatedMember(Member):
    """A node that takes part in a run through the server that a locator finds."""

    def __init__(
        self,
        locator: Locator,
        run_id: str,
        bounds: Bounds,
        settings: Settings,
        node: Node,
        *,
        call_s: float = 60.0,
        close_s: float = 30.0,
        hosting: StoreHosting = FOR_MEMBERS,
    ) -> None:
        self._locator = locator

        def open_link(prepare: Prepare) -> Link:
            view = View(node=node, bounds=bounds, settings=settings)
            session = Session(run_id, view, process=process_token())
            return Link(locator, session, prepare=prepare, reborn=fresh_identity)

        super().__init__(
            run_id, open_link, own_address=bool(node.address), call_s=call_s, close_s=close_s, hosting=hosting
        )
        # Connected when it is made: a world is formed by one message of each node and one answer.
        self.link.connect()

    def _leave(self, reason: Reason, why: str, deadline: float, *, in_haste: bool = False) -> bool:
        """Leave for good.  One that is interrupted at that, as by Ctrl-C, serves nobody any longer and renews no claim."""
        try:
            return super()._leave(reason, why, deadline, in_haste=in_haste)
        except BaseException:
            self.link.close()
            self._let_go(time.monotonic())
            self._withdraw_stores()
            raise

    def stop(self) -> None:
        """End and tell nobody."""
        super().stop()
        locator = self._locator
        background().call(lambda: asyncio.ensure_future(locator.abandon()))

    @property
    def hosts_medium(self) -> bool:
        """Whether the medium of the register lives in this process."""
        return self._locator.hosts_medium

    def _let_go(self, deadline: float) -> bool:
        """Serve the others for as long as they are connected, where this process serves."""
        return background().run(self._locator.release(max(deadline - time.monotonic(), 0.0)))


def ranks_of_process(sessions: Sequence[Session]) -> tuple[str, tuple[int, ...]]:
    """The seal id of the newest world that nodes of this process are in, and their ranks in it."""
    worlds = [session.view.world for session in sessions if session.view.state not in _OUT]
    known = [world for world in worlds if world is not None]
    if not known:
        return "", ()
    seal_id = max(known, key=lambda world: world.round).seal_id
    return seal_id, tuple(sorted({world.rank for world in known if world.seal_id == seal_id}))
