"""The backends that the suite runs against, and what each really cannot do; `docs/compatibility.md` shows the table.

A backend is added by a line in `KINDS`: how to start what it needs, and which options make it quick.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rallypoint.backends.etcd_v2_client import make_client
from rallypoint.net import parse_endpoints
from tests.conformance.etcd_process import EtcdProcess
from tests.support.etcd_servers import wait_until
from tests.support.forked_processes import NODES, TORCH
from tests.support.node_processes import ControlledProcess, Server, free_port

INTERVAL_S = 0.25
TIMEOUT_S = 1.5
"""A node that is silent for so long is given up."""
KEEP_ALIVE_S = 2
"""How long keys of the older etcd protocol live by themselves here.  The protocol's own 10 s are for the soaks."""

OLD_RUNS = "/torchelastic/p2p/run_"
"""Where the older etcd protocol has its runs."""


class Medium:
    """What nodes meet through: where it is, and how it goes away for a while."""

    def __init__(
        self,
        endpoint: str,
        process: ControlledProcess | None = None,
        start_again: Callable[[], ControlledProcess] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.process = process
        self._start_again = start_again

    def restart(self) -> None:
        """Kill its server and start one at the same place, with what the old one has left."""
        assert self.process is not None
        assert self._start_again is not None
        self.process.kill()
        self.process = self._start_again()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody can reach it meanwhile."""
        assert self.process is not None
        self.process.pause()
        try:
            yield
        finally:
            self.process.resume()

    def until_joined(self, run: str, count: int) -> None:
        """Wait until so many have joined the next world of a run; only where a test has to know."""
        raise AssertionError("only the older etcd protocol needs it")

    def forgets_after_s(self, run: str) -> int:
        """How long what is left of a run stays; only where that is long."""
        raise AssertionError("only the older etcd protocol needs it")

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()


class LockedMedium(Medium):
    """A store in a file: it is away while somebody else has the file locked."""

    @contextmanager
    def away(self) -> Iterator[None]:
        with Path(self.endpoint).open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class FolderMedium(Medium):
    """Records in a folder: it is away while the folder has another name."""

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

    def __init__(self, server: EtcdProcess) -> None:
        super().__init__(server.endpoint, server, self._started_again)
        self._server = server
        self._client = make_client(parse_endpoints(server.endpoint, 2379), read_timeout_s=30)

    def until_joined(self, run: str, count: int) -> None:
        import etcd

        def has_joined() -> bool:
            try:
                state = json.loads(self._client.read(f"{OLD_RUNS}{run}/rdzv/active_version").value)
            except etcd.EtcdKeyNotFound:
                return False
            return state["status"] == "joinable" and len(state["participants"]) == count

        wait_until(has_joined)

    def forgets_after_s(self, run: str) -> int:
        return int(self._client.read(f"{OLD_RUNS}{run}").ttl)

    def _started_again(self) -> ControlledProcess:
        self._server.start_again()
        return self._server

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
    words: Mapping[str, str] | None = None
    """The names that it has for options; those that are not in it, it does not have.  None: the common ones."""

    def named(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options under its own names."""
        words = self.words
        if words is None:
            return dict(options)
        return {words[name]: value for name, value in options.items() if name in words}


def _rallypoint(folder: Path) -> Medium:
    server = _server(0, 0.0)
    # One that knows nothing of the run listens for a while before it seals anything (rule 14).
    return Medium(server.endpoint, server, lambda: _server(server.port, 7.0))


def _server(port: int, hold_s: float) -> Server:
    server = Server(port, hold_s, None, 0)
    server.port = int(server.expect("serving")["port"])
    return server


def _address(folder: Path) -> Medium:
    return Medium(f"127.0.0.1:{free_port()}")


def _tcp(kind: str) -> Callable[[Path], Medium]:
    def start(folder: Path) -> Medium:
        port = free_port()
        return Medium(f"127.0.0.1:{port}", _store(kind, port), lambda: _store(kind, port))

    return start


def _store(kind: str, port: int) -> ControlledProcess:
    imported = TORCH if kind == "torch" else NODES
    server = ControlledProcess("tests.support.store_server_program", kind, str(port), imported=imported)
    server.expect("serving")
    return server


def _etcd(version: str) -> Callable[[Path], Medium]:
    return lambda folder: EtcdMedium(EtcdProcess(version))


def _file(folder: Path) -> Medium:
    return LockedMedium(str(folder / "store"))


def _folder(folder: Path) -> Medium:
    return FolderMedium(str(folder))


COMMON: dict[str, Any] = {"last_call_timeout": 10, "join_timeout": 40, "close_timeout": 10}
SERVED: dict[str, Any] = {**COMMON, "heartbeat_interval": INTERVAL_S, "heartbeat_timeout": TIMEOUT_S}
ELSEWHERE: dict[str, Any] = {**SERVED, "is_host": False}
FILE: dict[str, Any] = {**SERVED, "store_type": "file"}
ETCD_V3: dict[str, Any] = {**SERVED, "lease_ttl": 2}

OLD_ETCD: dict[str, Any] = {"last_call_timeout": 1, "join_timeout": 40, "keep_alive": KEEP_ALIVE_S}
OLD_ETCD_WORDS = {"last_call_timeout": "last_call_timeout", "join_timeout": "timeout", "keep_alive": "keep_alive"}

KINDS: dict[str, Kind] = {
    "rallypoint": Kind("rallypoint", _rallypoint, ELSEWHERE),
    "rallypoint, served by a node": Kind("rallypoint", _address, SERVED),
    "c10d tcp, torch's store": Kind("c10d", _tcp("torch"), ELSEWHERE, with_torch=True),
    "c10d tcp, our store": Kind("c10d", _tcp("ours"), ELSEWHERE),
    "c10d file, torch's store": Kind("c10d", _file, FILE, with_torch=True, only_in_soak=True),
    "c10d file, our store": Kind("c10d", _file, FILE),
    "etcd-v2": Kind("etcd-v2", _etcd("3.5"), SERVED),
    "etcd-v2 on etcd 3.4": Kind("etcd-v2", _etcd("3.4"), SERVED, only_in_soak=True),
    "etcd-v2, torch's kind of store": Kind("etcd-v2", _etcd("3.5"), SERVED, with_torch=True, only_in_soak=True),
    "etcd-v3": Kind("etcd-v3", _etcd("3.5"), ETCD_V3),
    "etcd-v3 on etcd 3.4": Kind("etcd-v3", _etcd("3.4"), ETCD_V3, only_in_soak=True),
    "etcd": Kind("etcd", _etcd("3.4"), OLD_ETCD, words=OLD_ETCD_WORDS),
    "etcd, torch's kind of store": Kind(
        "etcd", _etcd("3.5"), {**OLD_ETCD, "keep_alive": 10}, with_torch=True, only_in_soak=True, words=OLD_ETCD_WORDS
    ),
    "two methods": Kind("locked-file", _folder, SERVED),
    "two methods, unconfirmed": Kind("silent-file", _folder, SERVED, only_in_soak=True),
}

_OLD_ETCD = [name for name, kind in KINDS.items() if kind.backend == "etcd"]
_ETCD_V3 = [name for name, kind in KINDS.items() if kind.backend == "etcd-v3"]
_FIXED = [name for name, kind in KINDS.items() if kind.backend == "rallypoint"]
_AT_AN_ADDRESS = [name for name, kind in KINDS.items() if kind.start is _address]
_ELSEWHERE = [name for name in _FIXED if name not in _AT_AN_ADDRESS]
_TORCH_FILE = [name for name, kind in KINDS.items() if kind.start is _file and kind.with_torch]
_ON_BACKENDS = [name for name in KINDS if name not in (*_FIXED, *_OLD_ETCD, *_ETCD_V3)]
TCP_STORES = [name for name in KINDS if " tcp" in name]
_WITHOUT_SERVER = [name for name, kind in KINDS.items() if kind.start in (_file, _folder)]

# What is declared here is shown by a test to be so; what is not declared is shown to work.
TOLD_AT_ONCE = "a killed node is told of at once"
FREE_AT_ONCE = "a run id is free at once when all nodes were killed"
OUTLIVES_SERVER = "a run goes on when the server of its backend was restarted"
SHARE_ENDPOINT = "runs share an endpoint"
MAY_END_FIRST = "the node that serves may finish and end before the others"
REPLACES_STOPPED = "the node that serves is replaced while it is stopped"
WITHOUT_LAST_CALL = "survivors meet again without a last call"
KEEPS_RANKS = "who stays keeps its rank"
NOT_COUNTED = "a node whose join has timed out is counted no more"
MAY_LEAVE = "a node may leave, as finished or not, and the run goes on"
STANDS_BY = "a surplus node stands by and disturbs nobody"
ONE_SIZE = "a node that asks for another size is refused"
FREE_AFTER_CLOSE = "a run id is free again when the run has ended"
SAYS_HOW = "who comes to a closed run is told how it ended"
A_NODE_SERVES = "one of the nodes serves the run, and may be lost"
CONNECTED_FIRST = "a node is connected to the server of its run before it joins"
MEDIUM_AWAY = "a medium that is away and comes back costs nobody its place"

STALE_RECORD = (
    "after `heartbeat_timeout` and a hold: the record names a dead server and its world, and nobody is left who knows"
)
STALE_LEASE = "after `lease_ttl` and a hold: the record names a dead server and its world, and nobody is left who knows"
STALE_FILE = "after 50 s and a hold: torch's file grows with every write, so the server beats there every 17 s only"
STALE_FILE_S = 120.0
"""As long as that takes at most."""
ONE_RUN = "each run needs a port of its own: a server in a node serves its own run only"
STAYS = "the node that serves stays until all have finished: what the server knows ends with it"
TAKEN = "its address stays taken; the others keep their world until it goes on, or `outage_grace` ends"
UNTOLD = "not while nobody waits: only a node that waits looks whether keep-alive keys have expired, after up to 10 s"
EXPIRING = "after up to 10 s, when the keep-alive keys have expired"
HAS_NO_SERVER = "it has none"
SERVER_ELSEWHERE = "its server is a process of its own"
NODE_IS_MEDIUM = "the node that serves is all there is"

CANNOT: dict[str, dict[str, str]] = {
    TOLD_AT_ONCE: dict.fromkeys(_OLD_ETCD, UNTOLD),
    FREE_AT_ONCE: {
        **dict.fromkeys(_ON_BACKENDS, STALE_RECORD),
        **dict.fromkeys(_ETCD_V3, STALE_LEASE),
        **dict.fromkeys(_TORCH_FILE, STALE_FILE),
        **dict.fromkeys(_OLD_ETCD, EXPIRING),
    },
    REPLACES_STOPPED: {**dict.fromkeys(_AT_AN_ADDRESS, TAKEN), **dict.fromkeys(_TORCH_FILE, STALE_FILE)},
    SHARE_ENDPOINT: dict.fromkeys(_AT_AN_ADDRESS, ONE_RUN),
    MAY_END_FIRST: dict.fromkeys(_AT_AN_ADDRESS, STAYS),
    WITHOUT_LAST_CALL: dict.fromkeys(_OLD_ETCD, "with one: the protocol does not tell survivors from newcomers"),
    KEEPS_RANKS: dict.fromkeys(_OLD_ETCD, "ranks are the order of arrival"),
    NOT_COUNTED: dict.fromkeys(_OLD_ETCD, "it is missed when all are to confirm: the state has no word for leaving"),
    MAY_LEAVE: dict.fromkeys(_OLD_ETCD, "who shuts down closes the run for everybody"),
    STANDS_BY: dict.fromkeys(_OLD_ETCD, "it counts as waiting, so that the others join again; its own time runs out"),
    ONE_SIZE: dict.fromkeys(_OLD_ETCD, "everybody goes by its own numbers: the state has no place for them"),
    FREE_AFTER_CLOSE: dict.fromkeys(_OLD_ETCD, "after two hours, when its directory has expired"),
    SAYS_HOW: dict.fromkeys(_OLD_ETCD, "that it is closed: the state has no word for more"),
}
NOT_ASKED: dict[str, dict[str, str]] = {
    OUTLIVES_SERVER: dict.fromkeys([*_WITHOUT_SERVER, *_AT_AN_ADDRESS], HAS_NO_SERVER),
    A_NODE_SERVES: {**dict.fromkeys(_ELSEWHERE, SERVER_ELSEWHERE), **dict.fromkeys(_OLD_ETCD, HAS_NO_SERVER)},
    CONNECTED_FIRST: dict.fromkeys(_OLD_ETCD, HAS_NO_SERVER),
    MEDIUM_AWAY: dict.fromkeys(_AT_AN_ADDRESS, NODE_IS_MEDIUM),
}
"""What a test has nothing to ask about on a backend."""

START = "<!-- limits: written by tests/conformance, from backend_kinds.py -->"
END = "<!-- end of limits -->"


def table() -> str:
    """What the backends cannot do, and what is not asked of them, as the page shows it."""
    limits = _rows("not so on | there instead", CANNOT)
    return "\n".join([START, *limits, "", "Not asked:", "", *_rows("on | because", NOT_ASKED), END])


def _rows(heading: str, said: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """A table with one line for the backends of which the same is to be said."""
    yield f"| what | {heading} |"
    yield "|---|---|---|"
    for what, of in said.items():
        for words in dict.fromkeys(of.values()):
            names = "; ".join(name for name in KINDS if of.get(name) == words)
            yield f"| {what} | {names} | {words} |"
