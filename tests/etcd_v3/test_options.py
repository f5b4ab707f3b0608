"""What the options of the backend `etcd-v3` do that no other test shows, as handlers take them, on real etcd."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

import rallypoint
from rallypoint import RendezvousConnectionError, RendezvousHandler, RendezvousParameters
from rallypoint.elastic.member_handler import MemberHandler
from rallypoint.messages.types import Reason
from tests.support.etcd_node_processes import PREFIX, EtcdProcesses, Observer, by_rank, form, others, says
from tests.support.etcd_servers import HOST, Cluster
from tests.support.node_processes import free_port
from tests.support.waiting import until

Handlers = Callable[..., RendezvousHandler]


@pytest.fixture
def handlers(cluster: Cluster, run: str) -> Iterator[Handlers]:
    """Makes handlers of one run, which leave at the end."""
    with ExitStack() as ends:

        def make(nodes: str, **config: Any) -> RendezvousHandler:
            low, _, high = nodes.partition(":")
            given: dict[str, Any] = {
                "etcd_prefix": PREFIX,
                "join_timeout": 30,
                "last_call_timeout": 0,
                "close_timeout": 0,
            } | config
            endpoint = given.pop("endpoint", cluster.endpoints)
            params = RendezvousParameters("etcd-v3", endpoint, run, int(low), int(high or low), HOST, **given)
            handler = rallypoint.get_rendezvous_handler(params)
            ends.callback(handler.shutdown)
            return handler

        yield make


def meet(*handlers: RendezvousHandler) -> list[int]:
    """The ranks that they get, in one world."""
    with ThreadPoolExecutor(len(handlers)) as pool:
        return [info.rank for info in pool.map(lambda handler: handler.next_rendezvous(), handlers)]


def give_up(handler: RendezvousHandler) -> None:
    """Leave as torchrun's plug-in does when the workers have failed for good."""
    assert isinstance(handler, MemberHandler)
    handler._member.leave(Reason.GAVE_UP, "its workers failed", timeout_s=20.0)


@pytest.mark.parametrize(("config", "granted_s"), [({}, 5), ({"lease_ttl": 17}, 17)])
def test_lease_ttl_is_the_time_that_etcd_grants_to_a_claim(
    handlers: Handlers, observer: Observer, config: dict[str, Any], granted_s: int
) -> None:
    meet(handlers("1", **config))
    (claim,) = observer.claims()
    assert observer.client.time_to_live(claim.lease).granted_ttl == granted_s
    record = observer.known()
    assert record.claim is not None
    assert record.claim.rest_s == granted_s


def test_topology_makes_the_ranks_of_neighbours_neighbours(handlers: Handlers) -> None:
    places = ["rack2/b", "rack1/b", "rack2/a", "rack1/a"]
    ranks = meet(*(handlers("4", topology=place) for place in places))
    assert dict(zip(places, ranks, strict=True)) == {"rack1/a": 0, "rack1/b": 1, "rack2/a": 2, "rack2/b": 3}


@pytest.mark.parametrize("delay_s", [0, 2])
def test_admit_delay_is_how_old_a_round_is_before_newcomers_count(handlers: Handlers, delay_s: int) -> None:
    first = handlers("1:2", admit_delay=delay_s)
    asked_at = time.monotonic()
    meet(first)
    late = handlers("1:2", admit_delay=delay_s)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(late.next_rendezvous)
        until(lambda: first.num_nodes_waiting() == 1, "it is to be admitted")
        assert time.monotonic() >= asked_at + delay_s
        assert sorted((first.next_rendezvous().rank, waits.result(30).rank)) == [0, 1]


@pytest.mark.parametrize(
    ("nodes", "choice", "closes"),
    [("2", "wait", False), ("2", "auto", True), ("1:2", "auto", False), ("1:2", "close", True)],
)
def test_on_give_up_says_what_becomes_of_the_run(handlers: Handlers, nodes: str, choice: str, closes: bool) -> None:
    a, b = (handlers(nodes, on_give_up=choice, last_call_timeout=30) for _ in range(2))
    meet(a, b)
    give_up(b)
    until(lambda: a.is_closed() or a.num_nodes_waiting() == 1, "it is told")
    assert a.is_closed() is closes


