"""What all backends share: their options, and how a membership is made of them."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

import msgspec

from rallypoint.backends import options as kinds
from rallypoint.backends.endpoints import check_endpoint
from rallypoint.backends.options import Option, OptionValues, choice, number, seconds, text
from rallypoint.client.addresses import own_address
from rallypoint.client.background import run_in_thread
from rallypoint.client.identity import this_node
from rallypoint.client.locator import Locator
from rallypoint.client.member import Member
from rallypoint.client.round_store import FOR_MEMBERS, FOR_WORKERS, StoreHosting
from rallypoint.location.elected import ElectedLocator
from rallypoint.location.election_driver import Candidacy
from rallypoint.location.member import LocatedMember
from rallypoint.location.register import Register
from rallypoint.location.registers.backend import Backend, BackendRegister
from rallypoint.messages.types import LONGEST_SILENCE_S, LONGEST_WAIT_S, Bounds, Node, OnGiveUp, Role, Settings
from rallypoint.torch_bridge import stores_c10d

JOIN_TIMEOUT = seconds("join_timeout", 600.0, "how long a join may take, connecting and resolving included")
_wait = partial(seconds, or_zero=True, at_most=LONGEST_WAIT_S)
_beat = partial(seconds, at_most=LONGEST_SILENCE_S)
LAST_CALL = _wait("last_call_timeout", 30.0, "how long a first round waits for more nodes once min are here")
CLOSE_TIMEOUT = seconds(
    "close_timeout", 30.0, "how long shutdown waits for those who depend on this process", or_zero=True
)
READ_TIMEOUT = seconds("read_timeout", 60.0, "how long one question to the server may take")
OUTAGE_GRACE = _wait("outage_grace", 300.0, "how long workers run on while the server is away")
REGROUP_TIMEOUT = _wait("regroup_timeout", 60.0, "how long live members are awaited back")
ADMIT_DELAY = _wait("admit_delay", 0.0, "how old a round must be before newcomers are admitted")
RANK = number("rank", None, "the rank that this node would like to have", at_least=0)
TOPOLOGY = text("topology", "", "where this node is, as a path: ranks of neighbours are neighbours", at_most=4096)
ROLE = choice("role", ("member", "spare"), "member", "whether this node takes part or stands by")
ON_GIVE_UP = choice("on_give_up", ("auto", "wait", "close"), "auto", "what the run does when a member gives up")
NAME = text("node_name", "", "what this node is called; by default its host name", at_most=256)

AUTO, OURS, TORCH, ETCD = "auto", "rallypoint", "torch", "etcd"
_SERVER = "which server this node runs for a round's store, if it has rank 0: torch's, ours, or torch's under torchrun"
STORE = choice("store", (AUTO, TORCH, OURS), AUTO, _SERVER)
STORE_OR_ETCD = choice("store", (AUTO, TORCH, OURS, ETCD), AUTO, f"{_SERVER}; etcd: none, the store is in etcd")

CALL_S = 5.0
"""How long one call of a register's medium is tried at most; then what is wrong is said, and it is tried anew."""

HEARTBEAT_INTERVAL = _beat("heartbeat_interval", 1.0, "how often a node says that it is there")
HEARTBEAT_TIMEOUT = _beat("heartbeat_timeout", 5.0, "how long a silent node is waited for")
KEEP_ALIVE_INTERVAL = _beat("keep_alive_interval", None, "PyTorch's name for heartbeat_interval")
KEEP_ALIVE_ATTEMPTS = number(
    "keep_alive_max_attempt", None, "times keep_alive_interval: the heartbeat_timeout", at_least=1
)
IS_HOST = kinds.flag("is_host", None, "whether this process serves the endpoint")
SERVER_PORT = kinds.ports("server_port", "the port on which this process serves when it is elected")

HEARTBEATS: tuple[Option[Any], ...] = (HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_ATTEMPTS)
TIMES: tuple[Option[Any], ...] = (JOIN_TIMEOUT, LAST_CALL, CLOSE_TIMEOUT, READ_TIMEOUT)
_OF_THE_NODE: tuple[Option[Any], ...] = (RANK, TOPOLOGY, ROLE, ON_GIVE_UP, NAME)
ELECTED: tuple[Option[Any], ...] = (*TIMES, *HEARTBEATS, SERVER_PORT)
CHOICES: tuple[Option[Any], ...] = (OUTAGE_GRACE, REGROUP_TIMEOUT, ADMIT_DELAY, *_OF_THE_NODE, STORE)


