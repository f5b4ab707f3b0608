"""A store on etcd's API v2: each key and each entry of a queue is a key of etcd's, read and watched by itself.

Names and values are base64, as torch's EtcdStore writes them, so that both can share a store.  Where base64 would put a
slash into a name, which etcd takes for a directory and torch's store loses, another alphabet and a tilde stand instead.
Queues lie in a hidden directory beside the values.
"""

from __future__ import annotations

import binascii
import threading
import time
import weakref
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from rallypoint.stores.base import DEFAULT_TIMEOUT, Store, Term, in_64_bits, in_seconds, name_some
from rallypoint.stores.data import read_number
from rallypoint.stores.errors import QueueEmptyError, StoreError, StoreTimeoutError
from rallypoint.stores.etcd_v2 import PAST, Answer, EtcdAwayError, Keys, Node, mark, step_back, token, unmarked
from rallypoint.stores.etcd_v2_watch import Watch, wait_for_event

LARGEST_VALUE = 4 * 1024 * 1024
"""What etcd takes in one request, with some room; its own limit is 10 MB for the whole request."""

_LONGEST_PATH = 3500
"""etcd hangs up on a request whose first 4,096 bytes do not hold all of its address."""

_ODD = "~"
_QUEUES = "_queues"
_CLAIM_TTL_S = 60
_HISTORY = 900
"""How many events etcd's history of 1,000 is trusted to reach back."""
_BELL_S = 10.0
_MANY = 16
"""From so many keys on, one look at the whole directory is cheaper than one at each of them."""


class EtcdStoreTimeoutError(StoreTimeoutError, LookupError):
    """Nothing came in time; torch's EtcdStore raises a LookupError then."""


class WrongKindError(TypeError, ValueError):
    """Neither text nor bytes; torch's EtcdStore raises a ValueError then."""


