"""A store that was opened before a fork: the child is told, or works by itself, and the parent notices nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from rallypoint.stores import StoreConnectionError, TcpStore
from tests.support.etcd_servers import shared
from tests.support.node_processes import ROOT
from tests.support.store_kinds import SOON, SOON_S

# How a child ends: as an ordinary program does, with all that is registered for that; as multiprocessing lets it; at once.
ENDINGS = ["orderly", "multiprocessing", "abruptly"]

PRELUDE = """
import multiprocessing, os, sys, threading, traceback
from datetime import timedelta
from rallypoint.stores import *
from rallypoint.stores.prefix import LazyPrefixStore

multiprocessing.set_start_method("fork")
SOON = timedelta(seconds=30)
ending = ENDING

def report(act, into):
    try:
        said = repr(act())
    except BaseException as exc:
        said = f"{type(exc).__name__}: {exc}"
    os.write(into, said.encode())

def started(act):
    ours, theirs = os.pipe()
    if ending == "multiprocessing":
        child = multiprocessing.Process(target=report, args=(act, theirs))
        child.start()
        end = lambda: (child.join(), child.exitcode)[1]
    else:
        pid = os.fork()
        if not pid:
            report(act, theirs)
            os._exit(0) if ending == "abruptly" else sys.exit(0)
        end = lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(theirs)
    return ours, end

def in_a_child(act):
    ours, end = started(act)
    with os.fdopen(ours) as answers:
        said = answers.read()
    assert end() == 0, said
    return said

def is_told(said, *words):
    assert said.startswith("StoreForkError: "), said
    for word in ("was opened in process", "its child by fork", "'spawn' or exec", *words):
        assert word in said, (word, said)
