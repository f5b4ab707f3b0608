"""Looking at the keys of a store on etcd v3, and waiting for them: a look, and then a watch from its revision on.

So nothing that happens after the look is overlooked, whatever becomes of single members of etcd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rallypoint.etcd_client import EtcdClient, EtcdCompactedError, KeyChange, KeyValue, Watch, get_op
from rallypoint.etcd_client.messages import RangeRequest, RangeResponse, RequestOp
from rallypoint.stores.base import decode_key, name_some
from rallypoint.stores.errors import StoreTimeoutError
from rallypoint.stores.etcd_v3.exactly_once import StoreLease
from rallypoint.stores.etcd_v3.key_layout import KeyLayout
from rallypoint.stores.etcd_v3.large_values import LargeValues
from rallypoint.waiting import Deadline

NAMES_AT_ONCE = 60
"""etcd takes 128 operations in a transaction, and a name needs two."""
_LOOK_S = 5.0
"""How long etcd may take to answer even if the time to wait is over: whether something is there must be found out."""
_LEASE_LOOK_S = 0.5
"""How often a wait looks whether this process has lost its lease, of which no watch would tell."""


class KeyWatcher:
    """Looks and waits for one store."""

    def __init__(self, client: EtcdClient, names: KeyLayout, store_lease: StoreLease, values: LargeValues) -> None:
        self._client = client
        self._names = names
        self._store_lease = store_lease
        self._values = values

    def read(self, place: bytes) -> tuple[KeyValue | None, bytes | None]:
        """What stands at a key, and the value that it makes."""
        while True:
            found = self._client.range(place)
            if not found.kvs:
                return None, None
            try:
                return found.kvs[0], self._values.read(found.kvs[0], found.revision, None)
            except EtcdCompactedError:
                continue

    def values(self, names: list[bytes], timeout_s: float) -> tuple[dict[bytes, bytes], int]:
        """The values that are there, those of queues empty; and a revision after which nothing was overlooked."""
        while True:
            found, since = dict[bytes, bytes](), 0
            try:
                for name, value, has_queue, revision in self._ask(names, get_op, timeout_s):
                    since = since or revision
                    if value.kvs:
                        found[name] = self._values.read(value.kvs[0], revision, timeout_s)
                    elif has_queue:
                        found[name] = b""
            except EtcdCompactedError:
                continue
            return found, since

    def missing(self, names: list[bytes], timeout_s: float | None) -> tuple[frozenset[bytes], int]:
        """What is not there; and a revision after which nothing was overlooked."""
        asked = list(self._ask(names, _count_op, timeout_s))
        missing = frozenset(name for name, value, has_queue, _ in asked if not value.count and not has_queue)
        return missing, asked[0][3] if asked else 0

    def _ask(
        self, names: list[bytes], question: Callable[[bytes], RequestOp], timeout_s: float | None
    ) -> Iterator[tuple[bytes, RangeResponse, bool, int]]:
        """For each name: the answer for its value, whether there is a queue, and the revision of both."""
        wanted = list(dict.fromkeys(names))
        for start in range(0, len(wanted), NAMES_AT_ONCE):
            batch = wanted[start : start + NAMES_AT_ONCE]
            places = [(question(self._names.value(name)), _count_op(self._names.queue(name))) for name in batch]
            outcome = self._client.transaction(then=[op for pair in places for op in pair], timeout_s=timeout_s)
            answers = [answer for answer in outcome.answers if isinstance(answer, RangeResponse)]
            for name, value, queue in zip(batch, answers[::2], answers[1::2], strict=True):
                yield name, value, bool(queue.count), outcome.revision

    def wait(self, missing: frozenset[bytes], revision: int, deadline: Deadline, asked: str) -> None:
        """Wait until each of the names has been there after a revision: one watch, over all that lies between them."""
        if not missing:
            return
        awaited = {place: name for name in missing for place in (self._names.value(name), self._names.queue(name))}
        left, end = set(missing), max(map(self._names.behind, missing))
        with self._client.watch(min(awaited), end=end, revision=revision + 1, timeout_s=look_s(deadline)) as watch:
            while left:
                for kv in self._next(watch, deadline, asked, left):
                    if kv.key in awaited:
                        left.discard(awaited[kv.key])

    def wait_until(
        self, place: bytes, revision: int, deadline: Deadline, asked: str, is_met: Callable[[KeyValue], bool]
    ) -> None:
        """Wait until something is written to a key after a revision that is what was waited for."""
        with self._client.watch(place, revision=revision + 1, timeout_s=look_s(deadline)) as watch:
            while not any(map(is_met, self._next(watch, deadline, asked, set()))):
                pass

    def _next(self, watch: Watch, deadline: Deadline, asked: str, missing: set[bytes]) -> tuple[KeyValue, ...]:
        """What was written next; nothing, if it was a deletion."""
        while True:
            self._store_lease.check()
            left_s = deadline.left_s()
            if left_s <= 0:
                names = sorted(map(decode_key, missing))
                left = f"; still missing: {name_some(names)}" if names else ""
                trouble = f"; {watch.trouble}" if watch.trouble else ""
                raise StoreTimeoutError(f"{asked}: not within {deadline.timeout_s:g} s{left}{trouble}")
            item = watch.get(timeout_s=min(left_s, _LEASE_LOOK_S) if self._store_lease.may_end else left_s)
            if isinstance(item, KeyChange):
                return () if item.is_delete else (item.kv,)
            if item is not None:
                return item.kvs


def look_s(deadline: Deadline) -> float:
    """How long a look may take in the course of a wait."""
    return max(deadline.left_s(), _LOOK_S)


def _count_op(key: bytes) -> RequestOp:
    """Whether a key is there, without its value."""
    return RequestOp(request_range=RangeRequest(key, count_only=True))
