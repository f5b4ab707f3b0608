"""`rallypoint.join` by what names the server: a c10d store that a node serves, a file, etcd's API v2; with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.etcd_servers import running
from tests.support.node_processes import Node, Processes, by_rank, free_port


def meet(nodes: list[Node], endpoint: str, bounds: str | int) -> list[Node]:
    """Let the nodes join one after another; the nodes by rank."""
    for node in nodes:
        node.join(endpoint, bounds, is_host=None)
    return by_rank(nodes)


def finish(*nodes: Node) -> None:
    for node in nodes:
        node.order("finish")
    for node in nodes:
        assert node.expect("left")["done"]


def test_nodes_meet_by_a_file_and_the_one_that_serves_may_be_killed(processes: Processes, tmp_path: Path) -> None:
    a, b, c = meet(processes.nodes("a", "b", "c"), f"file://{tmp_path}/register", "2:3")
    a.kill()
    for node in (b, c):
        node.changed()
        node.again()
    finish(*by_rank([b, c]))


def test_nodes_meet_by_etcds_api_v2(processes: Processes) -> None:
    with running("3.5") as etcd:
        nodes = meet(processes.nodes("a", "b"), f"etcd-v2://{etcd.members[0].endpoint}", 2)
        finish(*nodes)


def test_the_first_process_serves_the_store_and_is_the_server(processes: Processes) -> None:
    """Rule 17b: where it ends, the register ends with it; nobody is better placed to serve."""
    endpoint = f"c10d://127.0.0.1:{free_port()}"
    host, other = processes.nodes("host", "other")
    for node in (host, other):
        node.join(endpoint, 2, is_host=node is host)
    by_rank([host, other])
    assert host.ask("serving", "serving")["serves"]
    assert not other.ask("serving", "serving")["serves"]
    finish(host, other)


def test_a_node_waits_for_a_store_that_is_served_later(processes: Processes) -> None:
    """Rule 13: a server that starts late is waited for, within the one deadline."""
    endpoint = f"c10d://127.0.0.1:{free_port()}"
    early, host = processes.nodes("early", "host")
    early.join(endpoint, 2, is_host=False, join_timeout=2.0)
    assert "no c10d store answered at 127.0.0.1" in early.failed("RendezvousTimeoutError")
    early.join(endpoint, 2, is_host=False)
    host.join(endpoint, 2, is_host=True)
    finish(*by_rank([early, host]))


def test_the_host_of_the_store_stays_until_the_run_is_closed(processes: Processes) -> None:
    """Rule 17: without it nobody could say, or learn, how the run ended; whatever `close_timeout` says."""
    endpoint = f"c10d://127.0.0.1:{free_port()}"
    host, other = processes.nodes("host", "other")
    for node in (host, other):
        node.join(endpoint, 2, is_host=node is host, close_timeout=0.5)
    by_rank([host, other])
    host.order("finish")
    assert other.ask("bide", "bided", seconds=2.0)["news"] is False
    assert host.heard("left") == []
    finish(other)
    assert host.expect("left")["done"]


def test_a_run_id_is_free_again_at_once(processes: Processes, tmp_path: Path) -> None:
    endpoint = f"file://{tmp_path}/register"
    first = meet(processes.nodes("a", "b"), endpoint, 2)
    finish(*first)
    second = meet(processes.nodes("c", "d"), endpoint, 2)
    assert second[0].seen[-1]["round"] > first[0].heard("placed")[-1]["round"]
    finish(*second)


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("c10f://a:1", "Did you mean 'c10d'?"),
        ("file://folder/file", "with three slashes"),
        ("file:///", "with three slashes"),
    ],
)
def test_an_endpoint_that_makes_no_sense_is_refused_in_words(processes: Processes, endpoint: str, words: str) -> None:
    node = processes.node("a")
    node.join(endpoint, 1, is_host=None)
    assert words in node.failed("ValueError")


def test_a_file_in_no_folder_is_an_error_at_once(processes: Processes, tmp_path: Path) -> None:
    node = processes.node("a")
    node.join(f"file://{tmp_path}/missing/register", 1, is_host=None)
    assert "there is no folder" in node.failed("RendezvousError")
