"""The document under one key of a c10d store: torch's stores and ours, over TCP and in a file."""

from __future__ import annotations

import http.server
import socket
import tempfile
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from rallypoint import events
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.c10d_rendezvous_backend import C10dRendezvousBackend, create_backend, create_handler
from rallypoint.elastic.registry import get_rendezvous_handler
from rallypoint.elastic.utils import _parse_rendezvous_config
from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rallypoint.stores import MemoryStore, TcpStore
from rallypoint.stores.file.store import FileStore
from rallypoint.torch_bridge import stores_c10d
from tests.support.node_processes import Processes, free_port

KEY = "torch.rendezvous.run"
SHORT = timedelta(seconds=5)

STORES: dict[str, Callable[[Path], Any]] = {
    # It looks up the names of its clients, which may take seconds.
    "torch tcp": lambda _: dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
    "torch file": lambda folder: dist.FileStore(str(folder / "store")),
    "torch hash": lambda _: dist.HashStore(),
    "our tcp": lambda _: TcpStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=SHORT),
    "our file": lambda folder: FileStore(folder / "store"),
    "our memory": lambda _: MemoryStore(),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made = STORES[request.param](tmp_path)
    yield made
    if isinstance(made, (TcpStore, FileStore)):
        made.close()


@pytest.fixture(params=[True, False], ids=["torch's stores", "our stores"])
def with_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(stores_c10d, "has_torch", lambda: request.param)
    return bool(request.param)


def params(endpoint: str = "", run_id: str = "run", **options: Any) -> RendezvousParameters:
    return RendezvousParameters("c10d", endpoint, run_id, 2, 2, local_addr="127.0.0.1", **options)


# The backend ----------------------------------------------------------------------------------------------------------


def test_a_run_needs_a_name() -> None:
    with pytest.raises(ValueError, match="The run id is empty"):
        C10dRendezvousBackend(MemoryStore(), "")


def test_an_empty_place_is_told_without_waiting(store: Any) -> None:
    backend = C10dRendezvousBackend(store, "run")
    assert backend.name == "c10d"
    assert backend.get_state() is None
    assert backend.get_state() is None


def test_the_first_to_write_without_a_token_writes(store: Any) -> None:
    backend = C10dRendezvousBackend(store, "run")
    first = backend.set_state(b"one")
    assert first is not None
    assert (first[0], first[2]) == (b"one", True)
    second = backend.set_state(b"two")
    assert second == (b"one", first[1], False)
    assert backend.get_state() == (b"one", first[1])


def test_a_token_that_matches_writes_and_another_does_not(store: Any) -> None:
    backend = C10dRendezvousBackend(store, "run")
    first = backend.set_state(b"one")
    assert first is not None
    second = backend.set_state(b"two", first[1])
    assert second is not None
    assert (second[0], second[2]) == (b"two", True)
    assert backend.set_state(b"three", first[1]) == (b"two", second[1], False)


@pytest.mark.parametrize("token", ["text", 5, object(), ("dummy",)])
def test_a_token_of_another_kind_does_not_match(store: Any, token: object) -> None:
    backend = C10dRendezvousBackend(store, "run")
    assert backend.set_state(b"nothing yet", token) is None
    backend.set_state(b"one")
    there = backend.set_state(b"two", token)
    assert there is not None
    assert (there[0], there[2]) == (b"one", False)


@pytest.mark.parametrize("token", [b64encode(b"one"), b64encode(b"another")])
def test_a_token_for_an_empty_place_writes_nothing(store: Any, token: bytes) -> None:
    backend = C10dRendezvousBackend(store, "run")
    assert backend.set_state(b"one", token) is None
    assert backend.get_state() is None


def test_what_is_there_may_be_written_again(store: Any) -> None:
    backend = C10dRendezvousBackend(store, "run")
    first = backend.set_state(b"one")
    assert first is not None
    assert backend.set_state(b"one", first[1]) == (b"one", first[1], True)


