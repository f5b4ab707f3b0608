"""What an elected server costs on the other registers: a c10d TCP store, and a key in etcd by its API v2.

An earlier version whose nodes edit one document has no server; where the server is meant, rank 0 is taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from benchmarks.elected import etcd
from benchmarks.measurements import GIVE_UP_S, Setup, World, form, lose
from benchmarks.processes import Worker, free_port
from rallypoint.backends.etcd_v2_client import make_client
from rallypoint.elastic.c10d_rendezvous_backend import C10dRendezvousBackend
from rallypoint.elastic.dynamic_rendezvous import RendezvousBackend
from rallypoint.elastic.etcd_rendezvous_backend import EtcdRendezvousBackend
from rallypoint.net import parse_endpoints
from rallypoint.stores import StoreServer, TcpStore, listen
from rallypoint.stores.documents import ETCD_V2_FOLDER

OPTIONS = {"join_timeout": GIVE_UP_S}
TORCH = "torch"


class Register(NamedTuple):
    """Where a run's server is found: the backend, its options, and what opens it for a run."""

    backend: str
    endpoint: str
    options: Mapping[str, object]
    open: Callable[[str], RendezvousBackend]


@contextmanager
def c10d() -> Iterator[Register]:
    """A store in this process, so that any node may be killed."""
    server = StoreServer()
    listener = listen("127.0.0.1")
    port = listener.getsockname()[1]
    server.start_in_thread(listener)

    def open_backend(run_id: str) -> RendezvousBackend:
        store = TcpStore("127.0.0.1", port, timeout=timedelta(seconds=GIVE_UP_S), wait_for_workers=False)
        return C10dRendezvousBackend(store, run_id)

    try:
        yield Register("c10d", f"127.0.0.1:{port}", {**OPTIONS, "is_host": False}, open_backend)
    finally:
        server.stop()


@contextmanager
def etcd_v2() -> Iterator[Register]:
    """A key in a single member."""
    with etcd() as endpoint:
        client = make_client(parse_endpoints(endpoint, 2379))
        yield Register(
            "etcd-v2", endpoint, OPTIONS, lambda run_id: EtcdRendezvousBackend(client, run_id, ETCD_V2_FOLDER)
        )


REGISTERS = {"c10d": c10d, "etcd-v2": etcd_v2}


def forming(source: Path | None, shares: list[int], backend: str) -> dict[str, float]:
    """Seconds until the last of so many nodes has its rank; torch's where there is no source.

    On c10d one of the nodes serves the store, as with torchrun.
    """
    nodes, owner = sum(shares), TORCH if source is None else "rallypoint"
    if backend == "c10d":
        endpoint = f"127.0.0.1:{free_port()}"
        return {"": form(Setup(f"{owner}:c10d", endpoint, (nodes, nodes), OPTIONS, source), shares, GIVE_UP_S)}
    with REGISTERS[backend]() as register:
        setup = Setup(f"{owner}:{backend}", register.endpoint, (nodes, nodes), register.options, source)
        return {"": form(setup, shares, GIVE_UP_S)}


def losing(source: Path, backend: str, *, server: bool) -> dict[str, float]:
    """Kill the serving node of four, or another one."""

    def victims(world: World) -> list[Worker]:
        serves = _server(register, world)
        return [serves] if server else [process for process in world.processes if process is not serves][:1]

    with REGISTERS[backend]() as register:
        setup = Setup(f"rallypoint:{backend}", register.endpoint, (3, 4), register.options, source)
        found = lose(setup, 4, victims)
        return {": told": found.told_s, ": new world": found.world_s}


def _server(register: Register, world: World) -> Worker:
    """The process that serves, by the claim in the run's record."""
    found = register.open(world.run_id).get_state()
    claim = json.loads(found[0])["body"].get("claim") if found is not None else None
    if claim is None:
        return world.processes[0]
    port = int(claim["port"])
    return next(process for process in world.processes if process.listens(port))
