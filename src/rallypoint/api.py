"""The native way to take part: `rallypoint.join(...)`.

with rallypoint.join("10.0.0.5:29400", run="llama", nodes="2:4") as place:
    print(place.rank, place.world_size)
    place.changed.wait()          # a member was lost, or a newcomer waits
    place = place.again()         # the next world
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from rallypoint.backends.endpoints import backend_at, check_endpoint
from rallypoint.client.member import Member
from rallypoint.client.round_store import RoundStore
from rallypoint.client.wait_reports import reported, reporter_for_program
from rallypoint.messages.notices import Placed
from rallypoint.messages.types import Reason
from rallypoint.protocol import Peer
from rallypoint.torch_bridge.errors import in_torch_words_too

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in `typing` since Python 3.11; type checkers bring it for 3.10

    from rallypoint.backends.join_options import JoinOptions


@in_torch_words_too
def join(
    endpoint: str,
    *,
    run: str,
    nodes: str | int = 1,
    local_addr: str | None = None,
    quiet: bool = False,
    **options: Unpack[JoinOptions],
) -> Place:
    """Join a run and wait for a place in its next world.

    The endpoint is that of a server, `10.0.0.5:29400`, or names what the nodes elect their server through:
    `etcd://a:2379,b:2379,c:2379` (`etcds://` with TLS), `etcd-v2://a:2379`, `c10d://10.0.0.5:29400` for a store that the
    process at that address serves, `file:///shared/file` for a file that all nodes see.  `nodes` is how many there are to
    be: `4`, or `"2:4"` for two to four.  The options are those of the backend; an unknown one is refused with the list.
    Use it in a `with` block: leaving it without an exception means that this node has finished, leaving it with one that
    it withdrew.

    A wait of more than two seconds says what it waits for: to the logger `rallypoint` where the program has a handler for
    its INFO messages, otherwise on stderr; with `quiet` nowhere.  That holds for `again()` and for leaving as well.
    """
    low, high = _bounds(nodes)
    check_endpoint(endpoint)
    backend = backend_at(endpoint)
    member, join_timeout_s = backend.open(endpoint, run, low, high, local_addr, options, trains=True)
    try:
        with _reported(member, quiet=quiet):
            placed = member.join(join_timeout_s)
        return Place(member, join_timeout_s, placed, quiet=quiet)
    except BaseException:
        member.withdraw("its join failed")
        raise


class Place:
    """A place in a sealed world."""

    def __init__(self, member: Member, join_timeout_s: float, placed: Placed, *, quiet: bool = False) -> None:
        self._member = member
        self._quiet = quiet
        self._join_timeout_s = join_timeout_s
        self._placed = placed
        self._store = member.store(placed)
        self.changed = Change(member)

    @property
    def rank(self) -> int:
        """This node's rank, from 0 on."""
        return self._placed.rank

    @property
    def world_size(self) -> int:
        """How many nodes are in the world."""
        return self._placed.size

    @property
    def round(self) -> int:
        """The number of the round; it only grows."""
        return self._placed.round

    @property
    def fence(self) -> str:
        """A text that names this world and no other: write it beside a checkpoint, and refuse an older one (rule 9)."""
        return f"{self._placed.incarnation}/{self._placed.round}/{self._placed.seal_id}"

    @property
    def store(self) -> RoundStore:
        """The round's bootstrap store, connected on first use."""
        return self._store

    def peers(self) -> Iterator[Peer]:
        """The members of the world in the order of their ranks, fetched page by page."""
        return self._member.peers()

    @in_torch_words_too
    def again(self) -> Place:
        """Wait for a place in the next world; this one is over with it."""
        with _reported(self._member, quiet=self._quiet):
            placed = self._member.join(self._join_timeout_s)
        self._placed, self._store = placed, self._member.store(placed)
        return self

    def finished(self) -> bool:
        """This node's work is done: leave without breaking the world (rule 8)."""
        return self._leave(Reason.FINISHED)

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._member.withdraw("it was interrupted")
        else:
            self._leave(Reason.FINISHED if kind is None else Reason.WITHDREW, repr(error) if error else "")

    def _leave(self, reason: Reason, why: str = "") -> bool:
        with _reported(self._member, quiet=self._quiet):
            return self._member.leave(reason, why[:1000])


class Change:
    """Whether it is time to join again: a member was lost, or a newcomer could be admitted."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def is_set(self) -> bool:
        """Whether it is; from memory, at once."""
        return self._member.waiting() > 0 or self._member.is_closed()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is; False where the time passes first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return self._member.wait(lambda _: self.is_set(), deadline)


def _reported(member: Member, *, quiet: bool) -> AbstractContextManager[None]:
    return reported(member, None if quiet else reporter_for_program())


def _bounds(nodes: str | int) -> tuple[int, int]:
    low, colon, high = str(nodes).partition(":")
    try:
        return int(low), int(high if colon else low)
    except ValueError:
        raise ValueError(f"nodes is {nodes!r}, but should be a number such as 4, or a range such as '2:4'") from None