def test_the_value_is_base64_under_torchs_key(store: Any) -> None:
    C10dRendezvousBackend(store, "run").set_state(b"\x00one")
    assert b64decode(store.get(KEY)) == b"\x00one"


def test_what_is_no_base64_is_a_state_error(store: Any) -> None:
    store.set(KEY, "#damaged#")
    backend = C10dRendezvousBackend(store, "run")
    with pytest.raises(RendezvousStateError, match="should hold base64"):
        backend.get_state()
    with pytest.raises(RendezvousStateError):
        backend.set_state(b"one")


def test_a_store_that_fails_is_a_connection_error() -> None:
    with TcpStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) as store:
        backend = C10dRendezvousBackend(store, "run")
    with pytest.raises(
        RendezvousConnectionError, match=r"the store of the run cannot be used: .* it closed the connection"
    ):
        backend.get_state()
    with pytest.raises(RendezvousConnectionError):
        backend.set_state(b"one")


def test_of_many_writers_one_wins(store: Any) -> None:
    backend = C10dRendezvousBackend(store, "run")
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: backend.set_state(f"by {n}".encode()), range(8)))
    assert sum(result is not None and result[2] for result in results) == 1


# Making one -----------------------------------------------------------------------------------------------------------


def test_the_first_serves_and_the_next_connects(with_torch: bool) -> None:
    endpoint = f"localhost:{free_port()}"
    first, served = create_backend(params(endpoint, store_type=" TCP "))
    second, used = create_backend(params(endpoint))
    assert first.hosts_store
    assert second.hosts_store, "this process serves the store, whichever of its backends began"
    assert isinstance(served, dist.TCPStore if with_torch else TcpStore)
    assert served.timeout == timedelta(seconds=60)
    first.set_state(b"one")
    there = second.get_state()
    assert there is not None
    assert there[0] == b"one"
    _close(served, used)


def test_who_insists_on_hosting_hosts_or_fails(with_torch: bool) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RendezvousConnectionError, match=f"is_host is set, but no store can be served on .*:{port}"):
            create_backend(params(f"127.0.0.1:{port}", is_host="yes", read_timeout=1))


def test_several_of_one_process_may_insist(with_torch: bool) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    made = [create_backend(params(endpoint, is_host=True)) for _ in range(2)]
    made[0][0].set_state(b"one")
    assert made[1][0].get_state() is not None
    _close(*(store for _, store in made))


def test_a_server_that_starts_late_is_waited_for(with_torch: bool) -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(create_backend, params(f"127.0.0.1:{port}", is_host=False, read_timeout=20))
        _, served = create_backend(params(f"127.0.0.1:{port}", is_host=True))
        _, used = early.result(20)
    _close(served, used)


def test_nobody_there_is_a_connection_error_with_its_cause(with_torch: bool) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    with pytest.raises(RendezvousConnectionError, match=f"no c10d store answered at {endpoint} within 0.5 s") as caught:
        create_backend(params(endpoint, is_host=False, read_timeout=0.5))
    assert caught.value.__cause__ is not None


def test_a_rallypoint_server_at_the_endpoint_is_named(with_torch: bool) -> None:
    processes = Processes()
    try:
        endpoint = processes.server().endpoint
        with pytest.raises(
            RendezvousConnectionError, match="a rallypoint server is there: use the backend 'rallypoint'"
        ):
            create_backend(params(endpoint, read_timeout=10))
    finally:
        processes.end()


def test_an_http_server_at_the_endpoint_is_named(with_torch: bool) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(RendezvousConnectionError, match="an HTTP server is there: use another port"):
                create_backend(params(f"127.0.0.1:{server.server_port}", read_timeout=10))
        finally:
            server.shutdown()


class _Quiet(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"store_type": "carrier pigeon"}, "store_type"),
        ({"read_timeout": 0}, "read_timeout"),
        ({"read_timeout": "-1"}, "read_timeout"),
        ({"read_timeout": "soon"}, "read_timeout"),
        ({"is_host": "perhaps"}, "is_host"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create_backend(params(f"127.0.0.1:{free_port()}", **options))


def test_an_endpoint_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="'localhost:abc'"):
        create_backend(params("localhost:abc"))