"""


def run(script: str, ending: str = "orderly", *arguments: str) -> None:
    """In a process of its own, where a warning is an error; it must say nothing."""
    code = PRELUDE.replace("ENDING", repr(ending)) + textwrap.dedent(script)
    ran = subprocess.run(
        # Python warns of every fork beside threads, whatever those do.
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=2 * SOON_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_child_is_told_and_the_tcp_store_and_server_of_its_parent_go_on(ending: str) -> None:
    run(
        """
        master = TcpStore("127.0.0.1", 0, is_master=True, timeout=SOON)
        store = TcpStore("127.0.0.1", master.port, timeout=SOON)
        shared = TcpStore("127.0.0.1", 0, is_master=True, multi_tenant=True, timeout=SOON)
        for round in range(3):
            master.set("k", f"v{round}")
            for each in (master, store, shared, PrefixStore("p", store)):
                is_told(in_a_child(lambda: each.check(["k"])), "clone()")
                is_told(in_a_child(lambda: each.get("k")))
                is_told(in_a_child(lambda: (each.close() if isinstance(each, TcpStore) else 0, each.set("k", "no"))))
            assert store.get("k") == master.get("k") == f"v{round}".encode()
            shared.set("k", "v")
            assert shared.get("k") == b"v"
            assert TcpStore("127.0.0.1", master.port, timeout=SOON).get("k") == f"v{round}".encode()
        """,
        ending,
    )


@pytest.mark.parametrize("use", ["add('n', 1)", "wait(['k'])", "multi_get(['k'])", "queue_pop('q')", "barrier('b', 1)"])
def test_every_way_to_ask_says_the_same(use: str) -> None:
    run(
        f"""
        store = TcpStore("127.0.0.1", 0, is_master=True, timeout=SOON)
        store.set("k", "v")
        store.queue_push("q", "entry")
        is_told(in_a_child(lambda: store.{use}))
        assert store.queue_len("q") == 1
        """
    )


def test_a_child_of_many_threads_that_talk_is_told_at_once_and_no_answer_goes_astray() -> None:
    run(
        """
        store = TcpStore("127.0.0.1", 0, is_master=True, timeout=SOON)
        waiting = store.clone()
        threading.Thread(target=lambda: waiting.get("done")).start()  # it has the connection of `waiting` for itself
        for number in range(50):
            store.set(str(number), f"value {number}")
        wrong, over = [], threading.Event()

        def talk():
            while not over.is_set():
                for number in range(50):
                    if (got := store.get(str(number))) != f"value {number}".encode():
                        wrong.append((number, got))

        talking = [threading.Thread(target=talk) for _ in range(2)]
        for thread in talking:
            thread.start()
        children = [started(lambda: [store.get(str(number)) for number in range(50)]) for _ in range(5)]
        children += [started(lambda: waiting.check(["done"]))]
        for ours, end in children:
            with os.fdopen(ours) as answers:
                is_told(answers.read())
            assert end() == 0
        over.set()
        for thread in talking:
            thread.join()
        assert not wrong, wrong[:5]
        store.set("done", "yes")
        """
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_a_child_opens_itself_works(ending: str) -> None:
    run(
        """
        store = TcpStore("127.0.0.1", 0, is_master=True, timeout=SOON)
        late = LazyPrefixStore("late", lambda: TcpStore("127.0.0.1", store.port, timeout=SOON))
        lent = LazyPrefixStore("late", store.clone)
        assert in_a_child(lambda: late.add("n", 1)) == "1"
        assert late.add("n", 1) == 2
        is_told(in_a_child(lambda: late.add("n", 1)))
        assert in_a_child(lambda: late.clone().add("n", 1)) == "3"
        assert in_a_child(lambda: store.clone().add("late/n", 1)) == "4"
        assert in_a_child(lambda: TcpStore("127.0.0.1", store.port, timeout=SOON).add("late/n", 1)) == "5"
        assert in_a_child(lambda: TcpStore("127.0.0.1", 0, is_master=True, multi_tenant=True).add("n", 1)) == "1"
        assert in_a_child(lambda: lent.add("n", 1)) == "6"
        assert late.add("n", 1) == 7
        told = in_a_child(lambda: in_a_child(lambda: store.get("k")))
        assert f"was opened in process {os.getpid()} " in told, told
        """,
        ending,
    )


def test_a_store_that_another_thread_is_opening_opens_in_the_child_as_well() -> None:
    run(
        """
        server = TcpStore("127.0.0.1", 0, is_master=True, timeout=SOON)
        opening, go_on, parent = threading.Event(), threading.Event(), os.getpid()

        def open_store():
            if os.getpid() == parent:
                opening.set()
                go_on.wait()
            return server.clone()

        late = LazyPrefixStore("late", open_store)
        thread = threading.Thread(target=lambda: late.add("n", 1))
        thread.start()
        opening.wait()
        assert in_a_child(lambda: late.add("n", 10)) == "10"
        go_on.set()
        thread.join()
        assert late.add("n", 0) == 11
        """
    )


@pytest.fixture
def bereaved(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that serves a store in both ways, and a child by fork that outlives it."""
    code = """
    import os, signal, sys, threading
    from rallypoint.stores import StoreServer, TcpStore, listen
    store, sock = TcpStore("127.0.0.1", 0, is_master=True), listen("127.0.0.1")
    port = sock.getsockname()[1]
    StoreServer().start_in_thread(sock)
    TcpStore("127.0.0.1", port).set("k", "v")
    ours, theirs = os.pipe()
    print(store.port, port, flush=True)
    sys.stdin.readline()
    child = os.fork()
    if child:
        os.close(ours)
        print(child, flush=True)
    signal.pause()
    """
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    ) as process:
        yield process
        process.kill()


