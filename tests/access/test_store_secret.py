"""The store of a round answers those who know its secret, which only members of the world are told (rule 16)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import rallypoint
from rallypoint.client.round_store import FOR_WORKERS
from rallypoint.stores import StoreConnectionError, StoreServer, StoreServerCore, StoreTimeoutError, TcpStore, listen
from rallypoint.stores.tcp import guarded, wire
from rallypoint.stores.tcp.guarded import Caller, GuardedStoreCore
from rallypoint.stores.tcp.wire import ProtocolError, Query
from tests.support.node_processes import free_port
from tests.support.store_kinds import SOON, SOON_S

SECRET = "0123456789abcdef"
TORCHS_HELLO = wire.request(Query.VALIDATE, number=wire.MAGIC) + wire.request(Query.PING, number=7)


class Wire:
    """One connection to a core, without sockets."""

    def __init__(self, core: StoreServerCore) -> None:
        self._core, self.session = core, core.connect("caller")

    def say(self, data: bytes) -> bytes:
        return b"".join(self._core.receive(self.session, data)[0])


def proof_for(connection: Wire, caller: Caller) -> bytes:
    """What a caller says as its proof, which was not sent yet."""
    answer = connection.say(caller.opening)
    return caller.prove(lambda size: answer[:size])


def test_a_caller_that_knows_the_secret_is_answered_however_its_bytes_are_cut() -> None:
    for cut in (1, 3, 1000):
        caller, connection = Caller(SECRET), Wire(GuardedStoreCore(SECRET))
        answer = b"".join(connection.say(caller.opening[at : at + cut]) for at in range(0, 36, cut))
        said = caller.prove(lambda size, heard=answer: heard[:size]) + wire.request(Query.ADD, [b"/n"], 4)  # type: ignore[misc]
        answered = b"".join(connection.say(said[at : at + cut]) for at in range(0, len(said), cut))
        assert answered == wire.NUMBER.pack(4)


@pytest.mark.parametrize("data", [TORCHS_HELLO, b"GET / HTTP/1.1", b"\x06" * 500, b"RLYP", b"RLY\0"])
def test_a_stranger_is_told_nothing(data: bytes) -> None:
    stranger = Wire(GuardedStoreCore(SECRET))
    assert stranger.say(data) == b""
    assert stranger.session.refusal == "it does not know this store's secret"
    assert stranger.say(TORCHS_HELLO) == b""


def test_a_proof_is_of_one_connection_only() -> None:
    core, caller = GuardedStoreCore(SECRET), Caller(SECRET)
    heard, replaying = proof_for(Wire(core), caller), Wire(core)
    assert len(replaying.say(caller.opening)) == 96
    assert replaying.say(heard + wire.request(Query.ADD, [b"/n"], 1)) == b""
    assert replaying.session.refusal == "it did not prove that it knows this store's secret"


def test_nothing_is_heard_before_the_proof() -> None:
    core = GuardedStoreCore(SECRET)
    hasty = Wire(core)
    assert len(hasty.say(Caller(SECRET).opening)) == 96
    assert hasty.say(TORCHS_HELLO * 10 + wire.request(Query.SET, [b"/k", b"v"])) == b""
    assert hasty.session.refusal is not None
    honest = Wire(core)
    assert honest.say(proof_for(honest, Caller(SECRET)) + wire.request(Query.COUNT_KEYS)) == wire.NUMBER.pack(0)


def test_a_server_that_does_not_know_the_secret_is_told_nothing() -> None:
    caller = Caller(SECRET)
    answer = Wire(GuardedStoreCore("another")).say(caller.opening)
    with pytest.raises(ProtocolError, match="did not prove that it knows this store's secret"):
        caller.prove(lambda size: answer[:size])
    assert SECRET.encode() not in caller.opening


@contextmanager
def served(core: StoreServerCore) -> Iterator[int]:
    server = StoreServer(core)
    server.start_in_thread(listen("127.0.0.1"))
    try:
        yield server.port
    finally:
        server.stop()


def test_stores_with_the_secret_share_keys_and_their_clones_do() -> None:
    with TcpStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=SOON, secret=SECRET) as master:
        other = TcpStore("127.0.0.1", master.port, timeout=SOON, secret=SECRET)
        other.set("k", "v")
        assert (master.get("k"), other.clone().get("k"), master.num_keys()) == (b"v", b"v", 1)


def test_a_wrong_secret_is_said_at_once_and_none_is_refused() -> None:
    with served(GuardedStoreCore(SECRET)) as port:
        with pytest.raises(StoreConnectionError, match="did not prove that it knows this store's secret"):
            TcpStore("127.0.0.1", port, timeout=timedelta(seconds=60), secret="wrong")
        with pytest.raises(StoreTimeoutError, match="it closed the connection"):
            TcpStore("127.0.0.1", port, timeout=timedelta(seconds=0.5))


def test_clients_without_the_secret_have_keys_of_their_own_where_workers_may_use_torch() -> None:
    listener = listen("127.0.0.1")
    port, stop = listener.getsockname()[1], FOR_WORKERS.serve(listener, SECRET)
    try:
        ours, theirs = (TcpStore("127.0.0.1", port, timeout=SOON, secret=secret) for secret in (SECRET, ""))
        ours.set("k", "ours")
        assert not theirs.check(["k"])
        theirs.set("k", "theirs")
        assert (ours.get("k"), theirs.get("k"), ours.num_keys()) == (b"ours", b"theirs", 1)
        second = TcpStore("127.0.0.1", port, timeout=SOON)
        with pytest.raises(StoreTimeoutError):
            second.wait(["later"], timedelta(seconds=0.01))
        assert second.get("k") == b"theirs"
    finally:
        stop()


# Real rounds ----------------------------------------------------------------------------------------------------------


def test_a_stranger_has_no_part_in_the_store_of_a_round() -> None:
    with rallypoint.join(f"127.0.0.1:{free_port()}", run="guarded", nodes=1, quiet=True) as place:
        place.store.set("k", "v")
        with socket.create_connection((place.store.host, place.store.port), SOON_S) as stranger:
            stranger.sendall(TORCHS_HELLO)
            assert stranger.recv(100) == b""
        assert place.store.get("k") == b"v"
        first = place.store.secret
        assert place.again().store.secret != first, "every round has a secret of its own"


def test_status_and_state_do_not_show_the_secret(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-m", "rallypoint"]
    serve = [*command, "serve", "--bind", "127.0.0.1:0", "--state", str(state)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        endpoint = server.stdout.readline().split()[-1]
        with rallypoint.join(endpoint, run="guarded", nodes=1, quiet=True) as place:
            secret = place.store.secret
            assert len(secret) >= 32
            shown = [
                subprocess.run([*command, *words, "--endpoint", endpoint], capture_output=True, text=True, check=True)
                for words in (["status", "guarded"], ["status", "guarded", "--json"], ["runs"])
            ]
            assert "holds" in shown[0].stdout
            said = "".join(each.stdout + each.stderr for each in shown) + str(list(place.peers()))
        server.terminate()
        out, err = server.communicate(timeout=20)
    assert secret not in said + out + err
    assert secret.encode() not in state.read_bytes()


WORKER = """
import json, os, rallypoint
from datetime import timedelta
from rallypoint.stores import TcpStore
me = rallypoint.worker()
me.store.set("from", "a worker")
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
torchs = TcpStore(host, port, timeout=timedelta(seconds=10))  # it says what a client of torch's says
torchs.set("k", "v")
arguments = open("/proc/self/cmdline").read() + open(f"/proc/{os.getppid()}/cmdline").read()
secret = os.environ["RALLYPOINT_STORE_SECRET"]
print(json.dumps([me.store.get("from").decode(), torchs.list_keys(), len(secret) >= 32, secret in arguments]))
"""


def test_workers_of_the_launcher_know_the_secret_and_torchs_clients_go_on_beside_them(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    done = subprocess.run(
        [sys.executable, "-m", "rallypoint", "run", "--", sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT")},
    )
    assert json.loads(done.stdout) == ["a worker", ["k"], True, False]


def test_the_opening_is_nothing_that_torchs_clients_say() -> None:
    assert not guarded.OPENING.startswith(TORCHS_HELLO[:1])
