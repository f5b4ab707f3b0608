"""A node's membership in a run whose server is found by a backend with `get_state` and `set_state` (rule 17)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from rallypoint.client.member import Member
from rallypoint.client.round_store import Serve
from rallypoint.core.model import Bounds, Node, Settings
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.member_backend import CLOSE_TIMEOUT, READ_TIMEOUT, SERVER_PORT, node_from, settings_from
from rallypoint.elastic.options import OptionValues
from rallypoint.elastic.round_stores import STORE, store_server
from rallypoint.location.driver import Driver
from rallypoint.location.elected import ElectedLocator
from rallypoint.location.member import LocatedMember
from rallypoint.location.registers.backend import Backend, BackendRegister


def member_on(
    register: Callable[[], BackendRegister],
    run_id: str,
    bounds: Bounds,
    settings: Settings,
    node: Node,
    *,
    key: tuple[Hashable, ...],
    where: str,
    address: str,
    rest_s: float | None,
    ports: tuple[int, ...],
    close_s: float,
    serve_store: Serve,
    trains: bool = False,
    **more: Any,
) -> LocatedMember:
    """A membership; the nodes of this process with the same `key`, run and address share an election.

    `where` is the medium in words.  `rest_s` is how long the claim's beat may rest there; None: for the heartbeat time-out.
    """

    def start() -> Driver:
        return Driver(
            run_id,
            lambda _: register(),
            address=address,
            ports=ports,
            rest_s=rest_s or settings.heartbeat_timeout_s,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            trains=trains,
        )

    return LocatedMember(
        ElectedLocator((*key, run_id, address, ports), where, start),
        run_id,
        bounds,
        settings,
        node,
        close_s=close_s,
        serve_store=serve_store,
        **more,
    )


def member_from(
    params: RendezvousParameters,
    options: OptionValues,
    open_backend: Callable[[], Backend],
    *,
    where: str,
    key: tuple[Hashable, ...] = (),
    address: str,
    under_torch: bool,
    trains: bool,
) -> Member:
    """A membership as the parameters ask for it, by a backend that it opens itself, and again where it is lost."""
    return member_on(
        lambda: BackendRegister(open_backend, owned=True),
        params.run_id,
        Bounds(params.min_nodes, params.max_nodes),
        settings_from(options),
        node_from(params.local_addr, options),
        key=(where, *key),
        where=where,
        address=address,
        rest_s=None,
        ports=options[SERVER_PORT],
        close_s=options[CLOSE_TIMEOUT],
        call_s=options[READ_TIMEOUT],
        serve_store=store_server(options[STORE], under_torch=under_torch),
        trains=trains,
    )