class EtcdV2Store(Store):
    """The keys under one directory.

    With `ttl_s`, keys expire when so much time has passed after the last process that wrote or read them has gone: as
    long as it is there, it prolongs them.
    """

    def __init__(self, client: Any, prefix: str, timeout: timedelta | None = None, *, ttl_s: int | None = None) -> None:
        self._client = client
        self._keys = Keys.of(client)
        self._prefix = "/" + prefix.strip("/")
        self._ttl_s = ttl_s
        self._used = _Used(self._keys, ttl_s) if ttl_s is not None else None
        self.set_timeout(DEFAULT_TIMEOUT if timeout is None else timeout)

    # Values -----------------------------------------------------------------------------------------------------------

    def set(self, key: str | bytes, value: bytes | str) -> None:
        path = self._path(key)
        self._keys.write(path, b64encode(_value(value)).decode(), self._patience(), ttl_s=self._ttl_s)
        self._use(path)

    def get(self, key: str | bytes) -> bytes:
        return self._await_values([_name(key)], f"get {_shown(key)}")[0]

    def multi_get(self, keys: Sequence[str | bytes]) -> list[bytes]:
        names = _names(keys)
        return self._await_values(names, f"get {name_some([_text(name) for name in names])}")

    def multi_set(self, keys: Sequence[str | bytes], values: Sequence[bytes | str]) -> None:
        names = _names(keys)
        if len(names) != len(values):
            raise ValueError(f"{len(names)} keys do not go with {len(values)} values")
        for name, value in zip(names, list(map(_value, values)), strict=True):
            self.set(name, value)

    def add(self, key: str | bytes, amount: int) -> int:
        in_64_bits(amount)
        name = _name(key)
        total = 0

        def plus(present: bytes | None) -> bytes | None:
            nonlocal total
            total = _sum(name, present, amount)
            text = b"%d" % total
            return None if text == present else text

        self._edit(name, plus)
        return total

    def append(self, key: str | bytes, value: bytes | str) -> None:
        more = _value(value)
        self._edit(_name(key), lambda present: (present or b"") + more)

    def compare_set(self, key: str | bytes, expected: bytes | str, desired: bytes | str) -> bytes:
        wanted, new = _value(expected), _value(desired)

        there = [wanted]

        def edit(present: bytes | None) -> bytes | None:
            there[0] = wanted if present is None else present
            return new if present == wanted or (present is None and not wanted) else None

        written = self._edit(_name(key), edit)
        return there[0] if written is None else written

    def delete_key(self, key: str | bytes) -> bool:
        path, term = self._path(key), self._patience()
        while True:
            node = self._keys.read(path, term).node
            if node is None or node.is_directory:
                return False
            if self._keys.delete(path, term, index=node.modified):
                return True

    def num_keys(self) -> int:
        return len(self._listing(self._patience()))

    def list_keys(self) -> list[str]:
        return [_text(name) for name in self._listing(self._patience())]

    def check(self, keys: Sequence[str | bytes]) -> bool:
        return not self._missing(_names(keys), self._patience())[0]

    # Waiting ----------------------------------------------------------------------------------------------------------

    def wait(
        self,
        keys: Sequence[str | bytes],
        timeout: timedelta | None = None,
        *,
        override_timeout: timedelta | None = None,
    ) -> None:
        names = _names(keys)
        asked = f"wait for {name_some([_text(name) for name in names])}"
        term = self._term(override_timeout if timeout is None else timeout)
        missing, index = self._missing(names, self._look(term))
        since = dict.fromkeys(missing, index)
        while missing:
            name = missing[0]
            event = self._next(self._places(name), since[name], term, asked, missing)
            if event is None or event.node is None:
                missing, now = self._missing(missing, self._look(term))
                # What came and went meanwhile is in etcd's history, as far as that reaches back.
                since = {name: now if now - since[name] > _HISTORY else since[name] for name in missing}
            elif event.action in PAST:
                since[name] = event.node.modified
            else:
                missing = missing[1:]

    def queue_push(self, key: str | bytes, value: bytes | str) -> None:
        path = f"{self._queue(_name(key))}/{token()}"
        self._keys.swap(path, b64encode(_value(value)).decode(), self._patience(), ttl_s=self._ttl_s)
        self._use(path)

    def queue_pop(self, key: str | bytes, block: bool = True) -> bytes:
        name = _name(key)
        queue, term = self._queue(name), self._term(None)
        asked = f"pop from the queue {_shown(key)}"
        while True:
            entries, since = self._entries(queue, self._look(term))
            for entry in entries:
                value = self._claim(entry)
                if value is not None:
                    return value
            if entries:
                continue
            if not block:
                raise QueueEmptyError(f"the queue {_shown(key)} is empty")
            self._next([(queue, True)], since, term, asked, [])

    def queue_len(self, key: str | bytes) -> int:
        return len(self._entries(self._queue(_name(key)), self._patience())[0])

    def barrier(self, key: str | bytes, world_size: int, timeout: timedelta | None = None) -> None:
        in_64_bits(world_size)
        name, term = _name(key), self._term(timeout)
        path, asked = self._path(name), f"barrier {_shown(key)} of {world_size}"
        count = self.add(name, 1)
        while count < world_size:
            answer = self._keys.read(path, self._look(term))
            count = read_number(_decode(answer.node, path)) or 0 if answer.node is not None else 0
            if count < world_size:
                self._next([(path, False)], answer.at, term, asked, [])

    def bell(self) -> EtcdBell:
        """Something to wait on for a key, beside something else."""
        return EtcdBell(self._keys, self._path)

    # The rest ---------------------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The host of the member that is asked first: by the way to it, a node knows its own address."""
        return urlsplit(self._keys.member).hostname or "localhost"

    @property
    def port(self) -> int:
        """The port of that member."""
        return urlsplit(self._keys.member).port or 2379

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        in_seconds(timeout)
        self._timeout = timeout

    def clone(self) -> EtcdV2Store:
        other = EtcdV2Store(self._client, self._prefix, self._timeout)
        other._ttl_s, other._used = self._ttl_s, self._used
        return other

    # Inside -----------------------------------------------------------------------------------------------------------

    def _path(self, key: str | bytes) -> str:
        path = f"{self._prefix}/{_file(_name(key))}"
        if len(path) > _LONGEST_PATH:
            raise StoreError(
                f"the key {_shown(key)[:40]}... is too long for etcd: with its directory it makes {len(path):,} letters, "
                f"and {_LONGEST_PATH:,} are the most"
            )
        return path

    def _queue(self, name: bytes) -> str:
        return f"{self._prefix}/{_QUEUES}/{_file(name)}"

    def _places(self, name: bytes) -> list[tuple[str, bool]]:
        return [(self._path(name), False), (self._queue(name), True)]

    def _term(self, timeout: timedelta | None) -> Term:
        return Term.of(self._timeout if timeout is None else timeout)

    def _patience(self) -> Term:
        return Term.of(timedelta(seconds=self._keys.patience_s))

    def _look(self, term: Term) -> Term:
        """For a look in the course of a wait: it is made even when the time is over, and then waits for nobody."""
        return Term.of(timedelta(seconds=max(term.left_s(), min(self._keys.patience_s, 1.0))))

    def _use(self, *paths: str) -> None:
        if self._used is not None:
            self._used.add(paths)

    def _edit(self, name: bytes, edit: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Read, change and write a value, until nobody else has written in between; None where it is to stay."""
        path, term = self._path(name), self._patience()
        raw, index = self._raw(path, term)
        conflicts = 0
        while True:
            new = edit(None if raw is None else _decoded(raw, path))
            if new is None:
                return None
            _refuse_large(new)
            text = b64encode(new).decode() + mark()
            started = time.monotonic()
            if raw:
                swapped = self._keys.swap(path, text, term, before=raw, ttl_s=self._ttl_s)
            else:  # nothing, or an empty value, which etcd cannot compare with
                swapped = self._keys.swap(path, text, term, index=index, ttl_s=self._ttl_s)
            if swapped.done:
                self._use(path)
                return new
            conflicts += 1
            step_back(conflicts, time.monotonic() - started, term)
            raw, index = (swapped.there, None) if swapped.there else self._raw(path, term)

    def _raw(self, path: str, term: Term) -> tuple[str | None, int | None]:
        node = self._keys.read(path, term).node
        return (None, None) if node is None or node.is_directory else (node.value, node.modified)

    def _await_values(self, names: list[bytes], asked: str) -> list[bytes]:
        term = self._term(None)
        while True:
            values, since = self._values(names, self._look(term))
            missing = [name for name in names if name not in values]
            if not missing:
                return [values[name] for name in names]
            self._next(self._places(missing[0]), since, term, asked, missing)

    def _values(self, names: Iterable[bytes], term: Term) -> tuple[dict[bytes, bytes], int]:
        """The values that are there, those of queues empty, and an index before which nothing was overlooked."""
        wanted = list(dict.fromkeys(names))
        found: dict[bytes, bytes] = {}
        since = -1
        if len(wanted) > _MANY:
            answer = self._keys.read(self._prefix, term)
            since = answer.at
            nodes = {node.key.rpartition("/")[2]: node for node in (answer.node.nodes if answer.node else ())}
            for name in wanted:
                node = nodes.get(_file(name))
                if node is not None and not node.is_directory:
                    found[name] = _decode(node, node.key)
        else:
            for name in wanted:
                answer = self._keys.read(self._path(name), term)
                since = answer.at if since < 0 else min(since, answer.at)
                if answer.node is not None and not answer.node.is_directory:
                    found[name] = _decode(answer.node, answer.node.key)
        self._use(*(self._path(name) for name in found))
        for name in wanted:
            if name not in found and self._entries(self._queue(name), term)[0]:
                found[name] = b""
        return found, max(since, 0)

    def _missing(self, names: list[bytes], term: Term) -> tuple[list[bytes], int]:
        values, since = self._values(names, term)
        return [name for name in dict.fromkeys(names) if name not in values], since

    def _listing(self, term: Term) -> list[bytes]:
        answer = self._keys.read(self._prefix, term)
        nodes = answer.node.nodes if answer.node is not None else ()
        return [_named(node.key.rpartition("/")[2]) for node in nodes if not node.is_directory]

    def _entries(self, queue: str, term: Term) -> tuple[list[Node], int]:
        """What stands in a queue, the oldest first; what somebody has taken already is passed over."""
        answer = self._keys.read(queue, term)
        nodes = answer.node.nodes if answer.node is not None else ()
        free = [node for node in nodes if unmarked(node.value) == node.value]
        return sorted(free, key=lambda node: node.created), answer.at

    def _claim(self, entry: Node) -> bytes | None:
        """Take an entry: by a mark first, which tells after a lost answer who has it."""
        term = self._patience()
        if not self._keys.swap(entry.key, entry.value + mark(), term, index=entry.modified, ttl_s=_CLAIM_TTL_S).done:
            return None
        self._keys.delete(entry.key, term)
        return _decode(entry, entry.key)

    def _next(
        self, places: list[tuple[str, bool]], since: int, term: Term, asked: str, missing: list[bytes]
    ) -> Answer | None:
        left_s = term.left_s()
        if left_s <= 0:
            left = f"; still missing: {name_some([_text(name) for name in missing])}" if missing else ""
            raise EtcdStoreTimeoutError(f"{asked}: not within {term.timeout_s:g} s{left}")
        return wait_for_event(self._keys, places, since, left_s)


class EtcdBell:
    """Waits for a key beside something else, which is readable then.  Raises OSError where etcd does not answer."""

    def __init__(self, keys: Keys, path: Callable[[str], str]) -> None:
        self._keys = keys
        self._path = path
        self._key = ""
        self._watch: Watch | None = None

    def wait(self, key: str, timeout_s: float, waker: Any) -> bool:
        """Wait until the key is there, the time is over or somebody wakes us; whether the key is there."""
        try:
            if self._watch is None or key != self._key:
                self.close()
                answer = self._keys.read(self._path(key), Term.of(timedelta(seconds=self._keys.patience_s)))
                if answer.node is not None:
                    return True
                self._watch = Watch(self._keys, self._path(key), answer.at + 1)
                self._key = key
            # A member that has come to a halt says nothing: it is asked again after a while.
            if not waker.wait(min(timeout_s, _BELL_S), self._watch):
                if timeout_s > _BELL_S:
                    self.close()
                return False
            answer_or_none = self._watch.take()
            if answer_or_none is None:
                return False
            self.close()
            return answer_or_none.code == 0
        except StoreError as exc:
            self.close()
            raise ConnectionError(str(exc)) from exc
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class _Used:
    """Prolongs the keys that this process has used, from a thread that ends with the last store that needs it."""

    def __init__(self, keys: Keys, ttl_s: int) -> None:
        self._paths: set[str] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        thread = threading.Thread(
            target=_prolong, args=(keys, ttl_s, self._paths, self._lock, self._ended), name="etcd-keys", daemon=True
        )
        weakref.finalize(self, self._ended.set).atexit = False
        thread.start()

    def add(self, paths: Iterable[str]) -> None:
        """These are in use."""
        with self._lock:
            self._paths.update(paths)


def _prolong(keys: Keys, ttl_s: int, paths: set[str], lock: threading.Lock, ended: threading.Event) -> None:
    while not ended.wait(ttl_s / 2):
        with lock:
            present = list(paths)
        for path in present:
            try:
                alive = keys.prolong(path, ttl_s, Term.of(timedelta(seconds=keys.patience_s)))
            except EtcdAwayError:
                break  # the next time
            except StoreError:
                alive = False
            if not alive:
                with lock:
                    paths.discard(path)


# Names and values -----------------------------------------------------------------------------------------------------


def _name(key: str | bytes) -> bytes:
    if isinstance(key, bytes):
        return key
    if not isinstance(key, str):
        raise WrongKindError(f"a key is text or bytes, not {type(key).__name__}")
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise ValueError(f"the key {key!r} cannot be written as UTF-8") from exc


def _names(keys: Sequence[str | bytes]) -> list[bytes]:
    if isinstance(keys, (str, bytes)):
        raise WrongKindError(f"expected a list of keys, not the text {keys!r}")
    return [_name(key) for key in keys]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _shown(key: str | bytes) -> str:
    return repr(key if isinstance(key, str) else _text(_name(key)))


def _file(name: bytes) -> str:
    """What etcd knows a key by."""
    text = b64encode(name).decode()
    return text if text and "/" not in text else _ODD + urlsafe_b64encode(name).decode()


def _named(file: str) -> bytes:
    try:
        if file.startswith(_ODD):
            return urlsafe_b64decode(file[1:])
        return b64decode(file, validate=True)
    except (binascii.Error, ValueError):
        return file.encode("utf-8", "surrogateescape")


def _value(value: bytes | str) -> bytes:
    if isinstance(value, str):
        data = value.encode()
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
    else:
        raise WrongKindError(f"a value is bytes or text, not {type(value).__name__}")
    _refuse_large(data)
    return data


def _refuse_large(data: bytes) -> None:
    if len(data) > LARGEST_VALUE:
        raise StoreError(
            f"the value has {len(data):,} bytes, but etcd takes {LARGEST_VALUE:,} at most: keep it elsewhere, and its "
            f"address in the store"
        )


def _decode(node: Node, path: str) -> bytes:
    return _decoded(node.value, path)


def _decoded(raw: str, path: str) -> bytes:
    try:
        return b64decode(unmarked(raw), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise StoreError(
            f"{path} holds {raw[:40]!r}, but should be base64: something else writes into this store's directory"
        ) from exc


def _sum(name: bytes, present: bytes | None, amount: int) -> int:
    number = 0 if present is None else read_number(present)
    if number is None:
        held = present or b""
        shown = held if len(held) <= 40 else held[:40] + b"..."
        raise StoreError(f"cannot add to {_text(name)!r}: it holds {shown!r}, which is not a number of 64 bits")
    total = number + amount
    if not -(2**63) <= total < 2**63:
        raise StoreError(f"cannot add {amount} to {_text(name)!r}: {total} does not fit into 64 bits")
    return total
