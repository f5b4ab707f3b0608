"""Values of any size on etcd v3, which takes 1.5 MiB in a request.

A large value is written in parts first, under a name that nobody else has; then a small transaction switches over to them
and removes those of the value before.  A reader reads at one revision, and never sees a half of each.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import NamedTuple

from rallypoint.etcd_client import EtcdClient, KeyValue, compare, delete_op, put_op
from rallypoint.etcd_client.messages import Compare, RequestOp
from rallypoint.etcd_client.transactions import prefix_end
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v3.key_layout import KeyLayout, SplitValue, part, read_value, written

PART_BYTES = 1024 * 1024
"""etcd takes 1.5 MiB in a request; a key and a value of an addition go along with a part."""


class PreparedValue(NamedTuple):
    """A value that is ready to be written: what its key will hold, on which condition, and what is removed with that."""

    raw: bytes
    when: tuple[Compare, ...]
    then: tuple[RequestOp, ...]


class LargeValues:
    """Writes and reads values, in one piece or in parts."""

    def __init__(self, client: EtcdClient, names: KeyLayout, lease_id: int) -> None:
        self._client = client
        self._names = names
        self._lease_id = lease_id

    def prepare(self, key: bytes, value: bytes) -> PreparedValue:
        """Prepare a value for a key.  What of it is never switched over to is removed by the key's next write."""
        home = self._names.parts(key)
        if len(value) <= PART_BYTES:
            return PreparedValue(written(value), (), (delete_op(home, prefix=True),))
        folder = home + secrets.token_hex(12).encode() + b"/"
        starts = range(0, len(value), PART_BYTES)
        put = partial(self._client.guarded_put, mod_revision=0, lease=self._lease_id)
        revisions = [put(part(folder, n), value[at : at + PART_BYTES]).revision for n, at in enumerate(starts)]
        # Another writer's switch removes all of ours; that the first one is still there says that none came between.
        intact = compare(part(folder, 0), mod_revision=revisions[0])
        others = (delete_op(home, end=folder), delete_op(prefix_end(folder), end=prefix_end(home)))
        return PreparedValue(written(SplitValue(folder, len(starts), len(value))), (intact,), others)

    def extend(self, key: bytes, split: SplitValue, more: bytes) -> tuple[RequestOp, ...]:
        longer, put = (
            SplitValue(split.folder, split.parts + 1, split.size + len(more)),
            partial(put_op, lease=self._lease_id),
        )
        return put(key, written(longer)), put(part(split.folder, split.parts), more)

    def read(self, kv: KeyValue, revision: int, timeout_s: float | None) -> bytes:
        """The whole value.  `EtcdCompactedError`: that revision is history by now; read the key again."""
        found = read_value(kv.value, kv.key)
        if not isinstance(found, SplitValue):
            return found
        parts = self._client.range(found.folder, prefix=True, revision=revision, timeout_s=timeout_s).kvs
        value = b"".join(piece.value for piece in parts)
        if len(value) != found.size:
            raise StoreError(
                f"of the {found.size:,} bytes at {kv.key!r}, {len(value):,} are there: somebody has deleted parts of them"
            )
        return value
