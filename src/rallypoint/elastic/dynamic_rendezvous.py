"""PyTorch's `dynamic_rendezvous`: a handler on any backend that can hold one document.

The names and signatures are PyTorch's.  Behind them the document only names the server that runs the core (rule 17).
"""

from __future__ import annotations

import logging
import socket
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rallypoint.backends import membership
from rallypoint.backends.options import Option, OptionValues, check_bounds, check_run_id, read_options
from rallypoint.client import addresses
from rallypoint.client.background import background, run_in_thread
from rallypoint.client.member import Member
from rallypoint.client.round_store import StoreHosting
from rallypoint.elastic.api import RendezvousInfo, RendezvousParameters
from rallypoint.elastic.lazy_names import lazy_names
from rallypoint.elastic.member_handler import HandlerOnMembership
from rallypoint.elastic.utils import _failures_recorded, _part_of
from rallypoint.errors import RendezvousError
from rallypoint.location.elected import ElectedLocator
from rallypoint.location.election_driver import Candidacy
from rallypoint.location.member import LocatedMember
from rallypoint.location.registers.backend import BackendRegister
from rallypoint.messages.types import Bounds, Settings
from rallypoint.stores.c10d_document import C10dDocument
from rallypoint.torch_bridge import presence
from rallypoint.torch_bridge.errors import in_torch_words_too
from rallypoint.torch_bridge.stores_c10d import is_torch_store, shares_store

__all__ = [
    "DynamicRendezvousHandler",
    "RendezvousBackend",
    "RendezvousSettings",
    "RendezvousTimeout",
    "create_handler",
]

__getattr__ = lazy_names(
    *(__name__, "NodeState", "Store", "construct_and_record_rdzv_event", "dist", "RendezvousHandler"),
    *("RendezvousClosedError", "RendezvousGracefulExitError", "RendezvousStateError", "RendezvousStoreInfo"),
    "RendezvousTimeoutError",
)

logger = logging.getLogger("rallypoint")

Token = Any
"""What a backend knows a version of the document by; nobody else looks inside."""

TIMEOUTS = (membership.JOIN_TIMEOUT, membership.LAST_CALL, membership.CLOSE_TIMEOUT)
OPTIONS: tuple[Option[Any], ...] = (*TIMEOUTS, *membership.HEARTBEATS, membership.SERVER_PORT, *membership.CHOICES)
"""What a handler on a backend can be asked for; the backend's own options come besides."""

SHORTEST_SILENCE_S = 1.0
"""In PyTorch a heartbeat's time-out is that of one call; here a node must not be lost because its machine is busy."""
NOT_GIVEN = (5.0, 3)
"""PyTorch's own keep-alives: a program that passes them on has asked for nothing (rule 6 has quicker ones)."""


def get_method_name(depth: int = 2) -> str:
    """The name of the function that is `depth` calls above this one; 1 is the caller, 2 is who called that."""
    try:
        return sys._getframe(depth).f_code.co_name  # noqa: SLF001  # public in all but its name
    except ValueError:
        return "no_method_name"


