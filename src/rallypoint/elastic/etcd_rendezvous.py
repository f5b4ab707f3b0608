"""PyTorch's older `etcd` backend, spoken to the letter, so that its nodes and ours form one world together.

Unlike the other backends it does not drive the core: what happens when is the protocol's, with its limits.  A loss is
noticed only by a node that waits, through a keep-alive key that is gone.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from rallypoint import events
from rallypoint.backends.etcd_v2_client import DEFAULT_PORT, certificates, connect, make_client
from rallypoint.backends.options import choice, read_options, seconds, text
from rallypoint.elastic.api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from rallypoint.elastic.lazy_names import lazy_names
from rallypoint.elastic.legacy_etcd import protocol
from rallypoint.elastic.legacy_etcd.lease import KeyLease
from rallypoint.elastic.legacy_etcd.phases import EtcdPhases
from rallypoint.elastic.legacy_etcd.protocol import EtcdRendezvousRetryableFailure, EtcdRendezvousRetryImmediately
from rallypoint.elastic.utils import _failures_recorded
from rallypoint.errors import RendezvousConnectionError, RendezvousStateError, RendezvousTimeoutError
from rallypoint.net import parse_endpoints
from rallypoint.stores.errors import StoreTimeoutError
from rallypoint.stores.etcd_v2.keys import EtcdAwayError, step_back
from rallypoint.stores.etcd_v2.watch import wait_for_event
from rallypoint.torch_bridge import presence
from rallypoint.torch_bridge.errors import in_torch_words_too
from rallypoint.waiting import Deadline

__all__ = [
    "EtcdRendezvous",
    "EtcdRendezvousHandler",
    "EtcdRendezvousRetryImmediately",
    "EtcdRendezvousRetryableFailure",
    "create_rdzv_handler",
]

__getattr__ = lazy_names(
    *(__name__, "EtcdStore", "RendezvousClosedError", "RendezvousError", "cas_delay", "etcd"),
    "parse_rendezvous_endpoint",
)

logger = logging.getLogger("rallypoint.etcd")

# How many seconds each of the protocol's keys lives, under PyTorch's names.
CONST_ETCD_SETUP_TTL = protocol.SETUP_TTL_S
CONST_ETCD_FROZEN_TTL = protocol.FROZEN_TTL_S
CONST_ETCD_JOINABLE_EPHEMERAL_TTL = protocol.JOINABLE_TTL_S
CONST_WORKER_KEEPALIVE_TTL = protocol.KEEP_ALIVE_TTL_S
CONST_RUNID_SUBROOT_TTL = protocol.RUN_TTL_S

BACKEND = "etcd"
TIMEOUT = seconds("timeout", 600.0, "how long a rendezvous may take", or_zero=True)
LAST_CALL = seconds("last_call_timeout", 30.0, "how long more nodes are waited for once min are here", or_zero=True)
PREFIX = text("etcd_prefix", "/torchelastic/p2p", "the directory of etcd's under which all runs are", or_empty=True)
PROTOCOL = choice("protocol", ("http", "https"), "http", "how etcd is reached", exact=True)
CERT, KEY, CA_CERT = certificates("cert", "key", "cacert")
OPTIONS = (TIMEOUT, LAST_CALL, PREFIX, PROTOCOL, CERT, KEY, CA_CERT)

_LOOK_S = 2.0
_MOMENT_S = 1.0
"""How long an agent that watches its workers is held up by an etcd that does not answer."""


class EtcdRendezvous(EtcdPhases):
    """One node's side of the protocol, for a run whose keys are under `<prefix>/run_<run_id>`."""

    def rendezvous_barrier(self) -> tuple[str, int, int]:
        """Wait for the next world; its version, this node's rank, and the size."""
        self._give_up_seat()
        with self._one_phase():
            while True:
                with suppress(EtcdRendezvousRetryableFailure, EtcdRendezvousRetryImmediately):
                    return self.init_phase()

    def current_state(self) -> protocol.State | None:
        """The state as it is now, or None."""
        with self._asking() as term:
            return self._look(term).state or None

    def num_waiting(self) -> int:
        """How many wait for the next version: 0 in an outage, at least 1 where the last barrier's world was given up."""
        with self._asking():
            try:
                state = self._look(Deadline.after(_MOMENT_S)).state
            except EtcdAwayError:
                return 0
        seat = self._seat
        if seat is not None and state.get("status") != protocol.CLOSED and state.get("version") != seat.version:
            return 1
        return int(state["num_workers_waiting"]) if state.get("status") == protocol.FINAL else 0

    def has_lost_its_world(self) -> bool:
        """Whether the world of the last barrier is over, or a member of it is gone; only a node that asks learns of it."""
        with self._asking() as term:
            state, seat = self._look(term).state, self._seat
            if seat is not None and state.get("version") != seat.version:
                return True
            return state.get("status") == protocol.FINAL and self._missing(state, term)[0]

    def set_closed(self) -> None:
        """Close the run for everybody, also where nobody has begun it."""
        with self._asking() as term:
            while (found := self._look(term)).state.get("status") != protocol.CLOSED:
                if self._edit(found, protocol.closed(found.state), term) is not None:
                    return

    def leave(self) -> None:
        """Let the keep-alive key go."""
        self._give_up_seat()
        self._run_lease.stop()

    def store_extra_data(self, rdzv_version: str, key: str, value: str) -> None:
        """Keep something with a version, for all its nodes."""
        path, conflicts = self._extra_data(rdzv_version), 0
        with self._asking() as term:
            while True:
                node = self._keys.read(path, term).node
                before = None if node is None else node.value
                started, new = time.monotonic(), protocol.written({**_object(before, path), key: value})
                if self._keys.swap(path, new, term, before=before).done:
                    return
                conflicts += 1
                step_back(conflicts, time.monotonic() - started, term)

    def load_extra_data(self, rdzv_version: str, key: str, timeout: timedelta | float | None = None) -> Any:
        """Wait until a node has kept something under this key; RendezvousTimeoutError where none does in time."""
        path = self._extra_data(rdzv_version)
        given = timeout if timeout is None or isinstance(timeout, timedelta) else timedelta(seconds=timeout)
        waiting = Deadline.of(timedelta.max if given is None else given)
        while True:
            with self._asking() as term:
                answer = self._keys.read(path, term)
            extra = _object(None if answer.node is None else answer.node.value, path)
            if key in extra:
                return extra[key]
            if waiting.left_s() <= 0:
                raise RendezvousTimeoutError(
                    f"nobody has stored {key!r} for version {rdzv_version} of run {self.run_id!r} within "
                    f"{waiting.timeout_s:g} s"
                )
            wait_for_event(self._keys, [(path, False)], answer.at, waiting.left_s())

    def create_path_if_not_exists(self, full_path: str, ttl: int | None = None) -> None:
        """Make a directory, for good or for so many seconds, where nothing is."""
        with self._asking() as term:
            self._keys.make_directory(full_path, term, ttl_s=ttl)

    def setup_lease_renewal(self, full_path: str, ttl: int) -> threading.Event:
        """Keep a key or directory alive, until the event is set, the key is gone, or nobody holds this object."""
        with self._asking() as term:
            node = self._keys.read(full_path, term).node
            is_directory = node is not None and node.is_directory
            alive = self._keys.prolong(full_path, ttl, term, directory=is_directory)
        lease = KeyLease(self._keys, full_path, ttl, directory=is_directory)
        if not alive:
            lease.stop()
        self._leases = [*(held for held in self._leases if not held.stopped.is_set()), lease]
        return lease.stopped

    def setup_kv_store(self, rdzv_version: str) -> Any:
        """The store of a version."""
        path = self.get_path(f"/rdzv/v_{rdzv_version}/kv")
        self.create_path_if_not_exists(path)
        return self._make_store(self.client, path)

    def _extra_data(self, version: str) -> str:
        return self.get_path(f"/rdzv/v_{version}/extra_data")