def test_a_server_is_gone_when_its_process_is_though_a_child_lives_on(bereaved: subprocess.Popen[str]) -> None:
    assert bereaved.stdin is not None
    assert bereaved.stdout is not None
    ports = [int(word) for word in bereaved.stdout.readline().split()]
    stores = [TcpStore("127.0.0.1", port, timeout=SOON) for port in ports]
    for store in stores:
        store.set("k", "v")
        assert store.get("k") == b"v"
    bereaved.stdin.write("fork\n")
    bereaved.stdin.flush()
    child = int(bereaved.stdout.readline())
    try:
        for store in stores:
            assert store.get("k") == b"v"
        bereaved.kill()
        for store, port in zip(stores, ports, strict=True):
            with pytest.raises(StoreConnectionError):
                store.get("never")
            with pytest.raises(TimeoutError, match="refused"):
                TcpStore("127.0.0.1", port, timeout=timedelta(seconds=0.1))
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_store_in_memory_is_not_the_childs() -> None:
    run(
        """
        store = MemoryStore(SOON)
        store.set("k", "v")
        told = "nothing that one of them sets reaches the other"
        is_told(in_a_child(lambda: store.get("k")), told)
        is_told(in_a_child(lambda: store.set("k", "w")), told)
        is_told(in_a_child(lambda: PrefixStore("p", store.clone()).get("k")), told)
        held, go_on = threading.Event(), threading.Event()

        def hold():
            with store._shared.last_read():
                held.set()
                go_on.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        is_told(in_a_child(lambda: store.check(["k"])), told)
        go_on.set()
        thread.join()
        assert store.get("k") == b"v"
        assert in_a_child(lambda: MemoryStore(SOON).add("n", 1)) == "1"
        """
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_parent_and_children_share_a_store_in_a_file(ending: str, tmp_path: Path) -> None:
    run(
        """
        store = FileStore(sys.argv[1], 2, timeout=SOON)
        parts = PrefixStore("p", store)

        def work(name):
            for number in range(40):
                parts.add("n", 1)
                parts.append("log", f"{name}{number};")
                assert parts.get("k").startswith(b"v")
            parts.barrier("done", 4)
            return parts.get("n")

        parts.set("k", "v")
        children = [started(lambda name=name: work(name)) for name in "abc"]
        assert work("p") == b"160"
        for ours, end in children:
            with os.fdopen(ours) as answers:
                assert answers.read() == repr(b"160")
            assert end() == 0
        entries = parts.get("log").decode().split(";")[:-1]
        assert sorted(entries) == sorted(f"{name}{number}" for name in "abcp" for number in range(40))
        """,
        ending,
        str(tmp_path / "store"),
    )
    # A child counts as little as a clone: of the two that the file was promised, only the parent has gone.
    run(
        """
        store = FileStore(sys.argv[1], 2, timeout=SOON)
        assert store.get("p/n") == b"160"
        """,
        "orderly",
        str(tmp_path / "store"),
    )
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_child_is_told_of_a_store_on_etcd_v3(ending: str) -> None:
    run(
        """
        from rallypoint.etcd_client import EtcdClient
        client = EtcdClient(sys.argv[1])
        store = EtcdV3Store(client, f"forks/{os.getpid()}", lease=client.grant(60), timeout=SOON)
        store.set("k", "v")
        for use in (
            lambda: store.get("k"),
            lambda: store.clone().set("k", "w"),
            lambda: store.wait(["k"]),
            lambda: store.add("n", 1),
            lambda: store.barrier("b", 2),
            lambda: PrefixStore("p", store).queue_pop("q"),
        ):
            said = in_a_child(use)
            assert said.startswith("StoreForkError: ") and "its child by fork" in said and "'spawn'" in said, said
        assert store.get("k") == b"v" and not store.check(["n"]), "none of that has happened"
        """,
        ending,
        shared().endpoint,
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_parent_and_children_share_a_store_on_etcd_v2(ending: str) -> None:
    run(
        """
        import etcd
        from rallypoint.stores.etcd_v2.store import EtcdV2Store
        host, port = sys.argv[1].split(":")
        store = EtcdV2Store(etcd.Client(host, int(port)), f"/forks/{os.getpid()}", SOON, ttl_s=2)

        def work():
            for _ in range(10):
                store.add("n", 1)
                assert store.get("k") == b"v"
            store.barrier("done", 3)
            return store.get("n")

        store.set("k", "v")
        children = [started(work) for _ in range(2)]
        assert work() == b"30"

        def prolong():
            store.set("mine", "v")
            try:
                store.wait(["never"], timedelta(seconds=5))
            except TimeoutError:
                return store.check(["mine"])

        assert in_a_child(prolong) == "True", "a child keeps alive what it has written"
        for ours, end in children:
            with os.fdopen(ours) as answers:
                assert answers.read() == repr(b"30")
            assert end() == 0
        """,
        ending,
        shared("3.4").endpoint,
    )
