"""Ranks are given: the store is all that is waited for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from socket import create_server
from typing import Any

import pytest

from rallypoint.elastic.api import RendezvousParameters, RendezvousStoreInfo
from rallypoint.elastic.registry import get_rendezvous_handler
from rallypoint.elastic.static_tcp_rendezvous import StaticTCPRendezvous, create_rdzv_handler
from rallypoint.errors import RendezvousConnectionError
from rallypoint.torch_bridge import stores_c10d
from tests.support.node_processes import free_port


@pytest.fixture(params=[True, False], ids=["torch's store", "our store"])
def with_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(stores_c10d, "has_torch", lambda: request.param)
    return bool(request.param)


def params(endpoint: str = "127.0.0.1:29500", nodes: int = 2, **options: Any) -> RendezvousParameters:
    return RendezvousParameters("static", endpoint, "run", nodes, nodes, **options)


def test_each_node_gets_the_rank_that_it_was_given(with_torch: bool) -> None:
    port = free_port()
    handlers = [get_rendezvous_handler(params(f"127.0.0.1:{port}", 2, rank=rank, timeout=20)) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        infos = list(pool.map(lambda handler: handler.next_rendezvous(), handlers))
    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    assert [info.bootstrap_store_info for info in infos] == [RendezvousStoreInfo("127.0.0.1", port)] * 2
    infos[0].store.set("greeting", "hello")
    assert infos[1].store.get("greeting") == b"hello"
    again = handlers[0].next_rendezvous()
    assert again.store.get("greeting") == b"hello"
    for handler in handlers:
        assert handler.use_agent_store
        handler.set_closed()
        assert (handler.get_backend(), handler.get_run_id()) == ("static", "run")
        assert (handler.is_closed(), handler.num_nodes_waiting(), handler.shutdown()) == (False, 0, True)
    if not with_torch:
        for handler in handlers:
            assert isinstance(handler, StaticTCPRendezvous)
            handler._store.close()


def test_the_time_out_is_ten_minutes_unless_given() -> None:
    assert create_rdzv_handler(params(rank=0)).timeout == timedelta(seconds=600)
    assert create_rdzv_handler(params(rank="1", timeout="7")).timeout == timedelta(seconds=7)


def test_an_option_that_nobody_knows_is_warned_of_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    handler = create_rdzv_handler(params(rank=0, is_host=True, tiemout=7))
    assert handler.timeout == timedelta(seconds=600)
    assert caplog.messages == ["The backend 'static' has no option 'tiemout', and ignores it. Did you mean 'timeout'?"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, r"'rank' is missing: .* \(--node-rank\)"),
        ({"rank": "first"}, "rank"),
        ({"rank": -1}, "rank"),
        ({"rank": 2}, "of 2 nodes the last is 1"),
        ({"rank": 0, "endpoint": ""}, "The endpoint is missing"),
        ({"rank": 0, "endpoint": "localhost"}, "has no port"),
        ({"rank": 0, "endpoint": "localhost:-1"}, "localhost:-1"),
    ],
)
def test_what_is_missing_is_said(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create_rdzv_handler(params(**given))


def test_a_port_that_is_taken_is_said(with_torch: bool) -> None:
    with closing(create_server(("127.0.0.1", 0))) as taken:
        handler = create_rdzv_handler(params(f"127.0.0.1:{taken.getsockname()[1]}", rank=0))
        with pytest.raises(RendezvousConnectionError, match="rank 0 cannot serve the store on"):
            handler.next_rendezvous()


def test_a_missing_rank_0_is_said(with_torch: bool) -> None:
    handler = create_rdzv_handler(params(f"127.0.0.1:{free_port()}", rank=1, timeout=0.5))
    with pytest.raises(RendezvousConnectionError, match=r"no c10d store answered at .* within 0.5 s"):
        handler.next_rendezvous()
