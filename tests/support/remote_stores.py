"""Stores that live in another process, with torch, and look from here like any other."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import cache
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any
from unittest.mock import patch

from rallypoint.stores import QueueEmptyError, Store, StoreError, StoreTimeoutError
from tests.support.remote_store_process import Order, Outcome, perform
from tests.support.store_kinds import SOON, SOON_S

QUIET = {
    # Each time-out is a warning to torch.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # It asks for the name of every address that it connects to; where name servers are slow, for seconds.
    "RES_OPTIONS": "attempts:0",
}
ERRORS: dict[str, type[Exception]] = {
    "timeout": StoreTimeoutError,
    "empty": QueueEmptyError,
    "error": StoreError,
    "type": TypeError,
}


@cache
def _nursery() -> multiprocessing.context.ForkServerContext:
    """Forks processes from one that has imported torch already, which takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed"])
    with patch.dict(os.environ, QUIET):
        forkserver.ensure_running()
    return context


def start_process(task: Callable[..., object], *args: object, daemon: bool = True) -> BaseProcess:
    """A process with torch, which ends with this one at the latest; one that is no daemon may start others."""
    process = _nursery().Process(target=task, args=args, daemon=daemon)
    process.start()
    return process


class StoreProcess:
    """A process that holds torch's stores."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self.process = start_process(perform, theirs)
        theirs.close()
        self._numbers = itertools.count()
        self._awaited: dict[int, Future[Any]] = {}
        self._speaking = threading.Lock()
        # Stores that nobody holds any more; they are collected in any thread at any moment, so they are only noted.
        self.forgotten: deque[int] = deque()
        threading.Thread(target=self._listen, daemon=True).start()

    def begin(self, store: int, verb: str, *args: object) -> Future[Any]:
        """Has something done, while this thread goes on."""
        awaited: Future[Any] = Future()
        with self._speaking:
            while self.forgotten:
                self._send(Future(), self.forgotten.popleft(), "close", ())
            self._send(awaited, store, verb, args)
        return awaited

    def _send(self, awaited: Future[Any], store: int, verb: str, args: tuple[object, ...]) -> None:
        number = next(self._numbers)
        self._awaited[number] = awaited
        self._pipe.send(Order(number, store, verb, args))

    def begin_to_open(self, verb: str, *args: object) -> Future[RemoteStore]:
        """A store that may take its time to open."""
        store = next(self._numbers)
        opened: Future[RemoteStore] = Future()

        def finish(opening: Future[Any]) -> None:
            if (exc := opening.exception()) is not None:
                opened.set_exception(exc)
            else:
                opened.set_result(RemoteStore(self, store, opening.result()))

        self.begin(store, verb, *args).add_done_callback(finish)
        return opened

    def open_tcp(self, port: int, *, host: str = "127.0.0.1", **how: Any) -> RemoteStore:
        """torch's TCPStore; the other arguments are its own."""
        return self.begin_to_open("open_tcp", host, port, {"timeout": SOON, **how}).result(SOON_S)

    def open_master(self, **how: Any) -> RemoteStore:
        """torch's TCPStore with its server, on a port of its choice."""
        return self.open_tcp(0, is_master=True, wait_for_workers=False, **how)

    def open(self, verb: str, *args: object) -> RemoteStore:
        return self.begin_to_open(verb, *args).result(SOON_S)

    def new_number(self) -> int:
        return next(self._numbers)

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self.process.kill()
        self.process.join(SOON_S)

    def stop(self) -> None:
        self._pipe.close()
        self.process.join(SOON_S)

    def _listen(self) -> None:
        try:
            while True:
                outcome: Outcome = self._pipe.recv()
                awaited = self._awaited.pop(outcome.number)
                if outcome.error is None:
                    awaited.set_result(outcome.value)
                else:
                    awaited.set_exception(ERRORS[outcome.error](outcome.value))
        except (EOFError, OSError):
            for awaited in self._awaited.values():
                awaited.set_exception(ConnectionError("the process is gone"))


@cache
def store_process(name: str) -> StoreProcess:
    """One that is kept for all tests of this process: `host` for servers, `guest` for clients."""
    return StoreProcess()


class RemoteStore(Store):
    """A store of torch's in another process.  Errors are named as ours are; the words are torch's."""

    def __init__(self, store_process: StoreProcess, number: int, port: int | None = None) -> None:
        self.store_process = store_process
        self.number = number
        self._port = port
        # torch's stores end when nobody holds them.
        self._finalizer = weakref.finalize(self, store_process.forgotten.append, number)

    @property
    def port(self) -> int:
        assert self._port is not None
        return self._port

    def begin(self, verb: str, *args: object) -> Future[Any]:
        return self.store_process.begin(self.number, verb, *args)

    def under(self, prefix: str) -> RemoteStore:
        """torch's PrefixStore over this one."""
        return self.store_process.open("open_prefix", prefix, self.number)

    def close(self) -> None:
        """Ends the connection, and the server if it has one."""
        if self._finalizer.detach() is not None:
            self._do("close")

    def _do(self, verb: str, *args: object) -> Any:
        # A call has a time-out of its own; this one is for a process that has gone astray.
        return self.begin(verb, *args).result(2 * SOON_S)

    def set(self, key: str, value: bytes | str) -> None:
        self._do("set", key, value)

    def get(self, key: str) -> bytes:
        value: bytes = self._do("get", key)
        return value

    def add(self, key: str, amount: int) -> int:
        total: int = self._do("add", key, amount)
        return total

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        value: bytes = self._do("compare_set", key, expected, desired)
        return value

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._do("wait", keys, *([] if timeout is None else [timeout]))

    def check(self, keys: Sequence[str]) -> bool:
        there: bool = self._do("check", keys)
        return there

    def delete_key(self, key: str) -> bool:
        deleted: bool = self._do("delete_key", key)
        return deleted

    def num_keys(self) -> int:
        count: int = self._do("num_keys")
        return count

    def list_keys(self) -> list[str]:
        keys: list[str] = self._do("list_keys")
        return keys

    def append(self, key: str, value: bytes | str) -> None:
        self._do("append", key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        values: list[bytes] = self._do("multi_get", keys)
        return values

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        self._do("multi_set", keys, values)

    def queue_push(self, key: str, value: bytes | str) -> None:
        self._do("queue_push", key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        value: bytes = self._do("queue_pop", key, block)
        return value

    def queue_len(self, key: str) -> int:
        length: int = self._do("queue_len", key)
        return length

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        self._do("barrier", key, world_size, timeout)

    @property
    def timeout(self) -> timedelta:
        timeout: timedelta = self._do("timeout")
        return timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._do("set_timeout", timeout)

    def clone(self) -> RemoteStore:
        number = self.store_process.new_number()
        self._do("clone", number)
        return RemoteStore(self.store_process, number, self._port)

    def has_extended_api(self) -> bool:
        extended: bool = self._do("has_extended_api")
        return extended
