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
from tests.etcd_client.stage import proxy_to, until


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
    from rallypoint.etcd_client import EtcdClient
    client = EtcdClient(sys.argv[1])
    def last() -> None:
        client.put(sys.argv[2], "the last word")
        print("said")
    if sys.argv[3] == "before":
        atexit.unregister(sys.modules["rallypoint.etcd_client.hub"]._fall_silent)
        atexit.register(last)
        atexit.register(sys.modules["rallypoint.etcd_client.hub"]._fall_silent)
    else:
        atexit.register(last)
    lease, watch = client.grant(1), client.watch(sys.argv[2])
    client.put(sys.argv[2], "x")
    watch.get(10)
    lease.lost.wait(0.5)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_ends_with_its_client_open_may_still_make_calls(
    server: Cluster, client: EtcdClient, prefix: str, when: str
) -> None:
    """Whether its own last deeds come before or after the client's."""
    command = [sys.executable, "-c", textwrap.dedent(ENDING), server.endpoint, prefix, when]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("said\n", "")
    found = client.get(prefix)
    assert found is not None
    assert found.value == b"the last word"


def test_a_watch_that_comes_too_late_is_told_so(client: EtcdClient) -> None:
    with EtcdClient(client.endpoints) as other:
        first = other.watch("k")
        other._open.fall_silent()
        with pytest.raises(EtcdClosedError):
            first.get(10.0)
        with pytest.raises(EtcdClosedError):
            other.watch("k").get(10.0)
