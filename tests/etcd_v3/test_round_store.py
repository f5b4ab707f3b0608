"""`store=etcd`: the store of a round in etcd itself, with no server of anybody's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import rallypoint
from rallypoint.api import Place
from rallypoint.etcd_client import EtcdClient, KeyValue
from rallypoint.stores.errors import RoundOverError, StoreError
from tests.support.etcd_node_processes import fresh_run
from tests.support.etcd_servers import shared
from tests.support.node_processes import ROOT


def meet(run: str, **options: Any) -> list[Place]:
    """Two nodes, by rank."""
    endpoint = f"etcd://{shared('3.5').endpoints}"

    def join(_: int) -> Place:
        return rallypoint.join(endpoint, run=run, nodes=2, join_timeout=30, **options)

    with ThreadPoolExecutor() as pool:
        return sorted(pool.map(join, range(2)), key=lambda place: place.rank)


def again(places: list[Place]) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(Place.again, places))


def keys(run: str) -> list[KeyValue]:
    with EtcdClient(shared("3.5").endpoints) as client:
        return [*client.range(f"/rallypoint/{run}/stores/", prefix=True).kvs]


def record(run: str) -> KeyValue:
    with EtcdClient(shared("3.5").endpoints) as client:
        found = client.get(f"/rallypoint/{run}/record")
    assert found is not None
    return found


def test_nodes_share_it_and_each_round_has_its_own() -> None:
    first, second = places = meet("kept", store="etcd")
    first.store.set("greeting", "hello")
    assert second.store.get("greeting") == b"hello"
    assert second.store.add("count", 2) == 2
    assert first.store.add("count", 3) == 5
    old = first.store
    assert keys("kept")
    again(places)
    assert not first.store.check(["greeting"])
    assert not keys("kept"), "the keys of the last round went with it"
    assert old is not first.store
    second.store.set("next", "1")
    assert first.store.get("next") == b"1"
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(Place.finished, places))
    assert {kv.lease for kv in keys("kept")} == {record("kept").lease}, "what is left expires with the record"


def test_a_wait_ends_with_its_connection_and_no_other() -> None:
    places = meet("waits", store="etcd")
    waiting, close = places[0].store.connect(timedelta(seconds=30))
    other = places[1].store
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(StoreError):
            waiting.get("never")
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    close()
    assert ended.wait(20)
    thread.join()
    other.set("still", "there")
    assert places[0].store.get("still") == b"there"
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(Place.finished, places))


def test_it_ends_with_its_round_though_etcd_goes_on() -> None:
    first, second = meet("ends", store="etcd")
    second.store.set("here", "1")
    waiting = second.store.clone()
    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(store.get, "never") for store in (second.store, waiting)]
        first.__exit__(RuntimeError, RuntimeError("told to"), None)
        for wait in waits:
            with pytest.raises(RoundOverError, match=r"told to.*; join again"):
                wait.result(20)
    for store in (first.store, second.store):
        with pytest.raises(RoundOverError, match="the store of round 1 of run 'ends' is of no use any more"):
            store.get("here")
    second.__exit__(None, None, None)


FORKED = """
import os, sys, rallypoint

def in_a_child(act):
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            said = repr(act())
        except Exception as exc:
            said = f"{type(exc).__name__}: {exc}"
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answers:
        said = answers.read()
    os.waitpid(pid, 0)
    return said

with rallypoint.join(sys.argv[1], run=sys.argv[2], store="etcd", local_addr="127.0.0.1") as place:
    for _ in range(2):  # before the parent has used it, and after
        for use in (lambda: place.store.add("n", 1), lambda: place.store.clone().add("n", 1)):
            told = in_a_child(use)
            assert told.startswith("StoreForkError: ") and "its child by fork" in told and "'spawn'" in told, told
        assert place.store.add("n", 1) in (1, 2)
    print(place.store.get("n"))
"""


def test_a_forked_child_is_told() -> None:
    endpoint, run = f"etcd://{shared('3.5').endpoints}", fresh_run()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, endpoint, run],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert (done.returncode, done.stdout.strip()) == (0, "b'2'"), done.stdout + done.stderr