def test_a_file_is_shared_by_its_path(with_torch: bool, tmp_path: Path) -> None:
    path = tmp_path / "run"
    (first, one), (second, two) = (create_backend(params(str(path), store_type="File")) for _ in range(2))
    first.set_state(b"one")
    there = second.get_state()
    assert there is not None
    assert there[0] == b"one"
    assert isinstance(one, dist.FileStore if with_torch else FileStore)
    assert not first.hosts_store
    _close(one, two)


def test_without_an_endpoint_the_file_is_a_private_one(
    with_torch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    backend, store = create_backend(params(store_type="file"))
    backend.set_state(b"one")
    assert len(list(tmp_path.iterdir())) >= 1
    _close(store)


def test_a_file_that_cannot_be_made_is_an_error(
    with_torch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RendezvousError, match="there is no folder"):
        create_backend(params(str(tmp_path / "no" / "file"), store_type="file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(RendezvousError, match="give a path as the endpoint"):
        create_backend(params(store_type="file"))


def test_creation_and_failure_are_recorded(with_torch: bool, tmp_path: Path) -> None:
    heard: list[events.Event] = []
    with events.subscribe(heard.append):
        _, store = create_backend(params(str(tmp_path / "run"), store_type="file"))
        with pytest.raises(RendezvousError):
            create_backend(params(str(tmp_path / "no" / "file"), store_type="file"))
    assert [event.kind for event in heard] == ["backend created", "backend failed"]
    assert "there is no folder" in heard[1].why
    _close(store)


# Handlers -------------------------------------------------------------------------------------------------------------

FAST: dict[str, Any] = {"join_timeout": 20, "keep_alive_interval": 0.2, "keep_alive_max_attempt": 5, "close_timeout": 5}


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_nodes_meet_through_the_registry(with_torch: bool, kind: str, tmp_path: Path) -> None:
    endpoint = str(tmp_path / "run") if kind == "file" else f"127.0.0.1:{free_port()}"
    handlers = [get_rendezvous_handler(params(endpoint, store_type=kind, **FAST)) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        infos = list(pool.map(lambda handler: handler.next_rendezvous(), handlers))
        assert sorted(info.rank for info in infos) == [0, 1]
        infos[0].store.set("greeting", "hello")
        assert infos[1].store.get("greeting") == b"hello"
        kind_of_store = type(infos[0].store)
        assert kind_of_store.__module__.startswith("torch" if with_torch else "rallypoint")
        assert all(pool.map(lambda handler: handler.shutdown(), handlers))
    _close(*(handler._store for handler in handlers))  # type: ignore[attr-defined]


def test_an_option_that_nobody_knows_is_warned_of_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handler = create_handler(params(str(tmp_path / "run"), store_type="file", join_timout=3))
    assert handler.settings.timeout.join.total_seconds() == 600
    assert caplog.messages == [
        "The backend 'c10d' has no option 'join_timout', and ignores it. Did you mean 'join_timeout'?"
    ]


def test_quotes_that_a_shell_left_in_a_configuration_are_taken_as_torch_takes_them(tmp_path: Path) -> None:
    """The first name has a quote then, so that nobody knows it; what is between two commas counts."""
    config = _parse_rendezvous_config("'join_timeout=5,last_call_timeout=1,timeout=5'")
    handler = create_handler(params(str(tmp_path / "run"), store_type="file", **config))
    timeout = handler.settings.timeout
    assert (timeout.join.total_seconds(), timeout.last_call.total_seconds()) == (600, 1)


def test_torchruns_own_addition_is_accepted(tmp_path: Path) -> None:
    handler = create_handler(params(str(tmp_path / "run"), store_type="file", timeout=900))
    assert handler.get_backend() == "c10d"


def _close(*stores: Any) -> None:
    for store in stores:
        if hasattr(store, "close"):
            store.close()
