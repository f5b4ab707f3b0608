"""A watch as its user sees it: changes in their order, and the present state where single changes are gone."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass

from rallypoint.etcd_client.errors import EtcdClosedError, EtcdError
from rallypoint.etcd_client.messages import KeyValue, RangeResponse
from rallypoint.etcd_client.transport import check_process
from rallypoint.etcd_client.watch_state import Gap, KeyChange, WatchedRange, WatchPhase
from rallypoint.etcd_client.watch_stream import WatchStream


@dataclass(frozen=True, slots=True)
class Resync:
    """The present state of what is watched, where single changes are not known: at the start, or after a compaction.

    What follows are the changes after `revision`.
    """

    kvs: tuple[KeyValue, ...]
    revision: int
    since: int | None  # the first revision whose changes are lost; None at the start of a watch


class Watch:
    """Changes of a key or range in their order: none lost, none repeated, whichever members fail.

    Usable in a `with`, which closes it.
    """

    def __init__(
        self,
        watch_stream: WatchStream,
        watched: WatchedRange,
        read: Callable[[], RangeResponse],
        forget: Callable[[Watch], None],
        *,
        snapshot: bool,
    ) -> None:
        self._watch_stream = watch_stream
        self._watched = watched
        self._read = read
        self._forget = forget
        self._gap = Gap(0) if snapshot else None
        self._ended: EtcdError | None = None
        if snapshot:
            watched.phase = WatchPhase.GAP
        watch_stream.add(watched)

    def get(self, timeout_s: float | None = None) -> KeyChange | Resync | None:
        """The next change, in order; None if there was none in time.

        A `Resync` says that changes were lost to a compaction, and brings the state to go on from.
        """
        check_process(self._watch_stream.opened_in)
        if self._ended is not None:
            raise self._ended
        try:
            item = self._gap or self._watched.items.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(item, KeyChange):
            return item
        if isinstance(item, Gap):
            self._gap = item  # if reading the state fails, the next `get` tries again
            found = self._read()
            self._gap = None
            self._watch_stream.go_on(self._watched, found.revision + 1)
            return Resync(found.kvs, found.revision, item.since or None)
        self._ended = item
        self._forget(self)
        raise item

    @property
    def trouble(self) -> str | None:
        """Why there is no connection at present, in words; None while all is well."""
        return self._watch_stream.trouble

    def close(self) -> None:
        """No more changes; a `get` that waits raises `EtcdClosedError`."""
        self._watch_stream.remove(self._watched)
        self._ended = self._ended or EtcdClosedError("the watch was closed")
        self._watched.items.put(self._ended)
        self._forget(self)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
