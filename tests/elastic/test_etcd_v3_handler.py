"""The backend `etcd-v3` as its users meet it: endpoints, options, sentences, and a world on real etcd."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rallypoint
from rallypoint import RendezvousConnectionError, RendezvousHandler, RendezvousParameters, RendezvousTimeoutError
from rallypoint.backends.etcd_v3 import ETCD_V3
from rallypoint.backends.etcd_v3_client import OPTIONS as CLIENT_OPTIONS
from rallypoint.backends.etcd_v3_client import open_client
from rallypoint.backends.options import OptionValues, as_int, read_options
from rallypoint.etcd_client import EtcdClient
from rallypoint.messages.types import Reason
from tests.support.etcd_servers import HOST, Certificates, Cluster, shared
from tests.support.etcd_tools import enable_users, etcd, etcdctl

SOON_S = 30.0
DEAD = "127.0.0.1:1"


def fresh_run() -> str:
    return f"run-{uuid.uuid4().hex}"


def parameters(endpoint: str, **config: object) -> RendezvousParameters:
    """A run of its own for a single node, unless `run_id` and `nodes` say otherwise."""
    config = {"join_timeout": SOON_S, "close_timeout": 5, "last_call_timeout": 0, "lease_ttl": 2} | config
    run_id, nodes = str(config.pop("run_id", fresh_run())), as_int(config.pop("nodes", 1))
    return RendezvousParameters("etcd-v3", endpoint, run_id, nodes, nodes, HOST, **config)


def handler_at(endpoint: str, **config: object) -> RendezvousHandler:
    return rallypoint.get_rendezvous_handler(parameters(endpoint, **config))


def client_options(**config: object) -> OptionValues:
    return read_options("etcd-v3", config, CLIENT_OPTIONS)


def client_at(endpoint: str, **config: object) -> EtcdClient:
    return open_client(endpoint, client_options(**config), timeout_s=1)


# Endpoints ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "places"),
    [
        ("", ("localhost:2379",)),
        ("  ", ("localhost:2379",)),
        ("a", ("a:2379",)),
        ("a:1, b:2 ,c", ("a:1", "b:2", "c:2379")),
        ("etcd://a:1,b:2", ("a:1", "b:2")),
        ("ETCD://a", ("a:2379",)),
        ("[2001:db8::1]:1,[::1]", ("[2001:db8::1]:1", "[::1]:2379")),
        ("etcd://a:2379,etcd://b:2379/", ("a:2379", "b:2379")),
    ],
)
def test_an_endpoint_names_one_member_or_several(endpoint: str, places: tuple[str, ...]) -> None:
    with client_at(endpoint) as client:
        assert client.endpoints == places


@pytest.mark.parametrize(
    ("endpoint", "secure"),
    [("a", False), ("etcd://a", False), ("etcds://a,b", True), ("https://a", True), ("EtcdS://a", True)],
)
def test_the_scheme_says_whether_there_is_tls(endpoint: str, secure: bool) -> None:
    with client_at(endpoint) as client:
        assert client._cluster is not None
        assert (client._cluster.channels._tls is not None) is secure


@pytest.mark.parametrize(
    ("endpoint", "sentence"),
    [
        ("a:2379:1", r"endpoint 'a:2379:1' is no host:port; write for example 10\.0\.0\.5:2379"),
        ("a,", "endpoint '' is no host:port"),
        ("a:99999", "endpoint 'a:99999' is no host:port"),
        ("etcd://a/path", "endpoint 'etcd://a/path' is no host:port"),
        ("ftp://a", "ftp:// is unknown"),
        ("http://a,https://b", "mixes http:// and https://"),
    ],
)
def test_an_endpoint_that_is_none_is_refused_in_words(endpoint: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        handler_at(endpoint)


def test_a_password_in_the_endpoint_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="username and password_file") as refusal:
        handler_at("etcd://alice:wonderland@a:2379")
    assert "wonderland" not in str(refusal.value)


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "timeout_s"),
    [({}, 5.0), ({"heartbeat_timeout": 9}, 9.0), ({"keep_alive_interval": 4, "keep_alive_max_attempt": 5}, 20.0)],
)
def test_heartbeats_are_those_of_the_backend_rallypoint(config: dict[str, object], timeout_s: float) -> None:
    member, _ = ETCD_V3.open(DEAD, fresh_run(), 1, 1, None, config)
    assert member.view.settings.heartbeat_timeout_s == timeout_s
    member.leave(Reason.WITHDREW, timeout_s=0.0)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("lease_ttl", 1, "should be a whole number, 2 or more. It says after how many seconds a server is replaced"),
        ("lease_ttl", "2.5", "should be a whole number"),
        ("server_port", "29500-29400", "should be a port such as 29500, or a range such as 29500-29510"),
        ("server_port", 70000, "should be a port such as 29500"),
        ("protocol", "https", "write https://"),
        ("lease_tll", 5, "Did you mean 'lease_ttl'?"),
        ("role", "boss", "should be one of member, spare"),
    ],
)
def test_an_option_that_does_not_fit_is_refused_in_words(name: str, value: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'") as refusal:
        handler_at(DEAD, **{name: value})
    assert sentence in str(refusal.value)


def test_a_lease_that_is_too_long_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="lease_ttl is 600 s: a dead server would not be replaced for so long"):
        handler_at(DEAD, lease_ttl=600)


def test_a_run_needs_a_name() -> None:
    params = parameters(DEAD)
    params.run_id = ""
    with pytest.raises(ValueError, match="run id is empty"):
        rallypoint.get_rendezvous_handler(params)


def test_what_torchrun_adds_is_no_harm() -> None:
    handler = handler_at(DEAD, timeout=900)
    assert handler.get_backend() == "etcd-v3"
    assert handler.num_nodes_waiting() == 0
    assert not handler.is_closed()
    handler.shutdown()


def test_names_and_passwords_go_together(tmp_path: Path) -> None:
    secret, empty = tmp_path / "secret", tmp_path / "empty"
    secret.write_text("wonderland\n", encoding="utf-8")
    empty.write_text("\n", encoding="utf-8")
    with client_at("a", username="alice", password_file=str(secret)) as client:
        assert client._cluster is not None
        assert client._cluster.user is not None
        assert (client._cluster.user.name, client._cluster.user.password) == ("alice", "wonderland")
    refused: list[tuple[dict[str, object], str]] = [
        ({"username": "alice"}, "'username' is given and 'password_file' is not"),
        ({"password_file": str(secret)}, "'password_file' is given and 'username' is not"),
        ({"username": "alice", "password_file": str(empty)}, "is empty: it should hold the password of 'alice'"),
        ({"username": "alice", "password_file": str(tmp_path / "none")}, "cannot be read: No such file or directory"),
    ]
    for config, sentence in refused:
        with pytest.raises(ValueError, match=sentence):
            client_at("a", **config)


def test_certificates_and_keys_go_together(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.write_text("hello", encoding="utf-8")
    refused: list[tuple[dict[str, object], str]] = [
        ({"cert": "x"}, "'cert' is given and 'key' is not"),
        ({"key": "x"}, "'key' is given and 'cert' is not"),
        ({"cacert": str(tmp_path / "none")}, "^The CA file '.*none' cannot be read: No such file or directory"),
        ({"cacert": str(nothing)}, "^The CA file '.*nothing' holds nothing in PEM format"),
        ({"cert": str(nothing), "key": str(nothing)}, "^The (certificate|key) '.*nothing' holds nothing in PEM format"),
    ]
    for config, sentence in refused:
        with pytest.raises(ValueError, match=sentence):
            client_at("a", **config)
    with pytest.raises(ValueError, match="the endpoints say http://, and certificates were given; write https://"):
        client_at("http://a", cacert="x")


def test_without_grpcio_the_extra_is_named() -> None:
    program = """
        import sys
        sys.modules["grpc"] = None
        import rallypoint
        try:
            rallypoint.join("etcd://a:2379", run="x")
        except ValueError as missing:
            print(missing)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "grpcio" in ran.stdout
    assert "pip install 'rallypoint[etcd]'" in ran.stdout


