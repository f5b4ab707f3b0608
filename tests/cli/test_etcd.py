"""`status`, `runs`, `close` and `evict` on runs that live in etcd."""

from __future__ import annotations

import re
import uuid

import pytest

from tests.support.cli_processes import Process, Started, answer, answer_json, free_port, refused
from tests.support.etcd_servers import shared

NODE = """
import sys, rallypoint
with rallypoint.join(sys.argv[1], run=sys.argv[2], node_name=sys.argv[3], etcd_prefix=sys.argv[4], lease_ttl=2,
                     last_call_timeout=0, local_addr="127.0.0.1") as place:
    print("placed", flush=True)
    place.changed.wait()
    print("changed:", place._member.view.why, flush=True)
"""


@pytest.fixture
def endpoint() -> str:
    return f"etcd://{shared().endpoint}"


@pytest.fixture
def prefix() -> str:
    return f"/{uuid.uuid4().hex}"


@pytest.fixture
def node(started: Started, endpoint: str, prefix: str) -> Process:
    """A node of run `llama` that is alone in its world."""
    alone = started.add(Process("-c", NODE, endpoint, "llama", "node1", prefix))
    alone.expect("placed")
    return alone


def test_an_etcd_without_runs(endpoint: str, prefix: str) -> None:
    at = ("--endpoint", endpoint, "--etcd-prefix", prefix)
    assert answer("runs", *at) == f"There are no runs at {endpoint}{prefix}.\n"
    assert answer("status", *at) == f"There are no runs at {endpoint}.\n"
    assert answer_json("status", *at) == []
    assert refused("status", "other", *at) == f"there is no run 'other' at {endpoint}{prefix}"
    assert refused("close", "other", *at) == f"there is no run 'other' at {endpoint}{prefix}"


def test_status_and_runs(node: Process, endpoint: str, prefix: str) -> None:
    at = ("--endpoint", endpoint, "--etcd-prefix", prefix)
    first, header, row, messages = answer("status", "llama", *at).splitlines()
    assert first == "run 'llama' (sealed, nodes 1): round 1 runs with 1 node"
    assert header.split() == ["node", "rank", "standing", "address", "id"]
    assert re.fullmatch(r"node1 +0 +holds its world +127\.0\.0\.1 +node1\.[0-9a-f]+_[0-9]+", row)
    assert messages.startswith("the server's messages so far: ")
    header, row = answer("runs", *at).splitlines()
    assert re.fullmatch(r"llama +sealed +1 +1 +round 1 runs with 1 node", row)
    (told,) = answer_json("status", *at)
    assert (told["run_id"], told["live"], told["min_nodes"], told["max_nodes"]) == ("llama", 1, 1, 1)
    told = refused("evict", "llama", "node7", *at)
    assert re.fullmatch(r"there is no node 'node7' in run 'llama' \(it has node1\) at 127\.0\.0\.1:[0-9]+", told)


def test_close_tells_the_nodes_why_and_frees_the_run_id(
    node: Process, endpoint: str, prefix: str, started: Started
) -> None:
    told = answer("close", "llama", "--endpoint", endpoint, "--etcd-prefix", prefix, "--why", "the budget is spent")
    assert told == "run 'llama': closed as failed: the budget is spent\n"
    node.expect("changed: the budget is spent")
    node.ends()
    # Long before the time is over for which a closed run is remembered.
    started.add(Process("-c", NODE, endpoint, "llama", "node1", prefix)).expect("placed")


def test_an_evicted_node_hears_of_it(node: Process, endpoint: str, prefix: str) -> None:
    told = answer("evict", "llama", "node1", "--endpoint", endpoint, "--etcd-prefix", prefix)
    assert told == "node 'node1' was evicted from run 'llama' and is kept out for 30 s\n"
    node.expect("changed: node1 was evicted by an administrator and is kept out for another 30 s")


def test_what_is_wrong_is_said_in_a_sentence() -> None:
    port = free_port()
    said = refused("runs", "--endpoint", f"etcd://127.0.0.1:{port}")
    assert f"127.0.0.1:{port}: nothing listens there (connection refused)" in said
    assert "is no host:port" in refused("runs", "--endpoint", "etcd://a:b:c")
    assert "'username' is given and 'password_file' is not" in refused(
        "runs", "--endpoint", "etcd://127.0.0.1:1", "--username", "alice"
    )
    assert refused("runs", "--endpoint", "10.0.0.5:2379", "--username", "alice") == (
        "--username is for etcd, and 10.0.0.5:2379 would be a server: write the endpoint as etcd://10.0.0.5:2379, or leave "
        "the option out"
    )
