"""What the options of the backend `etcd-v3` do that no other test shows, as handlers take them, on real etcd."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import rallypoint
from rallypoint import RendezvousConnectionError, RendezvousHandler, RendezvousParameters
from rallypoint.core.model import Reason
from rallypoint.elastic.member_backend import MemberHandler
from tests.etcd.servers import HOST, Cluster
from tests.etcd_v3.harness import PREFIX, Observer
from tests.waiting import until

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
    handler._member.leave(Reason.GAVE_UP, "its workers failed", patience_s=20.0)


@pytest.mark.parametrize(("config", "granted_s"), [({}, 5), ({"lease_ttl": 17}, 17)])
def test_lease_ttl_is_the_time_that_etcd_grants(
    handlers: Handlers, observer: Observer, config: dict[str, Any], granted_s: int
) -> None:
    meet(handlers("1", **config))
    (word,) = observer.client.range(observer.keys.said, prefix=True).kvs
    assert observer.client.time_to_live(word.lease).granted_ttl == granted_s
    leader = observer.client.get(observer.keys.leader)
    assert leader is not None
    assert leader.lease == word.lease


def test_topology_makes_the_ranks_of_neighbours_neighbours(handlers: Handlers) -> None:
    places = ["rack2/b", "rack1/b", "rack2/a", "rack1/a"]
    ranks = meet(*(handlers("4", topology=place) for place in places))
    assert dict(zip(places, ranks, strict=True)) == {"rack1/a": 0, "rack1/b": 1, "rack2/a": 2, "rack2/b": 3}


@pytest.mark.parametrize("delay_s", [0, 2])
def test_admit_delay_is_how_old_a_round_is_before_newcomers_count(handlers: Handlers, delay_s: int) -> None:
    first, late = handlers("1:2", admit_delay=delay_s), handlers("1:2", admit_delay=delay_s)
    asked_at = time.monotonic()
    meet(first)
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
        with pytest.raises(RendezvousConnectionError, match="could not be closed: the authority at etcd"):
            handler.set_closed()
        assert 1 <= time.monotonic() - began < 10, "it would be half a minute without the option"
