"""Nodes of the older protocol as processes, for tests that let them meet, stop and kill them."""

from __future__ import annotations

import json
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rallypoint.backends.etcd_v2_client import make_client
from rallypoint.elastic.legacy_etcd import protocol
from rallypoint.net import parse_endpoints
from tests.support.forked_processes import NODES, TORCH, ForkedProcess

SOON_S = 90.0


class NodeProcess:
    """One node; what it prints is heard in a thread."""

    def __init__(
        self, library: str, endpoint: str, run_id: str, name: str, least: int, most: int, last_call: int, prefix: str
    ) -> None:
        self.name, self.library = name, library
        self.process = ForkedProcess(
            "tests.etcd_v2.legacy_node_program",
            *(library, endpoint, run_id, name, str(least), str(most), str(last_call), prefix),
            imported=TORCH if library == "torch" else NODES,
        )
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._listeners = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self.process.stderr.read, daemon=True),  # nobody wants to know
        ]
        for listener in self._listeners:
            listener.start()

    def hear(self, within_s: float = SOON_S) -> Any:
        """The next thing that it says."""
        try:
            said = self._said.get(timeout=max(within_s, 0))
        except queue.Empty:
            raise AssertionError(f"{self.library} node {self.name} says nothing") from None
        assert said is not None, f"{self.library} node {self.name} ended with {self.process.wait()}"
        return said

    def hear_world_of(self, size: int) -> Any:
        """The next world of that size that it is in; the time is for all the others before it as well."""
        deadline = time.monotonic() + SOON_S
        while len((said := self.hear(deadline - time.monotonic())).get("names", ())) != size:
            pass
        return said

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        for listener in self._listeners:
            listener.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()

    def end(self) -> Any:
        """Let it shut down; what it said last."""
        self.process.stdin.close()
        while "shut down" not in (said := self.hear()):
            pass
        return said

    def _listen(self) -> None:
        for line in self.process.stdout:
            self._said.put(json.loads(line))
        self._said.put(None)


class LegacyNodeGroup:
    """The nodes of one run, and a look at its state."""

    def __init__(self, endpoint: str, run_id: str, least: int, most: int, last_call: int, prefix: str) -> None:
        self.endpoint, self.run_id, self.prefix = endpoint, run_id, prefix
        self._settings = (least, most, last_call, prefix)
        self._nodes: list[NodeProcess] = []
        self.client = make_client(parse_endpoints(endpoint, 2379), read_timeout_s=30)

    def start(self, library: str, name: str) -> NodeProcess:
        node = NodeProcess(library, self.endpoint, self.run_id, name, *self._settings)
        self._nodes.append(node)
        assert node.hear() == {"ready": name}
        return node

    def state(self) -> protocol.State | None:
        import etcd

        try:
            return protocol.read(
                self.client.read(f"{self.prefix.rstrip('/')}/run_{self.run_id}/rdzv/active_version").value
            )
        except etcd.EtcdKeyNotFound:
            return None

    def close(self) -> None:
        for node in self._nodes:
            node.kill()


@contextmanager
def legacy_nodes(
    endpoint: str, run_id: str, least: int, most: int, last_call: int = 1, prefix: str = "/torchelastic/p2p"
) -> Iterator[LegacyNodeGroup]:
    nodes = LegacyNodeGroup(endpoint, run_id, least, most, last_call, prefix)
    try:
        yield nodes
    finally:
        nodes.close()
