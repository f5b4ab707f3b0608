"""What one node reads: the board, and what it alone is told."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

from rallypoint.core import codec
from rallypoint.core.notices import Placed, Said
from rallypoint.etcd.board import Board, decode_board
from rallypoint.etcd.keys import Keys
from rallypoint.etcd_client import EtcdClient, KeyValue, Resync, Watch, get_op
from rallypoint.etcd_client.messages import RangeResponse

_MOMENT_S = 0.1
_CROWD = 64  # so many watches in a process, and those who come later share them


class Reading:
    """One node's reading of one run.  For one thread; `wake` is called from others when there is something to read."""

    def __init__(self, client: EtcdClient, keys: Keys, run_id: str, wake: Callable[[], None]) -> None:
        self.board: Board | None = None
        self.run_lease = 0
        self.told: Said | None = None
        self.node_id = ""
        self._client = client
        self._keys = keys
        self._run_id = run_id
        self._wake = wake
        self.board_at = 0
        self._looked_up = ""
        self._missing = ("", 0.0)
        self._boards: Watch | None = None
        self._tellings: Watch | None = None
        self._since = 0  # all that was on the board before is known, or was of an earlier run
        self._told_at = 0  # what was written until then is known, or was not for this node
        self._early: list[Watch] = []
        self._early_id = ""

    @property
    def is_open(self) -> bool:
        """Whether news arrive by themselves."""
        return self._boards is not None

    @property
    def is_crowded(self) -> bool:
        """Whether many nodes share this process."""
        return self._client.watching >= _CROWD

    def look(self) -> None:
        """Read the board once."""
        found = self._client.range(self._keys.board)
        self._take_found(found.kvs, found.revision)

    def _read_both(self) -> None:
        found = self._client.transaction((), [get_op(self._keys.board), get_op(self._keys.told(self.node_id))])
        board, told = (answer.kvs for answer in found.answers if isinstance(answer, RangeResponse))
        self._take_found(board, found.revision)
        for kv in told:
            self._take_telling(kv)

    def _take_found(self, kvs: Sequence[KeyValue], revision: int) -> None:
        if kvs:
            self.take_board(kvs[0])
        else:
            self._none_at(revision)

    def begin_ahead(self, node_id: str) -> None:
        """Watch before the node says its word: what it is told then arrives sooner than if it began to watch after it.

        Where many nodes share a process there is no need: they share the watches of the first ones, and began in time.
        """
        if self._boards is None and self._early_id != node_id and not self.is_crowded:
            self._drop_early()
            told, near = self._keys.told(node_id), self._keys.told_near(node_id)
            self._early = [
                self._client.watch(self._keys.board, ahead=True, wake=self._wake),
                self._client.watch(told, ahead=True, within=near, wake=self._wake),
            ]
            self._early_id = node_id

    def stand_down(self) -> None:
        """The word was not said after all."""
        if self._boards is None:
            self._drop_early()

    def begin(self, node_id: str, revision: int, *, in_doubt: bool) -> None:
        """Watch from a revision on; where it is in doubt whether that is early enough, read what there is as well."""
        if self._boards is not None:
            return
        self.node_id, self._since, self._told_at = node_id, revision, 0 if in_doubt else revision - 1
        if self._early_id == node_id and not in_doubt:
            self._boards, self._tellings = self._early
            return
        self._watch_since(None if in_doubt else revision)
        self._drop_early()

    def _watch_since(self, revision: int | None) -> None:
        self._boards = self._client.watch(self._keys.board, revision=self._since, wake=self._wake)
        self._tellings = self._watch_told(revision=revision)

    def _settle(self) -> bool:
        """Once it is known when watches began that were asked for ahead: read what they were too late for, if they were.

        Whether something was read.
        """
        begun = [watch.since for watch in self._early]
        if self._boards is None or not begun or 0 in begun:
            return False
        if min(begun) < 0:  # nobody can say
            self._watch_since(self._since)
            self._drop_early()
            return False
        is_late = max(begun) > self._since
        if is_late:
            self._read_both()
        self._early, self._early_id = [], ""
        return is_late

    def _read_told(self) -> None:
        found = self._client.get(self._keys.told(self.node_id))
        if found is not None:
            self._take_telling(found)

    def _take_telling(self, kv: KeyValue) -> bool:
        """What the node is told, however it comes; whether it is news."""
        if kv.mod_revision <= self._told_at:
            return False
        self.told, self._told_at = codec.decode_notice(kv.value), kv.mod_revision
        return True

    def _drop_early(self) -> None:
        for watch in self._early:
            watch.close()
        self._early, self._early_id = [], ""

    def _go_on(self) -> None:
        """A watch that has ended with an error never goes on by itself, though etcd may be back: read what there is."""
        watches = self._boards, self._tellings
        if any(watch is not None and watch.is_over for watch in watches):
            for watch in watches:
                if watch is not None:
                    watch.close()
            self._boards = self._client.watch(self._keys.board, snapshot=True, wake=self._wake)
            self._tellings = self._watch_told(revision=None)
            self._early, self._early_id = [], ""

    def _watch_told(self, *, revision: int | None) -> Watch:
        told, near = self._keys.told(self.node_id), self._keys.told_near(self.node_id)
        return self._client.watch(told, revision=revision, snapshot=revision is None, within=near, wake=self._wake)

    def news(self) -> Iterator[None]:
        """Take what has arrived, one thing after another."""
        self._go_on()
        if self._settle():
            yield
        for _, kv in _arrived(self._tellings):
            if kv is not None and self._take_telling(kv):
                yield
        for revision, kv in _arrived(self._boards):
            if revision < self._since:
                continue  # it was watched for before the node said its word
            if kv is not None:
                if self.take_board(kv):
                    yield
            else:
                self._none_at(revision)

    def take_board(self, kv: KeyValue) -> bool:
        """A board, however it came; whether it is newer than the one known."""
        if kv.mod_revision <= self.board_at:
            return False
        self.board, self.board_at = decode_board(kv.value, self._run_id), kv.mod_revision
        self.run_lease = self.board.lease
        return True

    def _none_at(self, revision: int) -> None:
        """There was no board then; a newer one may have been read since, which is sent only once."""
        if revision > self.board_at:
            self.board, self.board_at = None, revision

    def take_told(self) -> Said | None:
        """What the node was told; a place stays, for it counts only when the board names its world."""
        told = self.told
        if not isinstance(told, Placed):
            self.told = None
        return told

    def look_up(self) -> float:
        """The board names a world, and whether this node is in it has not arrived: it is there to be read.

        It was written with the board, so it is given a moment to arrive: until when, that is what this returns.
        """
        world = self.board.world if self.board is not None else None
        if world is None or not self.node_id or self._looked_up == world.seal_id:
            return math.inf
        until = self.give_time(world.seal_id, _MOMENT_S)
        if until:
            return until
        self._read_told()
        self._looked_up = world.seal_id
        return math.inf

    def give_time(self, missing: str, for_s: float) -> float:
        """Until when to wait for something that was written no later than what arrived first; 0 once that is over."""
        now = time.monotonic()
        if self._missing[0] != missing:
            self._missing = (missing, now + for_s)
        return self._missing[1] if now < self._missing[1] else 0.0

    def forget(self) -> None:
        """The node is another from now on; the board stays what it is."""
        for watch in (self._boards, self._tellings):
            if watch is not None:
                watch.close()
        self._drop_early()
        self._boards = self._tellings = None
        self.told, self.node_id, self._looked_up = None, "", ""


def _arrived(watch: Watch | None) -> Iterator[tuple[int, KeyValue | None]]:
    """When a key was written, and what; None where it was deleted."""
    while watch is not None and (item := watch.get(0)) is not None:
        if isinstance(item, Resync):
            yield item.revision, item.kvs[0] if item.kvs else None
        else:
            yield item.revision, None if item.is_delete else item.kv
