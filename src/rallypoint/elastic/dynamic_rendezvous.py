"""PyTorch's `dynamic_rendezvous`: a handler on any backend that can hold one document.

The names and signatures are PyTorch's; what happens behind them is the core, edited into the document by everyone.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from rallypoint import events
from rallypoint.client.identity import mint_id
from rallypoint.client.round_store import split_endpoint
from rallypoint.core.model import Bounds, Node, OnGiveUp, Role, Settings
from rallypoint.core.notices import Placed
from rallypoint.document.bootstrap import Offer, own_address
from rallypoint.document.member import DocumentMember
from rallypoint.elastic.api import RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from rallypoint.elastic.member_handler import HandlerOnMembership, reason_to_leave
from rallypoint.elastic.options import OptionValues, choice, number, read_options, seconds, text
from rallypoint.stores import PrefixStore, TcpStore
from rallypoint.stores.late import LateStore
from rallypoint.torch_bridge.stores_c10d import is_torch_store, prefix_store

__all__ = [
    "DynamicRendezvousHandler",
    "RendezvousBackend",
    "RendezvousSettings",
    "RendezvousTimeout",
    "Token",
    "create_handler",
]

Token = Any
"""What a backend knows a version of the document by; nobody else looks inside."""

JOIN_TIMEOUT = seconds("join_timeout", 600.0, "how long a join may take, connecting included")
LAST_CALL = seconds("last_call_timeout", 30.0, "how long a first round waits for more nodes once min are here")
CLOSE_TIMEOUT = seconds("close_timeout", 30.0, "how long shutdown waits for those who depend on this process")
HEARTBEAT_TIMEOUT = seconds("heartbeat_timeout", 5.0, "how long one heartbeat may take")
KEEP_ALIVE_INTERVAL = seconds("keep_alive_interval", 5.0, "how often a node says that it is there")
KEEP_ALIVE_ATTEMPTS = number("keep_alive_max_attempt", 3, "how many intervals a silent node is waited for", at_least=1)
OUTAGE_GRACE = seconds("outage_grace", 300.0, "how long workers run on while the backend is away", or_zero=True)
REGROUP_TIMEOUT = seconds("regroup_timeout", 60.0, "how long live members are awaited back", or_zero=True)
ADMIT_DELAY = seconds("admit_delay", 0.0, "how old a round must be before newcomers are admitted", or_zero=True)
RANK = number("rank", None, "the rank that this node would like to have", at_least=0)
TOPOLOGY = text("topology", "", "where this node is, as a path: ranks of neighbours are neighbours")
ROLE = choice("role", ("member", "spare"), "member", "whether this node takes part or stands by")
ON_GIVE_UP = choice("on_give_up", ("auto", "wait", "close"), "auto", "what the run does when a member gives up")
NAME = text("node_name", "", "what this node is called; by default its host name")

OPTIONS = (
    JOIN_TIMEOUT,
    LAST_CALL,
    CLOSE_TIMEOUT,
    HEARTBEAT_TIMEOUT,
    KEEP_ALIVE_INTERVAL,
    KEEP_ALIVE_ATTEMPTS,
    OUTAGE_GRACE,
    REGROUP_TIMEOUT,
    ADMIT_DELAY,
    RANK,
    TOPOLOGY,
    ROLE,
    ON_GIVE_UP,
    NAME,
)

STORE_TIMEOUT = timedelta(seconds=300)


class RendezvousBackend(ABC):
    """A medium that holds one document; two methods are all that is needed to bring one's own.

    A medium that can tell of a change may have a third, `wait_for_change(token, timeout_s)`: it returns when the
    document's token is not `token` any more (None: when there is a document), or when the time is up.  Then nodes wait
    for it instead of reading again and again.  It is called from a thread of its own, beside the others.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What the backend is called."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """The document and its token, or None where there is none.

        Raises RendezvousConnectionError where the medium is out of reach, RendezvousStateError where what it holds is
        damaged.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the document if `token` is still that of what is there, or, without one, if nothing is there.

        Returns what is there afterwards, its token, and whether it was written; or None where that is not known.
        Raises as `get_state` does.
        """


class RendezvousTimeout:
    """How long things may take: joining, the last call, closing, one heartbeat.  All of them are above zero."""

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        self._join = _positive("join", join, 600)
        self._last_call = _positive("last call", last_call, 30)
        self._close = _positive("close", close, 30)
        self._heartbeat = _positive("heartbeat", heartbeat, 5)

    @property
    def join(self) -> timedelta:
        """How long a join may take."""
        return self._join

    @property
    def last_call(self) -> timedelta:
        """How long a first round waits for more nodes once min are here."""
        return self._last_call

    @property
    def close(self) -> timedelta:
        """How long shutdown waits for those who depend on this process."""
        return self._close

    @property
    def heartbeat(self) -> timedelta:
        """How long one heartbeat may take."""
        return self._heartbeat


def _positive(name: str, timeout: timedelta | None, default_s: float) -> timedelta:
    if timeout is None:
        return timedelta(seconds=default_s)
    if timeout <= timedelta(0):
        raise ValueError(f"The {name} time-out is {timeout.total_seconds():g} s, but should be above 0.")
    return timeout


@dataclass(repr=False, eq=False, frozen=True)
class RendezvousSettings:
    """What a handler was made with."""

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int


class DynamicRendezvousHandler(HandlerOnMembership):
    """A node's membership in a run whose document a `RendezvousBackend` holds.  Make it by `from_backend`."""

    def __init__(
        self,
        settings: RendezvousSettings,
        backend: RendezvousBackend,
        store: Any,
        local_addr: str | None = None,
        options: OptionValues | None = None,
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._store = store
        self._address = local_addr or own_address(store)
        self._with_torch = is_torch_store(store)
        self._offer: Offer | None = None
        self._serving: Offer | None = None
        given = options or OptionValues(OPTIONS, {})
        self._member: DocumentMember = DocumentMember(
            settings.run_id,
            backend,
            store,
            Bounds(settings.min_nodes, settings.max_nodes),
            _run_settings(settings, given),
            _this_node(given, self._address),
            prepare=self._prepare,
            close_s=settings.timeout.close.total_seconds(),
        )

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Any,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: float = 5,
        keep_alive_max_attempt: int = 3,
    ) -> DynamicRendezvousHandler:
        """A handler for one node.

        `store` is what the workers get a part of; it is also used to keep heartbeats out of the document, where it is
        the same for all nodes.  None stands for a store that rank 0 of each round serves.  A node is given up after
        `keep_alive_max_attempt` intervals of silence.
        """
        settings = _settings(
            run_id, min_nodes, max_nodes, timeout or RendezvousTimeout(), keep_alive_interval, keep_alive_max_attempt
        )
        return cls(settings, backend, store, local_addr)

    @property
    def settings(self) -> RendezvousSettings:
        """What the handler was made with."""
        return self._settings

    def get_backend(self) -> str:
        """The backend's name."""
        return self._backend.name

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use the store that rank 0 serves, instead of starting another."""
        return os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a place in the next world."""
        placed = self._member.join(self._settings.timeout.join.total_seconds())
        self._open(placed)
        info = RendezvousStoreInfo(*split_endpoint(placed.store))
        return RendezvousInfo(self._round_store(placed, info), placed.rank, placed.size, info)

    def shutdown(self) -> bool:
        """Leave: with an exception under way the node withdraws, otherwise it has finished (rule 8)."""
        done = self._member.leave(reason_to_leave(), is_host=bool(getattr(self._backend, "hosts_store", False)))
        self._withdraw()
        return done

    # Inside -------------------------------------------------------------------------------------------------------

    def _prepare(self, node: Node) -> Node:
        """Offer a store for the next round: bound first, published with the join (rule 12)."""
        if self._offer is None:
            self._offer = Offer(self._address)
        return msgspec.structs.replace(node, address=self._address, store=self._offer.endpoint)

    def _open(self, placed: Placed) -> None:
        """The last round's store is over; rank 0 serves this one's, unless the workers start their own."""
        offer, self._offer = self._offer, None
        if self._serving is not None:
            self._serving.withdraw()
        self._serving = offer
        if offer is None:
            return
        if placed.rank == 0 and (self.use_agent_store or self._store is None):
            offer.serve(with_torch=self._with_torch)
        else:
            offer.withdraw()

    def _round_store(self, placed: Placed, info: RendezvousStoreInfo) -> Any:
        prefix = f"torch.rendezvous.{self._settings.run_id}.{placed.incarnation}.{placed.round}"
        if self._store is None:
            address, port = info.master_addr, info.master_port
            return PrefixStore(prefix, LateStore(lambda: TcpStore(address, port, timeout=STORE_TIMEOUT)))
        if self._with_torch:
            return prefix_store(prefix, self._store)
        return PrefixStore(prefix, self._store)

    def _withdraw(self) -> None:
        for offer in (self._offer, self._serving):
            if offer is not None:
                offer.withdraw()
        self._offer = self._serving = None

    def _stop_heartbeats(self) -> None:
        """End without a word to anybody, as a process does that is killed."""
        self._member.stop()
        self._withdraw()


