"""A store in a file that processes share, on one machine or through a network file system.

Waiting means looking again, at first after a millisecond and later every 50: a file tells nobody that it has changed.

What differs from torch's FileStore, and why:

- A run that starts again on the path of one that was killed finds an empty store, where torch's finds the old keys.  Who
  has the file open holds a lock on it; whoever opens it when nobody does, and not all who did have closed it, starts it
  anew.  As long as one process of the killed run lives, the file is in use, and its keys are there.
- A file that all have closed keeps its keys, as torch's does: processes of one run may come one after the other.  With a
  `world_size` the last one removes it, once as many have been there, clones not counted.  So a run that ended well
  without a `world_size` is seen by the next one on that path: remove the file in between.
- There are queues and barriers, and `num_keys` and `list_keys` show the user's keys only.
- What is wrong with a path is said at once; torch's tries for five minutes.
- The two do not read each other's files.

Values and keys are limited as a TCP server limits them.  A path on a network file system wants locks that reach all
machines: NFS has them, Lustre if it is mounted with `flock`.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from rallypoint.stores.base import (
    DEFAULT_TIMEOUT,
    Store,
    Term,
    decode_key,
    encode_key,
    encode_keys,
    encode_pairs,
    encode_value,
    in_64_bits,
    in_seconds,
    name_some,
)
from rallypoint.stores.data import KeyValues
from rallypoint.stores.errors import QueueEmptyError, StoreError, StoreTimeoutError
from rallypoint.stores.file.append_log import Journal, Sleeper
from rallypoint.stores.file.locked_file import REMOVED
from rallypoint.stores.file.record_format import Operation, StoreFileError, Verb, arrival
from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.wire import Limits, Query

T = TypeVar("T")
_Data = KeyValues[Sleeper]

_FIRST_LOOK_S = 0.001
_LONGEST_LOOK_S = 0.05
_GROWTH = 1.5
# A lock is kept for one operation at most; who does not get it for so long is told that something is wrong.
_PATIENCE_S = 30.0

_UNCHANGED = "nothing was changed, and what was in it is still there"
_WORDS = {
    errno.ENOENT: "its folder does not exist; make it first",
    errno.EISDIR: "it is a folder; give the path of a file",
    errno.ENOTDIR: "a part of its path is no folder",
    errno.EACCES: "this user may not read and write it, or may not create it in its folder",
    errno.EPERM: "this user may not read and write it, or may not create it in its folder",
    errno.EROFS: "its file system is read-only; give a path on another one",
    errno.ENOSPC: f"its disk is full; {_UNCHANGED}",
    errno.EDQUOT: f"the quota of the disk is used up; {_UNCHANGED}",
    errno.EFBIG: f"it may not grow any more (see `ulimit -f`); {_UNCHANGED}",
    errno.ESTALE: REMOVED,
}


class FileStore(Store):
    """A store in a file; the arguments are those of torch's FileStore.

    The file is created if need be, and removed when as many as `world_size` have opened and closed it and nobody has it
    open; it stays if `world_size` is negative.  A store is closed by `close()`, or when it is forgotten.

    Threads may share a store; none of them waits for another's wait.  A forked child may go on using it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        world_size: int = -1,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        limits: Limits | None = None,
        _clone_of: Journal | None = None,
    ) -> None:
        self._path = os.fspath(path)
        self._world_size = in_64_bits(world_size)
        limits = limits or Limits()
        # A TCP server counts the slash that its clients put before every key.
        self._limits = replace(limits, key_bytes=limits.key_bytes - 1)
        self.set_timeout(timeout)
        with self._in_words(f"open {self._place()}"):
            if _clone_of is not None:
                self._journal = _clone_of.clone(self._patience())
            else:
                # The real path, because a working directory may change and a link may be replaced.
                self._journal = Journal(Path(self._path).resolve(), world_size, self._patience())
        self._finalizer = weakref.finalize(self, self._journal.close)

    @property
    def path(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"FileStore({self._path!r}, {self._world_size})"

    def __enter__(self) -> FileStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Says that this user goes, and lets the file go.  Who is waiting gets a `StoreError`."""
        self._finalizer()

    # The contract -----------------------------------------------------------------------------------------------------

    def set(self, key: str, value: bytes | str) -> None:
        self._change(f"set {_shown(key)}", Query.SET, Operation(Verb.PUT, encode_key(key), encode_value(value)))

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        name = encode_key(key)
        in_64_bits(amount)
        with self._writing(f"add to {_shown(key)}", Query.ADD, name) as data:
            total = data.total(name, amount)
            self._journal.write(Operation(Verb.PUT, name, b"%d" % total))
        return total

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        name, old, new = encode_key(key), encode_value(expected), encode_value(desired)
        with self._writing(f"compare_set {_shown(key)}", Query.COMPARE_SET, name, old, new) as data:
            if data.get(name) != old:
                return data.compare_set(name, old, new)  # which changes nothing
            self._journal.write(Operation(Verb.PUT, name, new))
        return new

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        names, sleeper, term = encode_keys(keys), Sleeper(), self._term(timeout)
        asked = f"wait for {_shown(*keys)}"
        with self._reading(asked, Query.WAIT, *names) as data:
            if data.wait(sleeper, names):
                return
        self._sleep(sleeper, term, asked)
        with self._journal.unread() as data:
            data.settle(sleeper)

    def check(self, keys: Sequence[str]) -> bool:
        names = encode_keys(keys)
        with self._reading(f"check {_shown(*keys)}", Query.CHECK, *names) as data:
            return all(data.holds(name) for name in names)

    def delete_key(self, key: str) -> bool:
        """Always True: torch's FileStore says so of an absent key too, and programs that move here rely on it."""
        name = encode_key(key)
        with self._writing(f"delete {_shown(key)}", Query.DELETE, name) as data:
            if data.has_value(name):
                self._journal.write(Operation(Verb.DELETE, name))
        return True

    def num_keys(self) -> int:
        with self._reading("count the keys", Query.COUNT_KEYS) as data:
            return len(data)

    def list_keys(self) -> list[str]:
        with self._reading("list the keys", Query.LIST_KEYS) as data:
            return [decode_key(name) for name in data.list_keys()]

    def append(self, key: str, value: bytes | str) -> None:
        name, more = encode_key(key), encode_value(value)
        asked = f"append to {_shown(key)}"
        longest = self._limits.unread_bytes // 2  # as a TCP server has it
        with self._writing(asked, Query.APPEND, name, more) as data:
            if data.size(name) + len(more) > longest:
                raise StoreError(f"cannot {asked} in {self._place()}: the value would be longer than {longest} bytes")
            self._journal.write(Operation(Verb.APPEND, name, more))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        names = encode_keys(keys)
        asked = f"get {_shown(*keys)}"
        self._check(asked, Query.MULTI_GET, names)
        return self._once(
            self._journal.reading,
            lambda data, sleeper: data.wait(sleeper, names),
            lambda data: [data.get(name) for name in names],
            asked,
        )

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        puts = [Operation(Verb.PUT, name, value) for name, value in encode_pairs(keys, values)]
        self._change(f"set {_shown(*keys)}", Query.MULTI_SET, *puts)

    def queue_push(self, key: str, value: bytes | str) -> None:
        operation = Operation(Verb.PUSH, encode_key(key), encode_value(value))
        self._change(f"push to the queue {_shown(key)}", Query.QUEUE_PUSH, operation)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        name = encode_key(key)
        asked = f"pop from the queue {_shown(key)}"
        if block:
            self._check(asked, Query.QUEUE_POP, [name])
            return self._once(
                self._journal.writing,
                lambda data, sleeper: data.wait_for_push(sleeper, name),
                lambda data: self._pop(data, name),
                asked,
            )
        with self._writing(asked, Query.QUEUE_POP, name) as data:
            if data.queue_len(name):
                return self._pop(data, name)
        raise QueueEmptyError(f"the queue {key!r} in {self._place()} is empty")

    def queue_len(self, key: str) -> int:
        name = encode_key(key)
        with self._reading(f"measure the queue {_shown(key)}", Query.QUEUE_LEN, name) as data:
            return data.queue_len(name)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        name, sleeper, term = encode_key(key), Sleeper(), self._term(timeout)
        in_64_bits(world_size)
        asked = f"wait at the barrier {_shown(key)} of {world_size}"
        with self._writing(asked, Query.BARRIER, name) as data:
            data.total(name, 1)  # an error, if it is no number
            opened = self._journal.write(
                arrival(name, world_size), enact=lambda: data.barrier(sleeper, name, world_size)
            )
            reloads = self._journal.reloads
        if not opened:
            self._sleep(
                sleeper,
                term,
                asked,
                # Who has not seen the last one arrive, because that was compacted away, sees that all have.
                lambda data: self._journal.reloads > reloads and _count(data.get(name)) >= world_size,
            )

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        in_seconds(timeout)
        self._timeout = timeout

    def clone(self) -> FileStore:
        return FileStore(
            self._path,
            self._world_size,
            timeout=self._timeout,
            limits=replace(self._limits, key_bytes=self._limits.key_bytes + 1),
            _clone_of=self._journal,
        )

    # Reading and writing ----------------------------------------------------------------------------------------------

    def _change(self, asked: str, query: Query, *operations: Operation) -> None:
        texts = [text for operation in operations for text in (operation.key, operation.value)]
        with self._writing(asked, query, *texts):
            self._journal.write(*operations)

    def _pop(self, data: _Data, name: bytes) -> bytes:
        popped = self._journal.write(Operation(Verb.POP, name), enact=lambda: data.pop(name))
        assert popped is not None
        return popped

    @contextmanager
    def _reading(self, asked: str, query: Query, *texts: bytes) -> Iterator[_Data]:
        self._check(asked, query, texts)
        with self._in_words(f"{asked} in {self._place()}"), self._journal.reading(self._patience()) as data:
            yield data

    @contextmanager
    def _writing(self, asked: str, query: Query, *texts: bytes) -> Iterator[_Data]:
        self._check(asked, query, texts)
        with self._in_words(f"{asked} in {self._place()}"), self._journal.writing(self._patience()) as data:
            yield data

    def _check(self, asked: str, query: Query, texts: Sequence[bytes]) -> None:
        if why := wire.why_too_large(query, texts, self._limits):
            raise StoreError(f"cannot {asked} in {self._place()}: {why}")

    @contextmanager
    def _in_words(self, what: str) -> Iterator[None]:
        try:
            yield
        except StoreFileError as exc:
            raise StoreError(f"cannot {what}: {exc}") from exc
        except TimeoutError as exc:
            raise StoreTimeoutError(f"cannot {what}: {exc}") from exc
        except OSError as exc:
            why = _WORDS.get(exc.errno or 0, exc.strerror or str(exc))
            raise StoreError(f"cannot {what}: {why}") from exc

    def _place(self) -> str:
        return f"the store file {self._path}"

    def _term(self, timeout: timedelta | None = None) -> Term:
        return Term.of(self._timeout if timeout is None else timeout)

    def _patience(self) -> float:
        return max(in_seconds(self._timeout), _PATIENCE_S)

    # Waiting ----------------------------------------------------------------------------------------------------------

    def _once(
        self,
        turn: Callable[[float], AbstractContextManager[_Data]],
        ready: Callable[[_Data, Sleeper], bool],
        act: Callable[[_Data], T],
        asked: str,
    ) -> T:
        """Does what was asked in the very moment in which all is there for it."""
        sleeper, term = Sleeper(), self._term()
        try:
            while True:
                with self._in_words(f"{asked} in {self._place()}"), turn(self._patience()) as data:
                    if ready(data, sleeper):
                        result = act(data)
                        data.settle(sleeper)
                        return result
                    data.settle(sleeper)  # someone was faster
                self._sleep(sleeper, term, asked)
                sleeper.awake.clear()
        except BaseException:
            self._give_up(sleeper)
            raise

    def _sleep(
        self, sleeper: Sleeper, term: Term, asked: str, is_over: Callable[[_Data], bool] = lambda data: False
    ) -> None:
        """Until the sleeper is woken, by another thread or by what it reads itself; or until `is_over`."""
        pause_s = _FIRST_LOOK_S
        try:
            while not sleeper.awake.wait(min(pause_s, term.left_s())):
                last = not term.left_s()
                with self._in_words(f"{asked} in {self._place()}"), self._journal.reading(self._patience()) as data:
                    if is_over(data):
                        data.cancel(sleeper)
                        return
                if last and not sleeper.awake.is_set():
                    break
                pause_s = min(_GROWTH * pause_s, _LONGEST_LOOK_S)
            else:
                return
        except BaseException:
            self._give_up(sleeper)
            raise
        missing = self._give_up(sleeper)
        left = f"; still missing: {name_some(missing)}" if missing else ""
        raise StoreTimeoutError(f"{asked} in {self._place()}: not within {term.timeout_s:g} s{left}")

    def _give_up(self, sleeper: Sleeper) -> list[str]:
        """The sleeper waits no more; returns what it was still waiting for."""
        with self._journal.unread() as data:
            missing = sorted(decode_key(name) for name in sleeper.missing)
            data.cancel(sleeper)
            data.settle(sleeper)
        return missing


def _shown(*keys: str) -> str:
    return name_some([key if len(key) <= 100 else f"{key[:100]}..." for key in keys])


def _count(text: bytes) -> int:
    return int(text) if text.isdigit() else 0