# What is wrong with etcd ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    with etcd() as cluster:
        enable_users(cluster)
        yield cluster


@pytest.fixture
def web() -> Iterator[str]:
    with http.server.ThreadingHTTPServer((HOST, 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{HOST}:{server.server_port}"
        server.shutdown()


def refused(endpoint: str, **config: object) -> str:
    """Why a join fails at once."""
    handler = handler_at(endpoint, **config)
    started = time.monotonic()
    try:
        with pytest.raises(RendezvousConnectionError) as refusal:
            handler.next_rendezvous()
    finally:
        handler.shutdown()
    assert time.monotonic() < started + SOON_S / 2, "there was no use in waiting"
    return str(refusal.value)


def test_users_and_passwords(guarded: Cluster, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("rabbit", encoding="utf-8")
    (tmp_path / "right").write_text("wonderland\n", encoding="utf-8")
    alice = {"username": "alice", "etcd_prefix": "alice/runs"}
    said = refused(guarded.endpoint, **alice, password_file=str(tmp_path / "wrong"))
    assert "etcd refuses the user's name or password" in said
    assert guarded.endpoint in said
    assert "rabbit" not in said
    assert "etcd wants a user, and none was given" in refused(guarded.endpoint)
    right = {"username": "alice", "password_file": str(tmp_path / "right")}
    assert "the user has no permission for that key range" in refused(guarded.endpoint, **right)
    handler = handler_at(guarded.endpoint, **alice, password_file=str(tmp_path / "right"))
    assert handler.next_rendezvous().rank == 0
    assert handler.shutdown()


def test_who_was_refused_and_is_allowed_now_joins_with_the_same_handler(guarded: Cluster, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("wonderland", encoding="utf-8")
    handler = handler_at(
        guarded.endpoint, username="alice", password_file=str(tmp_path / "password"), etcd_prefix="/later"
    )
    for _ in range(2):
        with pytest.raises(RendezvousConnectionError, match="the user has no permission for that key range"):
            handler.next_rendezvous()
    etcdctl(guarded, "role", "grant-permission", "alices", "readwrite", "/later/", "--prefix=true", user="root:secret")
    assert handler.next_rendezvous().rank == 0
    assert handler.num_nodes_waiting() == 0
    assert handler.shutdown()


def test_certificates(tmp_path: Path) -> None:
    encrypted, stranger = shared(tls=True), Certificates(tmp_path)
    files = encrypted.tls
    assert files is not None
    own = {"cert": files.cert, "key": files.key}
    said = refused(f"etcds://{encrypted.endpoint}", cacert=stranger.ca, **own)
    assert f"{encrypted.endpoint}: its certificate was not issued by an authority in the CA file" in said
    assert "client certificate" in refused(f"https://{encrypted.endpoint}", cacert=files.ca)
    handler = handler_at(f"etcds://{encrypted.endpoint}", cacert=files.ca, **own)
    assert handler.next_rendezvous().world_size == 1
    assert handler.shutdown()


def test_a_port_that_is_not_etcd(web: str) -> None:
    assert f"{web}: something listens there that is not etcd" in refused(web)


def test_an_etcd_that_is_not_there_is_waited_for_and_each_member_is_named() -> None:
    handler = handler_at(f"{DEAD},no-such-host.invalid", join_timeout=3)
    with pytest.raises(RendezvousTimeoutError) as refusal:
        handler.next_rendezvous()
    handler.shutdown()
    assert f"{DEAD}: nothing listens there (connection refused)" in str(refusal.value)
    assert "no-such-host.invalid:2379: the name is not known (DNS)" in str(refusal.value)


# Worlds ---------------------------------------------------------------------------------------------------------------


def test_handlers_form_a_world_and_finish() -> None:
    endpoint, run_id = shared().endpoint, fresh_run()
    handlers = [handler_at(endpoint, nodes=2, run_id=run_id) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        infos = list(pool.map(lambda handler: handler.next_rendezvous(), handlers))
        assert {info.rank for info in infos} == {0, 1}
        assert {info.world_size for info in infos} == {2}
        assert all(handler.use_agent_store for handler in handlers)
        infos[0].store.set("greeting", b"hello")
        assert infos[1].store.get("greeting") == b"hello"
        assert [handler.get_run_id() for handler in handlers] == [run_id, run_id]
        assert list(pool.map(lambda handler: handler.shutdown(), handlers)) == [True, True]


def test_a_store_in_etcd_is_served_by_nobody() -> None:
    handler = handler_at(shared().endpoint, store="etcd")
    info = handler.next_rendezvous()
    info.store.set("greeting", b"hello")
    assert info.store.get("greeting") == b"hello"
    assert not handler.use_agent_store
    assert info.bootstrap_store_info is not None
    # The workers' own store finds its port free.
    with socket.create_server((info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port)):
        assert handler.shutdown()


def test_one_joins_by_a_scheme() -> None:
    with rallypoint.join(f"etcd://{shared().endpoint}", run=fresh_run(), lease_ttl=2, last_call_timeout=0) as place:
        assert (place.rank, place.world_size, place.round) == (0, 1, 1)
        assert [peer.rank for peer in place.peers()] == [0]
        assert not place.changed.is_set()


def test_a_closed_run_is_closed_for_all() -> None:
    handler, other = (handler_at(shared().endpoint, run_id=run_id) for run_id in [fresh_run()] * 2)
    handler.next_rendezvous()
    handler.set_closed()
    assert handler.is_closed()
    with pytest.raises(rallypoint.RendezvousClosedError):
        other.next_rendezvous()
    handler.shutdown()
    other.shutdown()


def test_the_backend_is_one_for_all_ways_to_take_part() -> None:
    member, join_timeout_s = ETCD_V3.open(DEAD, fresh_run(), 1, 1, None, {"join_timeout": 7})
    assert join_timeout_s == 7
    assert member.run_id.startswith("run-")
    member.leave(Reason.WITHDREW, timeout_s=0.0)


def test_handlers_of_one_process_that_may_not_do_the_same_do_not_share_an_election() -> None:
    endpoint, run_id = shared().endpoint, fresh_run()
    idle = handler_at(endpoint, run_id=run_id, is_host=False)
    handler = handler_at(endpoint, run_id=run_id)
    assert handler.next_rendezvous().rank == 0
    assert handler.shutdown()
    idle.shutdown()