def create_handler(store: Any, backend: RendezvousBackend, params: RendezvousParameters) -> DynamicRendezvousHandler:
    """A handler as the parameters ask for it; options of others in their configuration are left alone."""
    try:
        known = {option.name for option in OPTIONS}
        given = {name: value for name, value in params.config.items() if name in known}
        options = read_options(params.backend, given, OPTIONS)
        timeout = RendezvousTimeout(
            timedelta(seconds=options[JOIN_TIMEOUT]),
            timedelta(seconds=options[LAST_CALL]),
            timedelta(seconds=options[CLOSE_TIMEOUT]),
            timedelta(seconds=options[HEARTBEAT_TIMEOUT]),
        )
        settings = _settings(
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            timeout,
            options[KEEP_ALIVE_INTERVAL],
            options[KEEP_ALIVE_ATTEMPTS],
        )
        return DynamicRendezvousHandler(settings, backend, store, params.local_addr, options)
    except Exception as exc:
        events.record("handler failed", params.run_id, f"{type(exc).__name__}: {exc}", backend=params.backend)
        raise


def _settings(
    run_id: str, min_nodes: int, max_nodes: int, timeout: RendezvousTimeout, interval_s: float, attempts: int
) -> RendezvousSettings:
    if not run_id:
        raise ValueError("The run id is empty: every job needs a name of its own, such as its job id.")
    if min_nodes < 1:
        raise ValueError(f"min_nodes is {min_nodes}, but a run has at least 1 node.")
    if max_nodes < min_nodes:
        raise ValueError(
            f"max_nodes is {max_nodes}, less than min_nodes, which is {min_nodes}: raise the one or lower the other."
        )
    if interval_s <= 0 or attempts < 1:
        raise ValueError(
            f"keep_alive_interval is {interval_s} s and keep_alive_max_attempt {attempts}, but the one should be above "
            f"0 and the other at least 1: a node would be lost between two beats."
        )
    return RendezvousSettings(
        run_id=run_id,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        timeout=timeout,
        keep_alive_interval=timedelta(seconds=interval_s),
        keep_alive_max_attempt=attempts,
    )


def _run_settings(settings: RendezvousSettings, options: OptionValues) -> Settings:
    interval_s = settings.keep_alive_interval.total_seconds()
    return Settings(
        last_call_s=settings.timeout.last_call.total_seconds(),
        regroup_s=options[REGROUP_TIMEOUT],
        admit_delay_s=options[ADMIT_DELAY],
        heartbeat_interval_s=interval_s,
        heartbeat_timeout_s=interval_s * settings.keep_alive_max_attempt,
        outage_grace_s=options[OUTAGE_GRACE],
        on_give_up=OnGiveUp(options[ON_GIVE_UP]),
    )


def _this_node(options: OptionValues, address: str) -> Node:
    name = options[NAME] or socket.gethostname()
    return Node(
        id=mint_id(name),
        name=name,
        address=address,
        wanted_rank=options[RANK],
        topology=options[TOPOLOGY],
        role=Role(options[ROLE]),
    )