class EtcdRendezvousHandler(RendezvousHandler):
    """A node's membership by the older protocol."""

    def __init__(self, rdzv_impl: EtcdRendezvous, local_addr: str | None) -> None:
        presence.greet(type(self))
        self._rendezvous = rdzv_impl
        self._local_addr = local_addr

    def get_backend(self) -> str:
        return BACKEND

    @in_torch_words_too
    def next_rendezvous(self) -> RendezvousInfo:
        with _failures_recorded("join failed", self.get_run_id(), BACKEND):
            while True:
                version, rank, size = self._rendezvous.rendezvous_barrier()
                store = self._rendezvous.setup_kv_store(version)
                info = self._meet(rank, store)
                if info is not None:
                    events.record("sealed", self.get_run_id(), f"version {version} is final", rank=rank, size=size)
                    return RendezvousInfo(store, rank, size, info)

    @in_torch_words_too
    def is_closed(self) -> bool:
        """Whether the run is closed; where there is no state, it is not."""
        state = self._rendezvous.current_state()
        return state is not None and state["status"] == protocol.CLOSED

    @in_torch_words_too
    def set_closed(self) -> None:
        self._rendezvous.set_closed()

    @in_torch_words_too
    def num_nodes_waiting(self) -> int:
        """How many wait for the next version; at least 1 where this node's own was given up by those who waited.

        While etcd cannot be reached it is 0, after a moment: an outage is no reason to stop workers.
        """
        return self._rendezvous.num_waiting()

    def get_run_id(self) -> str:
        return self._rendezvous.run_id

    @in_torch_words_too
    def shutdown(self) -> bool:
        """Close the run, as PyTorch's does; whether that went well."""
        self._rendezvous.leave()
        try:
            self.set_closed()
        except (RendezvousConnectionError, RendezvousStateError) as exc:
            events.record("closing failed", self.get_run_id(), str(exc))
            return False
        return True

    def _meet(self, rank: int, store: Any) -> RendezvousStoreInfo | None:
        """Where rank 0 says that the workers meet; None where it died before it could say so."""
        timeout: timedelta = store.timeout
        store.set_timeout(timedelta(seconds=_LOOK_S))
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            while True:
                try:
                    return RendezvousStoreInfo.build(rank, store, self._local_addr)
                except StoreTimeoutError:  # noqa: PERF203  # trying again is the point
                    if time.monotonic() > deadline:
                        raise
                    if self._rendezvous.has_lost_its_world():
                        return None
        finally:
            store.set_timeout(timeout)


