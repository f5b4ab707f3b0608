"""PyTorch's `api`, without PyTorch: parameters, results, what a handler promises, and the registry of backends."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rallypoint.backends.options import as_bool, check_bounds, did_you_mean
from rallypoint.elastic.lazy_names import lazy_names
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.net import listen

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "get_free_port",
    "rendezvous_handler_registry",
]

__getattr__ = lazy_names(__name__, "Store")


class RendezvousParameters:
    """Which run to join, where, with how many nodes; whatever else is given becomes `config`, the backend's options."""

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **config: Any,
    ) -> None:
        if not backend:
            raise ValueError(f"The backend is {backend!r}, but should be a name, for example 'rallypoint'.")
        check_bounds(min_nodes, max_nodes)
        self.backend, self.endpoint, self.run_id = backend, endpoint, run_id
        self.min_nodes, self.max_nodes, self.local_addr = min_nodes, max_nodes, local_addr
        self.config = config

    def get(self, key: str, default: Any = None) -> Any:
        """An option as it was given."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """An option as a truth; ValueError when it is not one."""
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return as_bool(value)
        except ValueError:
            raise ValueError(
                f"The option {key!r} is {value!r}, but should be true or false (also: 1, t, yes, y; 0, f, no, n)."
            ) from None

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """An option as `int()` takes it: a fraction loses what is behind the point; ValueError for what is no number."""
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except (TypeError, ValueError, OverflowError) as exc:
            kind = TypeError if isinstance(exc, TypeError) else ValueError
            raise kind(f"The option {key!r} is {value!r}, but should be a whole number, for example 30.") from None


@dataclass
class RendezvousStoreInfo:
    """Where the workers of a round find each other: the address and port that become MASTER_ADDR and MASTER_PORT."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"

    master_addr: str
    master_port: int

    @staticmethod
    def build(rank: int, store: Any, local_addr: str | None, server_port: int | None = None) -> RendezvousStoreInfo:
        """Agree through a store that all ranks share: rank 0 publishes, everybody reads back.

        Rank 0's address is `local_addr`, or the name of its host; its port is `server_port`, or a free one. The others
        wait for it as long as the store lets them.
        """
        if rank == 0:
            store.set(RendezvousStoreInfo.MASTER_ADDR_KEY, (local_addr or socket.gethostname()).encode())
            store.set(RendezvousStoreInfo.MASTER_PORT_KEY, str(server_port or get_free_port()).encode())
        address, port = store.get(RendezvousStoreInfo.MASTER_ADDR_KEY), store.get(RendezvousStoreInfo.MASTER_PORT_KEY)
        try:
            return RendezvousStoreInfo(address.decode(), int(port))
        except ValueError as exc:
            raise RendezvousStateError(
                f"The store holds {address!r} as MASTER_ADDR and {port!r} as MASTER_PORT, but an address and a port "
                "number should be there: something else writes to these keys; give each job a store or a prefix of "
                "its own."
            ) from exc


def get_free_port() -> int:
    """A port that was free a moment ago; another process may take it before it is bound again."""
    with listen("::" if socket.has_dualstack_ipv6() else "0.0.0.0") as server:
        return int(server.getsockname()[1])


class RendezvousInfo:
    """A node's place in a sealed world: the round's store (as c10d has them), its rank, and how many there are."""

    def __init__(
        self, store: Any, rank: int, world_size: int, bootstrap_store_info: RendezvousStoreInfo | None
    ) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._bootstrap_store_info = bootstrap_store_info

    @property
    def store(self) -> Any:
        """The store that the nodes of this round share."""
        return self._store

    @property
    def rank(self) -> int:
        """This node's number in the world, from 0."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many nodes the world has."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo | None:
        """Where the workers find each other; None where the handler does not say."""
        return self._bootstrap_store_info

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(store={self._store!r}, rank={self._rank}, world_size={self._world_size}, "
            f"bootstrap_store_info={self._bootstrap_store_info!r})"
        )


class RendezvousHandler(ABC):
    """A node's side of a run. Every method may be called from any thread."""

    @abstractmethod
    def get_backend(self) -> str:
        """The name by which the backend is registered."""

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use `RendezvousInfo.store` as their own, instead of starting another."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until the next world is sealed, and return this node's place in it.

        Raises RendezvousClosedError when the run is closed, RendezvousTimeoutError when the others did not come in
        time, RendezvousConnectionError when the backend is out of reach, RendezvousStateError when what it holds is
        damaged, and RendezvousGracefulExitError when this node was a spare and the run ended well without it.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the run is known to be closed. It may be True late, never early."""

    @abstractmethod
    def set_closed(self) -> None:
        """Close the run for everybody, for good."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many nodes wait for the next round; above 0 means: stop the workers and call `next_rendezvous` again."""

    @abstractmethod
    def get_run_id(self) -> str:
        """The name of the run, as the user gave it."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Leave the run and let go of everything that was opened for it; True when that went well."""


RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]

# Backends that are installed but not loaded: by name, what loads the creator.
Offers = Mapping[str, Callable[[], RendezvousHandlerCreator]]


class RendezvousHandlerRegistry:
    """Backends by name. Where a name is not known, `look_further`, if given, says what else is installed."""

    def __init__(self, look_further: Callable[[], Offers] | None = None) -> None:
        self._registry: dict[str, RendezvousHandlerCreator] = {}
        self._look_further = look_further

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Add a backend; a second time with the same creator changes nothing, with another one is a ValueError."""
        if not backend:
            raise ValueError(f"The backend to register is {backend!r}, but should be a name, for example 'mine'.")
        registered = self._registry.setdefault(backend, creator)
        if registered != creator:
            raise ValueError(
                f"The backend {backend!r} is already registered, with {registered!r}: register {creator!r} under "
                "another name."
            )

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Let the backend that `params` names make a handler; ValueError when there is no such backend."""
        handler = self._creator(params.backend)(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"The creator registered as backend {params.backend!r} made a handler that calls itself "
                f"{handler.get_backend()!r}: register it under that name, or let its get_backend() return "
                f"{params.backend!r}."
            )
        return handler

    def _creator(self, backend: str) -> RendezvousHandlerCreator:
        creator = self._registry.get(backend)
        if creator is not None:
            return creator
        offers = self._look_further() if self._look_further else {}
        if backend not in offers:
            raise ValueError(_not_registered(backend, sorted({*self._registry, *offers})))
        creator = offers[backend]()
        self.register(backend, creator)
        return creator


def _not_registered(backend: str, names: list[str]) -> str:
    there_are = f"There are: {', '.join(names)}." if names else "None is."
    return (
        f"The backend {backend!r} is not registered.{did_you_mean(backend, names)} {there_are} Add your own by "
        "`rendezvous_handler_registry.register(name, creator)`, or install the package that brings it."
    )


def _installed() -> Offers:
    from rallypoint.elastic.registry import installed_handlers  # it needs the names above

    return installed_handlers()


rendezvous_handler_registry = RendezvousHandlerRegistry(_installed)
"""The registry that everybody shares."""
