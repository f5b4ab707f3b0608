"""A client that is closed, or a process that ends, leaves nothing behind that could keep the process from ending."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

from rallypoint.etcd_client import EtcdClient, EtcdClosedError
from rallypoint.etcd_client.conductor import Watcher
from rallypoint.etcd_client.keeper import Keeper
from tests.etcd.servers import Cluster
from tests.etcd_client.stage import proxy_to
from tests.waiting import until


def _calls(client: EtcdClient) -> list[weakref.ref[object]]:
    """grpc's own streams, of leases and of watches."""
    hub = client._open
    streams = [hub.part(Keeper)._stream, hub.part(Watcher)._stream]
    return [weakref.ref(stream._stream._call) for stream in streams if stream is not None]


@pytest.mark.parametrize("ending", ["closed", "cut off"])
def test_a_stream_that_is_over_is_gone_without_a_collection_of_garbage(server: Cluster, ending: str) -> None:
    """At the end of a process, that would wait for a lock which a thread holds that is no more."""
    before = set(threading.enumerate())
    gc.disable()
    try:
        with proxy_to(server.members[0].port) as proxy:
            client = EtcdClient(proxy.endpoint)
            lease, watch = client.grant(1), client.watch("k")
            client.put("k", "x")
            assert watch.get(10.0) is not None
            until(lambda: client._open.part(Keeper)._stream is not None, "the first renewal")
            calls = _calls(client)
            assert len([call for call in calls if call() is not None]) == 2
            if ending == "closed":
                client.close()
                assert [call() for call in calls] == [None, None]
            else:
                proxy.cut()
                until(lambda: [call() for call in calls] == [None, None], "both are gone")
                client.close()
            lease.release()
    finally:
        gc.enable()
    left = [thread.name for thread in threading.enumerate() if thread not in before and "etcd" in thread.name]
    assert left == []


ENDING = """
    import atexit, sys
    def last() -> None:
        client.put(sys.argv[2], "the last word", lease=lease)
        assert watch.get(10).value == b"the last word"
        print("said")
    atexit.register(last)
    from rallypoint.etcd_client import EtcdClient
    client = EtcdClient(sys.argv[1])
    lease, watch = client.grant(60), client.watch(sys.argv[2])
"""


def test_a_process_that_ends_with_its_client_open_may_use_it_to_the_last(
    server: Cluster, client: EtcdClient, prefix: str
) -> None:
    """Whatever else the process does at its end, and in whatever order."""
    command = [sys.executable, "-c", textwrap.dedent(ENDING), server.endpoint, prefix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("said\n", "")
    found = client.get(prefix)
    assert found is not None
    assert found.value == b"the last word"


ENDING_IN_A_LOCK = """
    import gc, queue, sys, threading
    from rallypoint.etcd_client.transport import Line
    gc.disable()
    line = Line(sys.argv[1], None)
    stream = line.stream("/etcdserverpb.Watch/Watch", iter(queue.SimpleQueue().get, None), ())
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
"""


def test_a_process_ends_though_a_thread_that_is_no_more_holds_the_lock_of_a_stream(server: Cluster) -> None:
    command = [sys.executable, "-c", textwrap.dedent(ENDING_IN_A_LOCK), server.endpoint]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


def test_a_watch_that_comes_too_late_is_told_so(client: EtcdClient) -> None:
    with EtcdClient(client.endpoints) as other:
        first = other.watch("k")
        other._open.part(Watcher).close()
        with pytest.raises(EtcdClosedError):
            first.get(10.0)
        with pytest.raises(EtcdClosedError):
            other.watch("k").get(10.0)