@in_torch_words_too
def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The creator of the backend `etcd`.

    The endpoint is a host and port, several with commas between them, or a URL as `parameters_from_url` reads it.
    """
    if "://" in (params.endpoint or ""):
        params = parameters_from_url(params.endpoint, params)
    with _failures_recorded("backend failed", params.run_id, params.backend):
        options = read_options(BACKEND, params.config, OPTIONS, lenient=True)
        client = make_client(
            parse_endpoints(params.endpoint, DEFAULT_PORT),
            protocol=options[PROTOCOL],
            cert=options[CERT],
            key=options[KEY],
            ca=options[CA_CERT],
        )
        connect(client, options[TIMEOUT] or TIMEOUT.default, f"etcd at {params.endpoint or 'localhost'}")
        rendezvous = EtcdRendezvous(
            client,
            options[PREFIX],
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            options[TIMEOUT],
            options[LAST_CALL],
        )
    return EtcdRendezvousHandler(rendezvous, params.local_addr)


def parameters_from_url(url: str, params: RendezvousParameters | None = None) -> RendezvousParameters:
    """Read `etcd://host:port/job?min_workers=1&max_workers=3&timeout=…`, over what `params` say where it says nothing."""
    parts = urlsplit(url)
    options: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    given = params or RendezvousParameters(BACKEND, "", "", 1, 1)
    run_id = parts.path.strip("/") or given.run_id
    if parts.scheme != "etcd" or not run_id:
        raise ValueError(
            f"The URL {url!r} does not name a run on etcd: write etcd://host:port/run?min_workers=1&max_workers=3."
        )
    try:
        min_nodes = int(options.pop("min_workers", given.min_nodes))
        max_nodes = int(options.pop("max_workers", given.max_nodes if params is not None else min_nodes))
    except ValueError as exc:
        raise ValueError(f"The URL {url!r} has a number of workers that is none: {exc}.") from None
    config = {**given.config, **options}
    return RendezvousParameters(BACKEND, parts.netloc, run_id, min_nodes, max_nodes, given.local_addr, **config)


def _object(stored: str | None, path: str) -> dict[str, Any]:
    """The JSON object that is stored at a path; an empty one where nothing is."""
    try:
        extra = {} if stored is None else json.loads(stored)
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise RendezvousStateError(f"{path} should hold a JSON object, and begins with {str(stored)[:60]!r}")
    return extra
