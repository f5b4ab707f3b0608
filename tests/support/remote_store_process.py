"""What runs in a process of its own: it holds stores and does with them what it is told over a pipe.

torch's `queue_len` and `list_keys` hold the GIL while they wait for an answer, so a torch client never shares a process
with a server of ours.  The parent never imports torch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

MANY = 64


class Order(NamedTuple):
    """Something to do: on a store by its number, or, for `open_...`, under which number to keep what was opened."""

    number: int
    store: int
    verb: str
    args: tuple[Any, ...]


class Outcome(NamedTuple):
    """What came of it: a value, or the kind of an error and its words."""

    number: int
    value: Any
    error: str | None = None


def perform(pipe: Connection) -> None:
    """The main function of the process, which ends with the pipe."""
    stores = _OpenStores()
    speaking = threading.Lock()

    def act(order: Order) -> None:
        try:
            outcome = Outcome(order.number, stores.act(order))
        except Exception as exc:  # noqa: BLE001 (whatever torch raises is the answer)
            outcome = Outcome(order.number, f"{type(exc).__name__}: {exc}", kind_of(exc))
        with speaking:
            pipe.send(outcome)

    with ThreadPoolExecutor(MANY) as pool:
        while True:
            try:
                order = pipe.recv()
            except EOFError:
                os._exit(0)  # a thread that still waits here would keep the process
            pool.submit(act, order)


def kind_of(exc: Exception) -> str:
    """torch says by its words only whether an error was a time-out."""
    import torch.distributed as dist

    if isinstance(exc, dist.QueueEmptyError):
        return "empty"
    if any(word in str(exc).lower() for word in ("timeout", "timed out")):
        return "timeout"
    return "type" if isinstance(exc, TypeError) else "error"


class _OpenStores:
    """Stores by number."""

    def __init__(self) -> None:
        self.stores: dict[int, Any] = {}

    def act(self, order: Order) -> object:
        _, number, verb, args = order
        if verb.startswith("open_"):
            opening: Callable[..., Any] = getattr(self, verb)
            self.stores[number] = opening(*args)
            return getattr(self.stores[number], "port", None)
        if verb == "close":
            del self.stores[number]
            return None
        store = self.stores[number]
        if verb == "timeout":
            return store.timeout
        if verb == "clone":
            self.stores[args[0]] = store.clone()
            return None
        return getattr(store, verb)(*map(as_torch_takes_it, args))

    def open_tcp(self, host: str, port: int, how: dict[str, Any]) -> object:
        import torch.distributed as dist

        return dist.TCPStore(host, port, **how)

    def open_hash(self) -> object:
        import torch.distributed as dist

        return dist.HashStore()

    def open_file(self, path: str) -> object:
        import torch.distributed as dist

        return dist.FileStore(path)

    def open_prefix(self, prefix: str, below: int) -> object:
        import torch.distributed as dist

        return dist.PrefixStore(prefix, self.stores[below])


def as_torch_takes_it(argument: object) -> object:
    """torch takes bytes where it says text, but no text that stands for bytes."""
    if isinstance(argument, str):
        try:
            argument.encode()
        except UnicodeEncodeError:
            return argument.encode("utf-8", "surrogateescape")
    if isinstance(argument, Sequence) and not isinstance(argument, (str, bytes)):
        return [as_torch_takes_it(part) for part in argument]
    return argument