def test_close_timeout_is_how_long_a_request_to_close_may_take(handlers: Handlers) -> None:
    with socket.create_server((HOST, 0)) as silent:
        endpoint = f"{HOST}:{silent.getsockname()[1]}"
        handler = handlers("1", endpoint=endpoint, close_timeout=1)
        began = time.monotonic()
        with pytest.raises(RendezvousConnectionError, match="could not be closed: the server at etcd"):
            handler.set_closed()
        assert 1 <= time.monotonic() - began < 10, "it would be half a minute without the option"


def test_heartbeat_timeout_is_how_long_a_silent_node_is_waited_for(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    nodes = form(processes, cluster.endpoints, run, "a", "b", nodes=2, heartbeat_timeout=2.0)
    server = observer.server(nodes)
    (stopped,) = others(nodes, server)
    stopped.pause()
    assert f"{stopped.name} was lost" in server.changed()["why"]
    assert observer.known().settings.heartbeat_timeout_s == 2.0


def test_only_nodes_that_may_serve_do(processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer) -> None:
    guest, host = processes.nodes("guest", "host")
    guest.join(cluster.endpoints, 2, run, is_host=False)
    until(partial(says, guest, "nobody serves this run, and this node may not"), "it says what it waits for")
    assert observer.record() is None
    host.join(cluster.endpoints, 2, run, is_host=True)
    by_rank([guest, host])
    assert observer.server([guest, host]) is host


def test_where_no_node_may_serve_each_says_so(processes: EtcdProcesses, cluster: Cluster, run: str) -> None:
    nodes = processes.nodes("a", "b")
    for node in nodes:
        node.join(cluster.endpoints, 2, run, is_host=False, join_timeout=2.0)
    for node in nodes:
        assert "nobody serves this run, and this node may not" in node.failed("RendezvousTimeoutError")


def test_a_host_that_is_killed_is_not_replaced_by_who_may_not_serve(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    guest, host, heir = processes.nodes("guest", "host", "heir")
    guest.join(cluster.endpoints, 2, run, is_host=False)
    host.join(cluster.endpoints, 2, run)
    by_rank([guest, host], round=1)
    host.kill()
    until(lambda: guest.standing()["out"], "its server is away")
    assert guest.waiting() == 0, "an outage is no loss"
    heir.join(cluster.endpoints, 2, run)
    guest.changed()
    guest.again()
    by_rank([guest, heir], round=2)
    assert observer.server([guest, heir]) is heir


def test_server_port_is_the_port_of_the_server(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    port = free_port()
    nodes = processes.nodes("a", "b")
    for node in nodes:
        node.join(cluster.endpoints, 2, run, server_port=port)
    by_rank(nodes)
    assert observer.server(nodes).standing()["port"] == port
    claim = observer.known().claim
    assert claim is not None
    assert claim.port == port


def test_of_a_range_the_first_free_port_is_taken(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    taken, low = neighbours()
    with taken:
        node = processes.node("a")
        node.join(cluster.endpoints, 1, run, server_port=f"{low}-{low + 1}")
        node.placed(size=1)
        assert node.standing()["port"] == low + 1


def test_a_port_that_is_taken_is_said_and_taken_once_it_is_free(
    processes: EtcdProcesses, cluster: Cluster, run: str, observer: Observer
) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        node = processes.node("a")
        node.join(cluster.endpoints, 1, run, server_port=port)
        until(partial(says, node, f"it cannot listen on {HOST}, port {port}: Address already in use"), "it says so")
        assert observer.record() is None
    node.placed(size=1)
    assert node.standing()["port"] == port


def neighbours() -> tuple[socket.socket, int]:
    """A port that is taken, and the one above it, which is free."""
    while True:
        taken = socket.create_server((HOST, 0))
        low: int = taken.getsockname()[1]
        try:
            with socket.create_server((HOST, low + 1)):
                return taken, low
        except OSError:
            taken.close()
