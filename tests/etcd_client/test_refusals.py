"""What can be wrong around etcd, and what is said: which endpoints were tried and what each answered."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rallypoint.etcd_client import (
    EtcdAmbiguousError,
    EtcdClient,
    EtcdNoSpaceError,
    EtcdUnavailableError,
    transport,
)
from tests.support.etcd_servers import HOST, shared
from tests.support.etcd_tools import compact, etcd, etcdctl, fresh, user_of


@pytest.fixture
def web() -> Iterator[str]:
    with http.server.ThreadingHTTPServer((HOST, 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{HOST}:{server.server_port}"
        server.shutdown()


@pytest.fixture
def silent() -> Iterator[str]:
    """Connections are taken, and nothing is ever said: as good as a packet filter that drops everything."""
    with socket.create_server((HOST, 0)) as listener:
        yield f"{HOST}:{listener.getsockname()[1]}"


def test_a_port_that_is_not_etcd_is_named_at_once(web: str) -> None:
    start = time.monotonic()
    with EtcdClient(web, timeout_s=30) as client:
        for call in (lambda: client.get("a"), lambda: client.put("a", "1"), lambda: client.watch("a")):
            with pytest.raises(
                EtcdUnavailableError, match=f"no answer to [A-Za-z]+. {web}: something listens there that is not"
            ):
                call()
    assert time.monotonic() < start + 5


def test_every_endpoint_and_its_answer_is_in_the_error(web: str, silent: str) -> None:
    endpoints = ["127.0.0.1:1", "no-such-host.invalid:2379", web, silent]
    client = EtcdClient(endpoints, timeout_s=2.5, spread=False)
    with client, pytest.raises(EtcdUnavailableError) as refusal:
        client.get("a")
    assert str(refusal.value) == (
        f"etcd gave no answer to Range within 2.5 s. 127.0.0.1:1: nothing listens there (connection refused); "
        f"no-such-host.invalid:2379: the name is not known (DNS); "
        f"{web}: something listens there that is not etcd (port 2379 is etcd's; 2380 is for its members only); "
        f"{silent}: no answer in time"
    )


def test_an_unreachable_member_first_in_the_list_costs_a_moment(silent: str, web: str) -> None:
    server, prefix = shared(), fresh()
    for bad in (silent, "127.0.0.1:1", web, "no-such-host.invalid:2379"):
        with EtcdClient([bad, server.endpoint], timeout_s=6, spread=False) as client:
            start = time.monotonic()
            client.put(prefix, "x")  # a write is not sent before somebody has answered
            assert time.monotonic() < start + 4
            start = time.monotonic()
            client.get(prefix)
            with client.watch(prefix) as watch:
                client.put(prefix, "y")
                assert watch.get(timeout_s=4) is not None
            assert time.monotonic() < start + 2, "from then on the other one is asked first"


def test_a_write_that_reached_nobody_is_not_ambiguous(silent: str) -> None:
    with EtcdClient(silent, timeout_s=1) as client, pytest.raises(EtcdUnavailableError) as refusal:
        client.put("a", "1")
    assert not isinstance(refusal.value, EtcdAmbiguousError)


def test_a_member_that_starts_late_is_waited_for() -> None:
    with etcd() as cluster, user_of(cluster) as client:
        cluster.members[0].kill()
        threading.Timer(1, cluster.members[0].start).start()
        client.put("a", "1")
        assert client.get("a") is not None


def test_a_full_database_says_what_to_do() -> None:
    with etcd("3.5", 1, "--quota-backend-bytes", "1000000") as cluster, user_of(cluster) as client:

        def fill() -> None:
            # etcd compares its size with the quota every 0.1 s, when it commits: how many writes fit before depends on
            # the disk.
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                client.put("k", b"x" * 100_000)

        with pytest.raises(EtcdNoSpaceError) as refusal:
            fill()
        for words in (
            "quota",
            "`etcdctl compact`",
            "`etcdctl defrag`",
            "`etcdctl alarm disarm`",
            "--quota-backend-bytes",
        ):
            assert words in str(refusal.value)
        # Reading goes on; and what the sentence says helps.
        found = client.get("k")
        assert found is not None
        compact(client, found.mod_revision)
        etcdctl(cluster, "defrag")
        etcdctl(cluster, "alarm", "disarm")
        client.put("k", "small")


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_grpcio_the_extra_is_named() -> None:
    said = run("""
        import sys
        sys.modules["grpc"] = None
        from rallypoint.etcd_client import EtcdClient, EtcdMissingError
        try:
            EtcdClient("a:2379").get("x")
        except EtcdMissingError as missing:
            print(missing)
    """)
    assert "pip install 'rallypoint[etcd]'" in said
    assert "grpcio" in said


def test_neither_grpc_nor_protobuf_is_imported_before_its_time() -> None:
    said = run(f"""
        import sys
        from rallypoint.etcd_client import EtcdClient
        print("grpc" in sys.modules)
        with EtcdClient("{shared().endpoint}") as client:
            client.get("x")
        print("grpc" in sys.modules, "google.protobuf" in sys.modules)
    """)
    assert said.split() == ["False", "True", "False"]


def test_a_process_that_ends_with_its_client_open_may_use_it_to_the_last() -> None:
    said = run(f"""
        import atexit
        def last() -> None:
            client.put("{fresh()}", "x", lease=lease)
            client.put("x", "the last word")
            print(watch.get(10).value)
        atexit.register(last)
        from rallypoint.etcd_client import EtcdClient
        client = EtcdClient("{shared().endpoint}")
        watch, lease = client.watch("x"), client.grant(5)
    """)
    assert said == "b'the last word'\n"


def test_a_process_ends_though_a_thread_that_is_no_more_holds_the_lock_of_a_stream() -> None:
    said = run(f"""
        import gc, queue, threading
        from rallypoint.etcd_client.transport import Channel
        gc.disable()
        stream = Channel("{shared().endpoint}").stream("/etcdserverpb.Watch/Watch", iter(queue.SimpleQueue().get, None), ())
        lock, held = stream._call._state.condition, threading.Event()
        def hold() -> None:
            with lock:
                held.set()
                threading.Event().wait()
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        stream.garbage = stream
        del stream
        print("ends", flush=True)
    """)
    assert said == "ends\n"


def test_a_refusal_after_a_lost_answer_says_that_it_may_have_happened(
    client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [("UNAVAILABLE", "Socket closed"), ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded")]

    def fails(*_: object) -> bytes:
        raise transport.CallFailedError(*answers.pop(0))

    monkeypatch.setattr(transport.Channel, "call", fails)
    with pytest.raises(EtcdNoSpaceError, match=r"quota.*\(Txn at .*the earlier one may have happened"):
        client.guarded_put(prefix, "1", mod_revision=0)


def test_a_write_whose_answer_cannot_be_read_may_have_happened(
    client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = transport.Channel.call

    def garble(channel: transport.Channel, method: str, *rest: Any) -> bytes:
        answer = call(channel, method, *rest)
        return b"\xff" * 20 if method.endswith("/Put") else answer

    monkeypatch.setattr(transport.Channel, "call", garble)
    with pytest.raises(EtcdAmbiguousError, match="Put was sent and its answer was lost"):
        client.put(prefix, "1")
    found = client.get(prefix)
    assert found is not None
    assert found.value == b"1"
