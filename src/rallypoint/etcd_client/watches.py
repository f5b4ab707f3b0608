"""A watch as its user sees it: changes in their order, and the present state where changes are not to be had."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from rallypoint.etcd_client.conductor import Mailbox, Watcher
from rallypoint.etcd_client.errors import EtcdClosedError, EtcdError
from rallypoint.etcd_client.messages import KeyValue
from rallypoint.etcd_client.transport import check_process
from rallypoint.etcd_client.watching import Change, Gap, Phase, Watched


@dataclass(frozen=True, slots=True)
class Resync:
    """The present state of what is watched, where single events are not to be had: at the start, or after a compaction.

    What follows are the changes after `revision`.
    """

    kvs: tuple[KeyValue, ...]
    revision: int
    since: int | None  # the first revision whose events are lost; None at the start of a watch


Reader = Callable[[float], "tuple[tuple[KeyValue, ...], int]"]


class Watch:
    """Changes of a key or range in their order: none lost, none repeated, whatever becomes of single members.

    Iterate over it, or call `get`.  Usable in a `with`, which closes it.
    """

    def __init__(
        self,
        watcher: Watcher,
        watched: Watched,
        read: Reader,
        timeout_s: float,
        *,
        snapshot: bool,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._watcher = watcher
        self._mailbox = Mailbox(watched, wake)
        self._read = read
        self._timeout_s = timeout_s
        self._gap: Gap | None = Gap(0, 0) if snapshot else None
        self._ended: EtcdError | None = None
        if snapshot:
            watched.phase = Phase.GAP
        watcher.add(self._mailbox)

    def get(self, timeout_s: float | None = None) -> Change | Resync | None:
        """The next change, in order; None if there was none in time.

        A `Resync` says that changes were lost to a compaction, and brings the state to go on from.
        """
        check_process(self._watcher.pid)
        if self._ended is not None:
            raise self._ended
        if self._gap is not None:
            return self._resync(self._gap)
        try:
            item = self._mailbox.items.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if self._mailbox.was_emptied():
            self._watcher.go_on(self._mailbox, None)
        if isinstance(item, Change):
            return item
        if isinstance(item, Gap):
            self._gap = item
            return self._resync(item)
        self._ended = item
        raise item

    def _resync(self, gap: Gap) -> Resync:
        """Read anew, on the thread of whoever asks; if that fails, the next `get` tries again."""
        kvs, revision = self._read(self._timeout_s)
        self._gap = None
        self._watcher.go_on(self._mailbox, revision + 1)
        return Resync(kvs, revision, gap.since or None)

    def __iter__(self) -> Iterator[Change | Resync]:
        try:
            while True:
                item = self.get()
                assert item is not None
                yield item
        except EtcdClosedError:
            return

    @property
    def trouble(self) -> str | None:
        """Why there is no connection at present, in words; None while all is well."""
        return self._watcher.trouble

    @property
    def since(self) -> int:
        """All changes from this revision on are delivered.

        Of a watch that was asked for ahead: 0 until that is known, and whoever saw that is woken then; -1 where etcd's proxy
        does not tell.
        """
        # In this order: what is not seen yet is told.
        self._mailbox.watched.is_awaited = True
        return self._mailbox.watched.since

    @property
    def next_revision(self) -> int:
        """All changes before this revision have been delivered, or wait to be taken."""
        return self._mailbox.watched.next_revision

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or ended with an error."""
        return self._ended is not None

    def close(self) -> None:
        """No more changes; whoever waits for one gets an `EtcdClosedError`."""
        self._watcher.remove(self._mailbox)
        self._ended = self._ended or EtcdClosedError("the watch was closed")
        self._mailbox.items.put(self._ended)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
