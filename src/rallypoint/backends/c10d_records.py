"""The records of runs in a c10d store, over TCP or in a file: read by whoever administers them, and never written.

The store is read by our own code, whoever serves it or made the file, so that no command waits for torch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from rallypoint.backends.endpoints import DEFAULT_PORT, path_of, without_scheme
from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rallypoint.location.registers.backend import checked
from rallypoint.net import parse_endpoint, written
from rallypoint.stores import StoreError, StoreTimeoutError, TcpStore
from rallypoint.stores.documents import C10D_NOTHING, C10D_PREFIX, decode_document
from rallypoint.stores.file.read_only import read_keys
from rallypoint.stores.store_probe import NotAStoreError, RallypointThereError, probe

_OF_A_ROUND = re.compile(r"\.r[0-9a-f]+\.[0-9]+/")
"""What the keys of a round's store have behind the run id: an incarnation and a round."""
_DOCUMENT_STARTS = (b"{", b"\x80")
"""A record, or a document of Rallypoint 0.1; and torch's pickle, so that somebody is told of it."""


class _C10dRecords(ABC):
    """The records among the keys of a store; `where` is the store as an endpoint."""

    where: str

    def names(self) -> list[str]:
        """The ids of the runs that have a document."""
        keys = (key for key in self._keys() if key.startswith(C10D_PREFIX) and not _OF_A_ROUND.search(key))
        return [key.removeprefix(C10D_PREFIX) for key in keys if self._is_document(key)]

    def read(self, run_id: str) -> bytes | None:
        """A run's record; None where it has none."""
        key = f"{C10D_PREFIX}{run_id}"
        value = self._value(key)
        return None if value is None or value == C10D_NOTHING else checked(decode_document(value, key))

    def _is_document(self, key: str) -> bool:
        value = self._value(key)
        if value is None or value == C10D_NOTHING:
            return False
        try:
            return decode_document(value, key).startswith(_DOCUMENT_STARTS)
        except RendezvousStateError:
            return False

    @abstractmethod
    def _keys(self) -> Iterable[str]: ...

    @abstractmethod
    def _value(self, key: str) -> bytes | None:
        """What a key holds; None where it is missing."""


class TcpRecords(_C10dRecords):
    """The records in a TCP store, torch's or ours."""

    def __init__(self, where: str, store: TcpStore) -> None:
        self.where = where
        self._store = store

    def close(self) -> None:
        """Nothing more is read."""
        self._store.close()

    def _keys(self) -> list[str]:
        try:
            return self._store.list_keys()
        except StoreError as exc:
            raise RendezvousError(
                f"the store at {self.where} does not list its keys, and so its runs: {exc}; a server of an older torch "
                f"cannot; name the run, as in `rallypoint status RUN --endpoint {self.where}`"
            ) from exc

    def _value(self, key: str) -> bytes | None:
        # Its `get` would wait for a key that is missing.
        with self._in_words():
            if not self._store.check([key]):
                return None
            try:
                return self._store.get(key)
            except StoreTimeoutError:
                return None  # it was deleted meanwhile

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except StoreError as exc:
            raise RendezvousConnectionError(f"the store at {self.where} cannot be read: {exc}") from exc


class FileRecords(_C10dRecords):
    """The records in a store file, torch's or ours; it is read anew each time."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self.where = f"file://{path}"
        self._path = path
        self._timeout_s = timeout_s

    def close(self) -> None:
        """Nothing more is read."""

    def _keys(self) -> list[str]:
        return [key.decode(errors="replace") for key in self._read()]

    def _value(self, key: str) -> bytes | None:
        return self._read().get(key.encode())

    def _read(self) -> dict[bytes, bytes]:
        try:
            return read_keys(self._path, self._timeout_s)
        except StoreError as exc:
            raise RendezvousConnectionError(
                f"{exc}; give the path that the nodes were given, on a machine that shares the file with them"
            ) from exc


def open_tcp(endpoint: str, config: Mapping[str, object], timeout_s: float) -> TcpRecords:
    """The records in the TCP store at an endpoint; RendezvousConnectionError says what is there instead."""
    host, port = parse_endpoint(without_scheme(endpoint), DEFAULT_PORT)
    place = written(host, port)
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
    return TcpRecords(f"c10d://{place}", store)


def open_file(endpoint: str, config: Mapping[str, object], timeout_s: float) -> FileRecords:
    """The records in the store file that an endpoint names."""
    return FileRecords(path_of(endpoint), timeout_s)
