"""The backends that the suite runs against, and what each really cannot do; `docs/compatibility.md` shows the table.

A backend is added by a line in `KINDS`: how to start what it needs, and which options make it quick.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.etcd.actor import EtcdActor
from tests.faults.harness import Actor, Server, free_port

INTERVAL_S = 0.25
TIMEOUT_S = 1.5
"""A node that is silent for so long is given up."""


class Medium:
    """What nodes meet through: where it is, and how it goes away for a while."""

    def __init__(self, endpoint: str, actor: Actor | None = None) -> None:
        self.endpoint = endpoint
        self.actor = actor

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody can reach it meanwhile."""
        assert self.actor is not None
        self.actor.pause()
        try:
            yield
        finally:
            self.actor.resume()

    def end(self) -> None:
        if self.actor is not None:
            self.actor.kill()


class LockedMedium(Medium):
    """A store in a file: it is away while somebody else has the file locked."""

    @contextmanager
    def away(self) -> Iterator[None]:
        with Path(self.endpoint).open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class FolderMedium(Medium):
    """A document in a folder: it is away while the folder has another name."""

    @contextmanager
    def away(self) -> Iterator[None]:
        folder = Path(self.endpoint)
        hidden = folder.rename(folder.with_suffix(".away"))
        try:
            yield
        finally:
            hidden.rename(folder)


class EtcdMedium(Medium):
    """Keys of an etcd server."""

    def __init__(self, server: EtcdActor) -> None:
        super().__init__(server.endpoint, server)
        self._server = server

    def end(self) -> None:
        self._server.end()


class Kind(NamedTuple):
    """A backend as the suite knows it."""

    backend: str
    start: Callable[[Path], Medium]
    options: dict[str, Any]
    with_torch: bool = False
    only_in_soak: bool = False
    """Where importing torch, or a sibling that differs in little, would cost the quick suite more than it shows."""


def _rallypoint(folder: Path) -> Medium:
    server = Server(0, 0.0, None, 0)
    server.port = int(server.expect("serving")["port"])
    return Medium(server.endpoint, server)


def _tcp(kind: str) -> Callable[[Path], Medium]:
    def start(folder: Path) -> Medium:
        server = Actor("tests.conformance.store_server", kind, str(free_port()))
        return Medium(f"127.0.0.1:{server.expect('serving')['port']}", server)

    return start


def _etcd(folder: Path) -> Medium:
    return EtcdMedium(EtcdActor())


def _file(folder: Path) -> Medium:
    return LockedMedium(str(folder / "store"))


def _folder(folder: Path) -> Medium:
    return FolderMedium(str(folder))


COMMON: dict[str, Any] = {"last_call_timeout": 10, "join_timeout": 40, "close_timeout": 10}
SERVER: dict[str, Any] = {
    **COMMON,
    "heartbeat_interval": INTERVAL_S,
    "heartbeat_timeout": TIMEOUT_S,
    "is_host": False,
}
DOCUMENT: dict[str, Any] = {
    **COMMON,
    "keep_alive_interval": INTERVAL_S,
    "keep_alive_max_attempt": round(TIMEOUT_S / INTERVAL_S),
}
TCP: dict[str, Any] = {**DOCUMENT, "is_host": False}
FILE: dict[str, Any] = {**DOCUMENT, "store_type": "file"}

KINDS: dict[str, Kind] = {
    "rallypoint": Kind("rallypoint", _rallypoint, SERVER),
    "c10d tcp, torch's store": Kind("c10d", _tcp("torch"), TCP, with_torch=True),
    "c10d tcp, our store": Kind("c10d", _tcp("ours"), TCP),
    "c10d file, torch's store": Kind("c10d", _file, FILE, with_torch=True, only_in_soak=True),
    "c10d file, our store": Kind("c10d", _file, FILE),
    "etcd-v2": Kind("etcd-v2", _etcd, DOCUMENT),
    "etcd-v2, torch's kind of store": Kind("etcd-v2", _etcd, DOCUMENT, with_torch=True, only_in_soak=True),
    "two methods": Kind("locked-file", _folder, DOCUMENT),
    "two methods, unconfirmed": Kind("silent-file", _folder, DOCUMENT, only_in_soak=True),
}

_DOCUMENTS = [name for name in KINDS if name != "rallypoint"]
_SERVED = [name for name in KINDS if " tcp" in name]
_REMEMBERED = [name for name in KINDS if name == "rallypoint" or "etcd" in name]

# What is declared here is shown by a test to be so; what is not declared is shown to work.
SLOW_LOSS = "after the silence that is allowed: nobody watches connections"
SLOW_REUSE = "after the silence that is allowed: nobody remembers who was alive"
NO_RESTART = "never: the store's memory ends with its server, and torch's client does not connect again"

CANNOT: dict[str, dict[str, str]] = {
    "a killed node is told of at once": dict.fromkeys(_DOCUMENTS, SLOW_LOSS),
    "a run id is free at once when all nodes were killed": dict.fromkeys(_DOCUMENTS, SLOW_REUSE),
    "a run goes on when its server was restarted": dict.fromkeys(_SERVED, NO_RESTART),
}
HAS_NO_SERVER = "it has none"
NOT_ASKED: dict[str, dict[str, str]] = {
    "a run goes on when its server was restarted": {
        name: HAS_NO_SERVER for name in KINDS if name not in (*_SERVED, *_REMEMBERED)
    }
}

START = "<!-- limits: written by tests/conformance, from kinds.py -->"
END = "<!-- end of limits -->"


def table() -> str:
    """What the backends cannot do, as the page shows it."""
    lines = [f"| backend | {' | '.join(CANNOT)} |", f"|---|{'---|' * len(CANNOT)}"]
    for name in KINDS:
        cells = [limits.get(name) or NOT_ASKED.get(what, {}).get(name) or "yes" for what, limits in CANNOT.items()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([START, *lines, END])
