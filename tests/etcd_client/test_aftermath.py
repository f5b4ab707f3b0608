"""What is said when an answer was lost before, what passes, and what is forgotten when it is over."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from rallypoint.etcd_client import EtcdClient, EtcdHopelessError, EtcdNoSpaceError, EtcdUnavailableError, put_op
from rallypoint.etcd_client.answers import Verdict, judge
from rallypoint.etcd_client.hub import Metadata
from rallypoint.etcd_client.transport import CallFailedError, Line
from tests.etcd.servers import HOST, shared
from tests.etcd_client.stage import SOON_S, etcd, user_of
from tests.waiting import until


def test_a_refusal_after_a_lost_answer_says_that_it_may_have_happened(
    client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.get("warm")
    answers = [
        CallFailedError("UNAVAILABLE", "Socket closed"),
        CallFailedError("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded"),
    ]

    def fails(_: Line, method: str, request: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        raise answers.pop(0)

    monkeypatch.setattr(Line, "call", fails)
    with pytest.raises(EtcdNoSpaceError, match=r"quota.*\(Txn at .*the earlier one may have happened"):
        client.transaction(then=[put_op(prefix, "1")], again=True)
    answers = [CallFailedError("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded")]
    with pytest.raises(EtcdNoSpaceError) as refusal:
        client.transaction(then=[put_op(prefix, "1")], again=True)
    assert "may have happened" not in str(refusal.value)


def test_a_load_balancer_without_etcd_passes() -> None:
    """Whether it speaks HTTP/1.1, and nothing was sent, or HTTP/2, where it may have lost the answer only."""
    for status in (502, 503, 504):
        old = judge(
            "UNAVAILABLE", f"failed to connect to all addresses; (Trying … http1.x server (HTTP status {status}))"
        )
        new = judge("UNAVAILABLE", f"Received http2 header with status: {status}")
        assert (old.verdict, new.verdict) == (Verdict.ELSEWHERE, Verdict.MAYBE)
        for judgement in (old, new):
            assert f"HTTP status {status}" in judgement.words
            assert "not etcd" not in judgement.words
    assert judge("UNIMPLEMENTED", "Received http2 header with status: 404").verdict is Verdict.HOPELESS


class _Gateway:
    """Answers to HTTP/2 as a gateway does that finds nobody behind it."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server((HOST, port))
        self.port: int = self._listener.getsockname()[1]
        self.asked = threading.Event()
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        # A thread that waits would keep the port open.
        for end in (self._listener, *self._connections):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError, EOFError), connection, connection.makefile("rb") as said:
            connection.sendall(_frame(4, 0, 0))
            said.read(24)  # how every HTTP/2 connection begins
            while head := said.read(9):
                said.read(int.from_bytes(head[:3], "big"))
                if head[3] == 4 and not head[4]:
                    connection.sendall(_frame(4, 1, 0))
                elif head[3] == 1:
                    connection.sendall(_frame(1, 5, int.from_bytes(head[5:], "big"), b"\x08\x03503"))
                    self.asked.set()


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


@pytest.fixture
def gateway() -> Iterator[_Gateway]:
    gateway = _Gateway()
    try:
        yield gateway
    finally:
        gateway.close()


def test_who_finds_a_gateway_without_etcd_waits_for_it(gateway: _Gateway) -> None:
    start = time.monotonic()
    with EtcdClient(f"{HOST}:{gateway.port}", timeout_s=1) as client:
        with pytest.raises(EtcdUnavailableError, match="reaches no etcd at present") as refusal:
            client.put("a", "1")
        with client.watch("a", revision=1) as watch:
            until(lambda: "reaches no etcd at present" in str(watch.trouble), "it says so")
            assert watch.get(timeout_s=1) is None
    assert time.monotonic() > start + 1
    assert not isinstance(refusal.value, EtcdHopelessError)
    # Where another one is asked, it is asked.
    with EtcdClient([f"{HOST}:{gateway.port}", shared().endpoint], timeout_s=10, spread=False) as client:
        client.put("a", "1")


def test_a_gateway_that_finds_etcd_again_is_used_again() -> None:
    with etcd() as cluster, user_of(cluster) as client:
        (member,) = cluster.members
        member.kill()
        gateway = _Gateway(member.port)

        def find_etcd() -> None:
            assert gateway.asked.wait(SOON_S)
            gateway.close()
            member.start()

        late = threading.Thread(target=find_etcd)
        late.start()
        client.put("a", "1")
        late.join()


def test_leases_that_are_over_are_forgotten(client: EtcdClient) -> None:
    for lease in [client.grant(60) for _ in range(5)]:
        lease.release()
    client.grant(60).revoke()
    lost = client.grant(2)
    client.revoke(lost.id)
    until(lost.lost.is_set, "it is lost")
    kept = client.grant(60)
    until(lambda: client._leases == {kept}, "the others are forgotten")
    kept.revoke()
