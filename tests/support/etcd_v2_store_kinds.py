"""The stores on etcd's API v2, as the contract's tests know them."""

from __future__ import annotations

import secrets
from contextlib import ExitStack

from rallypoint.stores.etcd_v2.store import EtcdV2Store
from tests.support.etcd_servers import shared
from tests.support.store_kinds import SOON, Kind, Open, under

# etcd takes about 4,000 bytes of address and 10 MB of content in a request; what is beyond is refused in words.
LACKS = frozenset({"limits", "8 MiB", "long appends"})


def _etcd(version: str, stack: ExitStack) -> Open:

    client, prefix = shared(version).client(), f"/contract/{secrets.token_hex(12)}"
    return lambda: EtcdV2Store(client, prefix, SOON)


ETCD = Kind(lambda stack: _etcd("3.5", stack), LACKS, watched=False)

ETCD_KINDS: dict[str, Kind] = {
    "etcd 3.5": ETCD,
    "etcd 3.4": Kind(lambda stack: _etcd("3.4", stack), LACKS, watched=False),
    "prefix-etcd 3.5": under(ETCD, "prefix"),
}