class MemberRequest(msgspec.Struct, frozen=True):
    """What a backend makes a membership from.

    A program that `trains` in this process would be slow to serve, and lets others come first (rule 17b).
    """

    endpoint: str
    run_id: str
    bounds: Bounds
    settings: Settings
    node: Node
    hosting: StoreHosting
    options: OptionValues
    trains: bool

    @property
    def medium_call_s(self) -> float:
        """How long one call of a register's medium may take.

        A medium that hangs must not keep a node from hearing of a new server within that one's hold (rule 17f).
        """
        limits = (CALL_S, self.options[READ_TIMEOUT], self.options[JOIN_TIMEOUT] / 2)
        return min(*limits, self.settings.reconnect_backoff_s)

    def member(self, locator: Locator, kind: Callable[..., Member] = LocatedMember, **more: Any) -> Member:
        """A membership through the server that a locator finds."""
        more |= {"call_s": self.options[READ_TIMEOUT], "close_s": self.options[CLOSE_TIMEOUT]}
        return kind(locator, self.run_id, self.bounds, self.settings, self.node, hosting=self.hosting, **more)

    def elected(
        self,
        open_register: Callable[[Callable[[], bool]], Register],
        where: str,
        *key: Hashable,
        find_address: Callable[[], str],
        rest_s: float | None = None,
        is_host: bool | None = None,
    ) -> ElectedLocator:
        """Finds the elected server of the run; nodes of this process share an election if the keys are the same."""
        address = self.node.address or self._find(find_address)
        taking_part = (address, self.options[SERVER_PORT], rest_s, is_host, self.trains)
        return ElectedLocator(where, (where, *key), Candidacy(self.run_id, open_register, self.settings, *taking_part))

    def _find(self, address: Callable[[], str]) -> str:
        """This machine's address; where a name service does not answer, the one that leads to most others."""
        try:
            return run_in_thread(address, self.medium_call_s)
        except concurrent.futures.TimeoutError:
            return own_address()

    def by_document(
        self, open_document: Callable[[], Backend], where: str, *key: Hashable, find_address: Callable[[], str]
    ) -> Member:
        """A membership through the elected server that a document names."""

        def open_register(serves_on: Callable[[], bool]) -> BackendRegister:
            return BackendRegister(open_document, owned=True)

        return self.member(self.elected(open_register, where, *key, find_address=find_address))


class MemberBackend(msgspec.Struct, frozen=True):
    """A backend: its name, its options, how it makes a membership.

    `unfit` are options of other backends that somebody may bring along, each with the half sentence that says what to do.
    """

    name: str
    options: tuple[Option[Any], ...]
    create: Callable[[MemberRequest], Member]
    unfit: Mapping[str, str] = {}

    def open(
        self,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None,
        config: Mapping[str, object],
        *,
        under_torch: bool = False,
        trains: bool = False,
    ) -> tuple[Member, float]:
        """A membership, and how long a join of it may take; ValueError for what cannot be.

        Under torch, torch serves the stores unless the options say otherwise.
        """
        check_endpoint(endpoint, or_empty=True)
        kinds.check_run_id(run_id)
        kinds.check_bounds(min_nodes, max_nodes)
        kinds.check_address(local_addr)
        for name, instead in self.unfit.items():
            if config.get(name) is not None:
                raise ValueError(f"The backend {self.name!r} has no option {name!r}: {instead}.")
        options = kinds.read_options(self.name, config, self.options)
        bounds, settings, node = Bounds(min_nodes, max_nodes), settings_from(options), node_from(local_addr, options)
        hosting = store_hosting(options[STORE], under_torch=under_torch, for_workers=not trains)
        request = MemberRequest(endpoint, run_id, bounds, settings, node, hosting, options, trains)
        return self.create(request), options[JOIN_TIMEOUT]


def node_from(local_addr: str | None, options: OptionValues) -> Node:
    """This process as a node, with what it asks for."""
    name, rank, topology, role = options[NAME], options[RANK], options[TOPOLOGY], Role(options[ROLE])
    return this_node(name, address=local_addr or "", wanted_rank=rank, topology=topology, role=role)


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
    if timeout_s > LONGEST_SILENCE_S:
        raise ValueError(f"a silent node would be awaited for {timeout_s:g} s; {LONGEST_SILENCE_S:g} s are the most")
    return Settings(
        last_call_s=min(last_call_s, LONGEST_WAIT_S),
        regroup_s=options[REGROUP_TIMEOUT],
        admit_delay_s=options[ADMIT_DELAY],
        heartbeat_interval_s=interval_s,
        heartbeat_timeout_s=timeout_s,
        outage_grace_s=options[OUTAGE_GRACE],
        # A node that pauses for longer between two attempts than it is waited for is lost with every short outage.
        reconnect_backoff_s=min(Settings().reconnect_backoff_s, timeout_s / 2),
        on_give_up=OnGiveUp(options[ON_GIVE_UP]),
    )


def store_hosting(asked: str, *, under_torch: bool, for_workers: bool) -> StoreHosting:
    """Which store implementation this node serves if it is rank 0 (rule 12), and to whom (rule 16).

    `for_workers` says that other processes are told its address.  All implementations speak the same wire format, so nodes
    of one world need not agree.
    """
    if asked in (OURS, ETCD) or (asked == AUTO and not under_torch):
        return FOR_WORKERS if for_workers else FOR_MEMBERS
    try:
        stores_c10d.load_torch()
    except ImportError as exc:
        raise ValueError(
            f"store=torch needs torch, which cannot be imported ({exc}): install rallypoint[torch], or leave the option out"
        ) from exc
    return StoreHosting(lambda listener, _: stores_c10d.serve(listener), has_secret=False)