class RendezvousBackend(ABC):
    """A medium that holds one document; two methods are all that is needed to bring one's own.

    A medium that can tell of a change may have a third, `wait_for_change(token, timeout_s)`: it returns when the
    document's token is not `token` any more (None: when there is a document), or when the time is up.  Then nodes wait
    for it instead of reading again and again.  It is called from a thread of its own, at the same time as the others.
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
        """How long shutdown waits for the nodes that depend on this process."""
        return self._close

    @property
    def heartbeat(self) -> timedelta:
        """How long one heartbeat may take."""
        return self._heartbeat


def _positive(name: str, timeout: timedelta | None, default_s: float) -> timedelta:
    if timeout is not None and timeout <= timedelta(0):
        raise ValueError(f"The {name} time-out is {timeout.total_seconds():g} s, but should be above 0.")
    return timedelta(seconds=default_s) if timeout is None else timeout


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
    """A node's membership in a run whose server is found by a `RendezvousBackend`.  Make it by `from_backend`."""

    def __init__(
        self,
        settings: RendezvousSettings,
        backend: RendezvousBackend,
        store: Any,
        local_addr: str | None = None,
        options: OptionValues | None = None,
    ) -> None:
        self._settings, self._backend, self._store = settings, backend, store
        given = options or OptionValues(OPTIONS, {})
        run_settings = _run_settings(settings, given)
        candidacy = Candidacy(
            settings.run_id,
            lambda _: BackendRegister(lambda: backend),
            run_settings,
            address=local_addr or run_in_thread(lambda: _own_address(store)),
            ports=given[membership.SERVER_PORT],
            rest_s=getattr(backend, "rest_s", None),
        )
        # An election that goes on holds its backend, so no other backend has that id meanwhile.
        key = (backend.name, getattr(backend, "place", None) or id(backend))
        locator = ElectedLocator(f"the backend {backend.name!r}", key, candidacy)
        self._member = LocatedMember(
            locator,
            settings.run_id,
            Bounds(settings.min_nodes, settings.max_nodes),
            run_settings,
            membership.node_from(local_addr, given),
            close_s=settings.timeout.close.total_seconds(),
            hosting=_hosting_of(store, given[membership.STORE]),
        )
        presence.greet(type(self))
        # As in PyTorch, a handler that nobody holds any more falls silent, and its node is given up.
        weakref.finalize(self, _fall_silent, self._member).atexit = False

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

        `store` is what the workers get a part of; None stands for a store that rank 0 of each round serves.  A node is
        given up after `keep_alive_max_attempt` intervals of silence, where they are not PyTorch's defaults.
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
        return self._backend.name

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use the store that rank 0 serves, instead of starting another."""
        return shares_store()

    @in_torch_words_too
    def next_rendezvous(self) -> RendezvousInfo:
        joins_again = self._member.view.world is not None
        placed = self._member.join(self._settings.timeout.join.total_seconds())
        if joins_again and isinstance(self._backend, C10dDocument):
            self._store = self._backend.renewed(self._store)
        prefix = f"torch.rendezvous.{self._settings.run_id}.{placed.incarnation}.{placed.round}"
        return self._info(placed, None if self._store is None else _part_of(self._store, prefix))

    def _stop_heartbeats(self) -> None:
        """End without telling anybody, as a process does that is killed."""
        self._member.stop()


@in_torch_words_too
def create_handler(store: Any, backend: RendezvousBackend, params: RendezvousParameters) -> DynamicRendezvousHandler:
    """A handler as the parameters ask for it; options of others in their configuration are left alone."""
    with _failures_recorded("handler failed", params.run_id, params.backend):
        options = own_options(params, OPTIONS)
        timeouts = (timedelta(seconds=options[option]) for option in (*TIMEOUTS, membership.HEARTBEAT_TIMEOUT))
        settings = _settings(
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            RendezvousTimeout(*timeouts),
            options[membership.KEEP_ALIVE_INTERVAL] or NOT_GIVEN[0],
            options[membership.KEEP_ALIVE_ATTEMPTS] or NOT_GIVEN[1],
        )
        return DynamicRendezvousHandler(settings, backend, store, params.local_addr, options)


def own_options(params: RendezvousParameters, options: tuple[Option[Any], ...]) -> OptionValues:
    """These options, as the parameters have them."""
    names = {option.name for option in options}
    given = {name: value for name, value in params.config.items() if name in names}
    return read_options(params.backend, given, options)


def _settings(
    run_id: str, min_nodes: int, max_nodes: int, timeout: RendezvousTimeout, interval_s: float, attempts: int
) -> RendezvousSettings:
    check_run_id(run_id)
    check_bounds(min_nodes, max_nodes)
    if interval_s <= 0 or attempts < 1:
        raise ValueError(
            f"keep_alive_interval is {interval_s} s and keep_alive_max_attempt {attempts}, but the one should be above "
            f"0 and the other at least 1: a node would be lost between two beats."
        )
    return RendezvousSettings(run_id, min_nodes, max_nodes, timeout, timedelta(seconds=interval_s), attempts)


def _run_settings(settings: RendezvousSettings, options: OptionValues) -> Settings:
    """The run's settings.  Keep-alives that were asked for count; PyTorch's own time-out of a heartbeat may be shorter."""
    interval_s, attempts = settings.keep_alive_interval.total_seconds(), settings.keep_alive_max_attempt
    timeout_s = max(interval_s * attempts, SHORTEST_SILENCE_S)
    is_given = membership.KEEP_ALIVE_INTERVAL in options or membership.KEEP_ALIVE_ATTEMPTS in options
    if not is_given and (interval_s, attempts) == NOT_GIVEN:
        timeout_s = max(settings.timeout.heartbeat.total_seconds(), SHORTEST_SILENCE_S)
        interval_s = min(options[membership.HEARTBEAT_INTERVAL], timeout_s / 3)
    return membership.settings_with(
        options,
        interval_s=min(interval_s, timeout_s / 2),
        timeout_s=timeout_s,
        last_call_s=settings.timeout.last_call.total_seconds(),
    )


def _fall_silent(member: Member) -> None:
    """On the loop, because a garbage collector may call this anywhere; in a forked child there is nothing to end."""
    with suppress(RendezvousError):
        background().call(member.stop)


def _own_address(store: Any | None) -> str:
    """The address by which this machine reaches the store's server, or any other machine where it has none (rule 2)."""
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if isinstance(host, str) and isinstance(port, int):
        return addresses.own_address(host, port)
    return addresses.own_address()


def _hosting_of(store: Any, asked: str) -> StoreHosting:
    """What serves the workers' store where this node has rank 0: nothing where they start their own."""
    hosting = membership.store_hosting(asked, under_torch=is_torch_store(store), for_workers=True)

    def serve(listener: socket.socket, secret: str) -> Callable[[], None]:
        if store is None or shares_store():
            return hosting.serve(listener, secret)
        listener.close()
        return lambda: None

    return StoreHosting(serve, hosting.has_secret)
