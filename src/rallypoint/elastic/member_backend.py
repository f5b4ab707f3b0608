"""What the backends share whose server tells nodes what they need to know: options, and a handler on a membership."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from rallypoint.client.identity import this_node
from rallypoint.client.member import Member
from rallypoint.core.model import Node, OnGiveUp, Role, Settings
from rallypoint.elastic.api import RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from rallypoint.elastic.member_handler import HandlerOnMembership, reason_to_leave
from rallypoint.elastic.options import Option, OptionValues, choice, number, ports, read_options, seconds, text
from rallypoint.elastic.round_stores import STORE
from rallypoint.torch_bridge import presence

JOIN_TIMEOUT = seconds("join_timeout", 600.0, "how long a join may take, connecting and resolving included")
LAST_CALL = seconds(
    "last_call_timeout", 30.0, "how long a first round waits for more nodes once min are here", or_zero=True
)
CLOSE_TIMEOUT = seconds(
    "close_timeout", 30.0, "how long shutdown waits for those who depend on this process", or_zero=True
)
READ_TIMEOUT = seconds("read_timeout", 60.0, "how long one question to the server may take")
OUTAGE_GRACE = seconds("outage_grace", 300.0, "how long workers run on while the server is away", or_zero=True)
REGROUP_TIMEOUT = seconds("regroup_timeout", 60.0, "how long live members are awaited back", or_zero=True)
ADMIT_DELAY = seconds("admit_delay", 0.0, "how old a round must be before newcomers are admitted", or_zero=True)
RANK = number("rank", None, "the rank that this node would like to have", at_least=0)
TOPOLOGY = text("topology", "", "where this node is, as a path: ranks of neighbours are neighbours")
ROLE = choice("role", ("member", "spare"), "member", "whether this node takes part or stands by")
ON_GIVE_UP = choice("on_give_up", ("auto", "wait", "close"), "auto", "what the run does when a member gives up")
NAME = text("node_name", "", "what this node is called; by default its host name")

CALL_S = 5.0
"""How long one call of a register's medium is tried at most; then what is wrong is said, and it is tried anew."""

HEARTBEAT_INTERVAL = seconds("heartbeat_interval", 1.0, "how often a node says that it is there")
HEARTBEAT_TIMEOUT = seconds("heartbeat_timeout", 5.0, "how long a silent node is waited for")
KEEP_ALIVE_INTERVAL = seconds("keep_alive_interval", None, "PyTorch's name for heartbeat_interval")
KEEP_ALIVE_ATTEMPTS = number(
    "keep_alive_max_attempt", None, "times keep_alive_interval: the heartbeat_timeout", at_least=1
)
SERVER_PORT = ports("server_port", "the port on which this process serves when it is elected")

HEARTBEATS: tuple[Option[Any], ...] = (HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_ATTEMPTS)
TIMES: tuple[Option[Any], ...] = (JOIN_TIMEOUT, LAST_CALL, CLOSE_TIMEOUT, READ_TIMEOUT)
CHOICES: tuple[Option[Any], ...] = (
    OUTAGE_GRACE,
    REGROUP_TIMEOUT,
    ADMIT_DELAY,
    RANK,
    TOPOLOGY,
    ROLE,
    ON_GIVE_UP,
    NAME,
    STORE,
)
"""Between the two stands how a backend tells that a node is gone."""


class CreateMember(Protocol):
    """Makes a membership as the parameters ask for it.

    Under torch, torch serves the stores unless told otherwise.  A program that `trains` in this process would be slow to
    serve, and lets others come first (rule 17b).
    """

    def __call__(
        self, params: RendezvousParameters, options: OptionValues, *, under_torch: bool, trains: bool
    ) -> Member:
        """Make it."""


class MemberBackend(msgspec.Struct, frozen=True):
    """A backend: its name, its options, how it makes a membership.

    `unfit` are options of other backends that somebody may bring along, each with the half sentence that says what to do.
    """

    name: str
    options: tuple[Option[Any], ...]
    create: CreateMember
    unfit: Mapping[str, str] = {}

    def open(
        self, params: RendezvousParameters, *, under_torch: bool = False, trains: bool = False
    ) -> tuple[Member, float]:
        """A membership, and how long a join of it may take; ValueError for what cannot be."""
        if not params.run_id:
            raise ValueError("the run id is empty: every job needs a name of its own, such as its job id")
        for name, instead in self.unfit.items():
            if params.config.get(name) is not None:
                raise ValueError(f"The backend {self.name!r} has no option {name!r}: {instead}.")
        options = read_options(self.name, params.config, self.options)
        return self.create(params, options, under_torch=under_torch, trains=trains), options[JOIN_TIMEOUT]


def node_from(local_addr: str | None, options: OptionValues) -> Node:
    """This process as a node, with what it wishes."""
    return this_node(
        options[NAME],
        address=local_addr or "",
        wanted_rank=options[RANK],
        topology=options[TOPOLOGY],
        role=Role(options[ROLE]),
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
    return settings_with(options, interval_s=interval, timeout_s=timeout, last_call_s=options[LAST_CALL])


def settings_with(options: OptionValues, *, interval_s: float, timeout_s: float, last_call_s: float) -> Settings:
    """The run's settings; a node is heard each interval, and given up when nothing is heard for `timeout_s`."""
    return Settings(
        last_call_s=last_call_s,
        regroup_s=options[REGROUP_TIMEOUT],
        admit_delay_s=options[ADMIT_DELAY],
        heartbeat_interval_s=interval_s,
        heartbeat_timeout_s=timeout_s,
        outage_grace_s=options[OUTAGE_GRACE],
        # Who pauses for longer between two attempts than it is waited for is lost with every short outage.
        reconnect_backoff_s=min(Settings().reconnect_backoff_s, timeout_s / 2),
        on_give_up=OnGiveUp(options[ON_GIVE_UP]),
    )


def medium_call_s(options: OptionValues) -> float:
    """How long one call of a register's medium may take.

    A medium that hangs must not keep a node from hearing of a new server within that one's hold (rule 17f).
    """
    backoff_s = settings_from(options).reconnect_backoff_s
    return min(CALL_S, options[READ_TIMEOUT], options[JOIN_TIMEOUT] / 2, backoff_s)


class MemberHandler(HandlerOnMembership):
    """A node's membership in a run, as PyTorch's interface has it."""

    def __init__(self, backend: MemberBackend, params: RendezvousParameters) -> None:
        self._backend = params.backend
        self._member: Member
        self._member, self._join_timeout_s = backend.open(params)
        presence.greet(type(self))

    def get_backend(self) -> str:
        """The backend's name."""
        return self._backend

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use the store that rank 0 serves; where nobody serves one, they start their own there."""
        return self._member.serves_store

    @presence.in_torch_words_too
    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a place in the next world."""
        placed = self._member.join(self._join_timeout_s)
        store = self._member.store(placed)
        info = RendezvousStoreInfo(store.host, store.port)
        return RendezvousInfo(store, placed.rank, placed.size, info)

    @presence.in_torch_words_too
    def shutdown(self) -> bool:
        """Leave: with an exception under way the node withdraws, otherwise it has finished (rule 8)."""
        return self._member.leave(reason_to_leave())
