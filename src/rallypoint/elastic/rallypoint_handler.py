"""The backend `rallypoint`: a handler on the embedded or a standalone server."""

from __future__ import annotations

import sys
from typing import Any

from rallypoint.core.model import Bounds, OnGiveUp, Reason, Role, Settings
from rallypoint.elastic.api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from rallypoint.elastic.options import Option, OptionValues, choice, flag, number, read_options, seconds, text
from rallypoint.elastic.round_stores import STORE, store_server
from rallypoint.elastic.utils import parse_rendezvous_endpoint
from rallypoint.server.member import Member, this_node

DEFAULT_PORT = 29400
BACKEND = "rallypoint"

JOIN_TIMEOUT = seconds("join_timeout", 600.0, "how long a join may take, connecting and resolving included")
LAST_CALL = seconds(
    "last_call_timeout", 30.0, "how long a first round waits for more nodes once min are here", or_zero=True
)
CLOSE_TIMEOUT = seconds(
    "close_timeout", 30.0, "how long shutdown waits for those who depend on this process", or_zero=True
)
READ_TIMEOUT = seconds("read_timeout", 60.0, "how long one question to the authority may take")
HEARTBEAT_INTERVAL = seconds("heartbeat_interval", 1.0, "how often a node says that it is there")
HEARTBEAT_TIMEOUT = seconds("heartbeat_timeout", 5.0, "how long a silent node is waited for")
KEEP_ALIVE_INTERVAL = seconds("keep_alive_interval", None, "PyTorch's name for heartbeat_interval")
KEEP_ALIVE_ATTEMPTS = number(
    "keep_alive_max_attempt", None, "times keep_alive_interval: the heartbeat_timeout", at_least=1
)
OUTAGE_GRACE = seconds("outage_grace", 300.0, "how long workers run on while the authority is away", or_zero=True)
REGROUP_TIMEOUT = seconds("regroup_timeout", 60.0, "how long live members are awaited back", or_zero=True)
ADMIT_DELAY = seconds("admit_delay", 0.0, "how old a round must be before newcomers are admitted", or_zero=True)
RANK = number("rank", None, "the rank that this node would like to have", at_least=0)
TOPOLOGY = text("topology", "", "where this node is, as a path: ranks of neighbours are neighbours")
ROLE = choice("role", ("member", "spare"), "member", "whether this node takes part or stands by")
ON_GIVE_UP = choice("on_give_up", ("auto", "wait", "close"), "auto", "what the run does when a member gives up")
IS_HOST = flag("is_host", None, "whether this process serves the endpoint")
NAME = text("node_name", "", "what this node is called; by default its host name")

OPTIONS: tuple[Option[Any], ...] = (
    JOIN_TIMEOUT,
    LAST_CALL,
    CLOSE_TIMEOUT,
    READ_TIMEOUT,
    HEARTBEAT_INTERVAL,
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
    IS_HOST,
    NAME,
    STORE,
)


def create_handler(params: RendezvousParameters) -> RallypointHandler:
    """The creator of the backend."""
    return RallypointHandler(params)


def create_member(params: RendezvousParameters, options: OptionValues, *, under_torch: bool = False) -> Member:
    """A membership as the parameters ask for it; under torch, torch serves the stores unless the options say otherwise."""
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    node = this_node(
        options[NAME],
        address=params.local_addr or "",
        wanted_rank=options[RANK],
        topology=options[TOPOLOGY],
        role=Role(options[ROLE]),
    )
    return Member(
        host,
        port,
        params.run_id,
        Bounds(params.min_nodes, params.max_nodes),
        settings_from(options),
        node,
        is_host=options[IS_HOST],
        call_s=options[READ_TIMEOUT],
        close_s=options[CLOSE_TIMEOUT],
        serve_store=store_server(options[STORE], under_torch=under_torch),
    )


def settings_from(options: OptionValues) -> Settings:
    """The run's settings; PyTorch's words for heartbeats are taken where ours are not given."""
    interval, timeout = options[HEARTBEAT_INTERVAL], options[HEARTBEAT_TIMEOUT]
    if HEARTBEAT_INTERVAL not in options:
        interval = options[KEEP_ALIVE_INTERVAL] or interval
    if HEARTBEAT_TIMEOUT not in options and (KEEP_ALIVE_INTERVAL in options or KEEP_ALIVE_ATTEMPTS in options):
        timeout = interval * (options[KEEP_ALIVE_ATTEMPTS] or 3)
    if timeout <= interval:
        raise ValueError(
            f"heartbeat_timeout is {timeout:g} s and heartbeat_interval {interval:g} s: a node would be lost between two "
            f"beats; make the time-out at least three times the interval"
        )
    return Settings(
        last_call_s=options[LAST_CALL],
        regroup_s=options[REGROUP_TIMEOUT],
        admit_delay_s=options[ADMIT_DELAY],
        heartbeat_interval_s=interval,
        heartbeat_timeout_s=timeout,
        outage_grace_s=options[OUTAGE_GRACE],
        # Who pauses for longer between two attempts than it is waited for is lost with every short outage.
        reconnect_backoff_s=min(Settings().reconnect_backoff_s, timeout / 2),
        on_give_up=OnGiveUp(options[ON_GIVE_UP]),
    )


class RallypointHandler(RendezvousHandler):
    """A node's membership in a run, as PyTorch's interface has it."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._run_id = params.run_id
        if not self._run_id:
            raise ValueError("the run id is empty: every job needs a name of its own, such as its job id")
        options = read_options(BACKEND, params.config, OPTIONS)
        self._join_timeout_s = options[JOIN_TIMEOUT]
        self._member = create_member(params, options)

    def get_backend(self) -> str:
        """The backend's name."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a place in the next world."""
        placed = self._member.join(self._join_timeout_s)
        store = self._member.store(placed)
        info = RendezvousStoreInfo(store.host, store.port)
        return RendezvousInfo(store, placed.rank, placed.size, info)

    def is_closed(self) -> bool:
        """Whether the run is known to be closed."""
        return self._member.is_closed()

    def set_closed(self) -> None:
        """Close the run for everybody."""
        self._member.close_run()

    def num_nodes_waiting(self) -> int:
        """Rule 6b: from memory, at once."""
        return self._member.waiting()

    def get_run_id(self) -> str:
        """The run's name."""
        return self._run_id

    def shutdown(self) -> bool:
        """Leave: with an exception under way the node withdraws, otherwise it has finished (rule 8)."""
        reason = Reason.FINISHED if sys.exc_info()[0] is None else Reason.WITHDREW
        return self._member.leave(reason)
