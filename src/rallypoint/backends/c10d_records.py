"""The records of runs in a c10d store, over TCP or in a file: read by administrators, and never written.

Our own code reads the store, also one that torch serves or a file that torch made, so that no command waits for torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

from rallypoint.backends.endpoints import path_of, without_scheme
from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rallypoint.location.registers.backend import checked
from rallypoint.net import DEFAULT_PORT, parse_endpoint, written
from rallypoint.stores import StoreError, StoreTimeoutError, TcpStore
from rallypoint.stores.documents import C10D_NOTHING, C10D_PREFIX, decode_document
from rallypoint.stores.file.read_only import read_keys
from rallypoint.stores.store_probe import NotAStoreError, RallypointThereError, probe

_OF_A_ROUND = re.compile(r"\.r[0-9a-f]+\.[0-9]+/")
"""What the keys of a round's store have behind the run id: an incarnation and a round."""
_DOCUMENT_STARTS = (b"{", b"\x80")
"""A record, or a document of Rallypoint 0.1; and torch's pickle, so that somebody is told of it."""


class C10dRecords(NamedTuple):
    """The records among the keys of a store; `where` is the store as an endpoint, `value` gives None for a missing key."""

    where: str
    keys: Callable[[], list[str]]
    value: Callable[[str], bytes | None]
    close: Callable[[], None]

    def names(self) -> list[str]:
        """The ids of the runs that have a document."""
        keys = (key for key in self.keys() if key.startswith(C10D_PREFIX) and not _OF_A_ROUND.search(key))
        return [key.removeprefix(C10D_PREFIX) for key in keys if self._is_document(key)]

    def read(self, run_id: str) -> bytes | None:
        """A run's record; None where it has none."""
        document = self._document(f"{C10D_PREFIX}{run_id}")
        return None if document is None else checked(document)

    def _document(self, key: str) -> bytes | None:
        value = self.value(key)
        return None if value is None or value == C10D_NOTHING else decode_document(value, key)

    def _is_document(self, key: str) -> bool:
        try:
            return (self._document(key) or b"").startswith(_DOCUMENT_STARTS)
        except RendezvousStateError:
            return False


def open_tcp(endpoint: str, config: Mapping[str, object], timeout_s: float) -> C10dRecords:
    """The records in the TCP store at an endpoint; RendezvousConnectionError says what is there instead."""
    host, port = parse_endpoint(without_scheme(endpoint), DEFAULT_PORT)
    place = written(host, port)
    where = f"c10d://{place}"
    try:
        probe(host, port, timeout_s)
        store = TcpStore(host, port, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
    except RallypointThereError as exc:
        raise RendezvousConnectionError(
            f"a rallypoint server is at {place}, and no c10d store: write the endpoint as {place}, without c10d://"
        ) from exc
    except NotAStoreError as exc:
        raise RendezvousConnectionError(f"no c10d store answers at {place}; {exc}") from exc
    except (StoreError, OSError, UnicodeError) as exc:
        raise RendezvousConnectionError(
            f"no c10d store answers at {place}: {(isinstance(exc, OSError) and exc.strerror) or exc}; is the node that "
            f"serves it running, and does its port let you in?"
        ) from exc

    def keys() -> list[str]:
        try:
            return store.list_keys()
        except StoreError as exc:
            raise RendezvousError(
                f"the store at {where} does not list its keys, and so its runs: {exc}; a server of an older torch "
                f"cannot; name the run, as in `rallypoint status RUN --endpoint {where}`"
            ) from exc

    def value(key: str) -> bytes | None:
        try:
            if store.check([key]):  # its `get` would wait for a key that is missing
                with suppress(StoreTimeoutError):  # it was deleted meanwhile
                    return store.get(key)
        except StoreError as exc:
            raise RendezvousConnectionError(f"the store at {where} cannot be read: {exc}") from exc
        return None

    return C10dRecords(where, keys, value, store.close)


def open_file(endpoint: str, config: Mapping[str, object], timeout_s: float) -> C10dRecords:
    """The records in the store file that an endpoint names, torch's or ours; it is read anew each time."""
    path = path_of(endpoint)

    def read() -> dict[bytes, bytes]:
        try:
            return read_keys(path, timeout_s)
        except StoreError as exc:
            raise RendezvousConnectionError(
                f"{exc}; give the path that the nodes were given, on a machine that shares the file with them"
            ) from exc

    def keys() -> list[str]:
        return [key.decode(errors="replace") for key in read()]

    return C10dRecords(f"file://{path}", keys, lambda key: read().get(key.encode()), lambda: None)
