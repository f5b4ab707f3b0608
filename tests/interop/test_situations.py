"""What torch's own tests of its rendezvous modules ask and the comparison does not: the same code on torch's and on ours."""

from __future__ import annotations

import subprocess
import tempfile
import uuid
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from rallypoint import stores
from tests.interop.libraries import Library, Meeting
from tests.support.etcd_servers import binary, shared
from tests.support.node_processes import free_port
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture(params=["torch", "rallypoint"])
def library(request: pytest.FixtureRequest) -> Library:
    return Library(request.param)


@pytest.fixture
def meeting(library: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meeting]:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    made = Meeting(library, dist.HashStore())
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def run_id() -> str:
    """A run that nobody else has."""
    return f"situations-{uuid.uuid4().hex}"


# c10d -----------------------------------------------------------------------------------------------------------------


def test_an_endpoint_without_a_port_has_the_default_one(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(library.c10d_rendezvous_backend, "DEFAULT_PORT", port)
    _, store = library.c10d_rendezvous_backend.create_backend(library.params("c10d", "localhost"))
    assert (store.host, store.port) == ("localhost", port)


@pytest.mark.parametrize("is_host", ["true", "false"])
def test_a_host_that_nobody_knows_is_a_connection_error(library: Library, is_host: str) -> None:
    params = library.params("c10d", f"no-such-host.invalid:{free_port()}", is_host=is_host, read_timeout=1)
    with pytest.raises(library.api.RendezvousConnectionError):
        library.c10d_rendezvous_backend.create_backend(params)


@pytest.mark.parametrize("store_type", ["tcp", "file"])
def test_the_document_lies_as_base64_under_the_runs_name(library: Library, store_type: str, tmp_path: Path) -> None:
    endpoint = str(tmp_path / "store") if store_type == "file" else f"localhost:{free_port()}"
    backend, store = library.c10d_rendezvous_backend.create_backend(
        library.params("c10d", endpoint, store_type=store_type)
    )
    backend.set_state(b"one")
    assert store.get("torch.rendezvous.run") == b64encode(b"one")


def test_the_handle_of_a_private_file_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.13 leaves it open; its later tests ask for this."""
    ours = Library("rallypoint")
    made: list[tuple[int, str]] = []
    make = tempfile.mkstemp

    def noting(*args: Any, **kwargs: Any) -> tuple[int, str]:
        made.append(make(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkstemp", noting)
    ours.c10d_rendezvous_backend.create_backend(ours.params("c10d", "", store_type="file"))
    ((handle, path),) = made
    held = Path(f"/proc/self/fd/{handle}")
    assert not held.exists() or str(held.readlink()) != path, "the number may be another file's by now"
    Path(path).unlink()


# etcd-v2 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "read_timeout"), [({}, 60), ({"read_timeout": "10", "protocol": "hTTp"}, 10)])
def test_the_backend_on_etcd_has_its_known_places(
    library: Library, given: dict[str, Any], read_timeout: int, run_id: str
) -> None:
    params = library.params("etcd-v2", shared().endpoint, run_id=run_id, **given)
    backend, store = library.etcd_rendezvous_backend.create_backend(params)
    assert backend.name == "etcd-v2"
    assert isinstance(store, library.etcd_store.EtcdStore)
    assert store.client.read_timeout == read_timeout
    backend.set_state(b"one")
    store.set(run_id, "value")
    document = shared().client().read(f"/torch/elastic/rendezvous/{run_id}")
    assert document.value == b64encode(b"one").decode()
    assert 7100 < document.ttl <= 7200
    value = shared().client().read(f"/torch/elastic/store/{b64encode(run_id.encode()).decode()}")
    assert value.value == b64encode(b"value").decode()


def test_a_get_waits_for_its_key(library: Library, run_id: str) -> None:
    _, store = library.etcd_rendezvous_backend.create_backend(
        library.params("etcd-v2", shared().endpoint, run_id=run_id)
    )
    _, other = library.etcd_rendezvous_backend.create_backend(
        library.params("etcd-v2", shared().endpoint, run_id=run_id)
    )
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, run_id)
        assert not other.check([run_id])
        other.set(run_id, b"value")
        assert waiting.result(PATIENCE_S) == b"value"


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The options that bring a client's certificate to an etcd that asks for one."""
    tls = shared(tls=True).tls
    assert tls is not None
    both = tmp_path / "both.pem"
    both.write_text(Path(tls.cert).read_text(encoding="ascii") + Path(tls.key).read_text(encoding="ascii"))
    return {
        "two files": {"ssl_cert": tls.cert, "ssl_cert_key": tls.key, "ca_cert": tls.ca},
        "one file": {"ssl_cert": str(both), "ca_cert": tls.ca},
        "one file, an empty key": {"ssl_cert": str(both), "ssl_cert_key": "", "ca_cert": tls.ca},
        "none": {"ca_cert": tls.ca},
    }


@pytest.mark.parametrize("how", ["two files", "one file", "one file, an empty key"])
def test_a_client_shows_its_certificate_to_etcd(
    library: Library, certificates: dict[str, dict[str, Any]], how: str, run_id: str
) -> None:
    params = library.params("etcd-v2", shared(tls=True).endpoint, run_id=run_id, protocol="HTTPS", **certificates[how])
    backend, store = library.etcd_rendezvous_backend.create_backend(params)
    _, token, was_set = backend.set_state(b"one")
    assert was_set
    assert backend.get_state() == (b"one", token)
    assert store.add(run_id, 2) == 2


def test_a_client_without_a_certificate_is_refused(
    library: Library, certificates: dict[str, dict[str, Any]], run_id: str
) -> None:
    params = library.params(
        "etcd-v2", shared(tls=True).endpoint, run_id=run_id, protocol="https", read_timeout=2, **certificates["none"]
    )
    with pytest.raises(library.api.RendezvousConnectionError):
        library.etcd_rendezvous_backend.create_backend(params)


@pytest.mark.filterwarnings("ignore:Exception in thread .*lease_worker:pytest.PytestUnhandledThreadExceptionWarning")
def test_an_etcd_of_ones_own_serves_a_run(library: Library, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", binary("3.5"))
    server = library.etcd_server.EtcdServer()
    server.start(stderr=subprocess.DEVNULL)
    try:
        assert (server.get_host(), server.get_port() > 0) == ("localhost", True)
        assert server.get_endpoint() == f"localhost:{server.get_port()}"
        assert server.get_client().version is not None
        params = library.params(
            "etcd",
            server.get_endpoint(),
            run_id=run_id,
            max_nodes=1,
            local_addr="127.0.0.1",
            timeout=60,
            last_call_timeout=30,
            protocol="http",
        )
        handler = library.etcd_rendezvous.create_rdzv_handler(params)
        assert (handler.get_backend(), handler.get_run_id()) == ("etcd", run_id)
        info = handler.next_rendezvous()
        assert (info.rank, info.world_size, info.store is None) == (0, 1, False)
        del handler, info  # with it end the threads that keep its keys alive
    finally:
        server.stop()


# static ---------------------------------------------------------------------------------------------------------------


def test_a_static_place_is_the_same_each_time(library: Library) -> None:
    handler = library.registry.get_rendezvous_handler(
        library.params("static", f"localhost:{free_port()}", rank=0, timeout=10, max_nodes=1)
    )
    for _ in range(2):
        info = handler.next_rendezvous()
        assert (info.rank, info.world_size) == (0, 1)
        info.store.set("key", "value")


@pytest.mark.parametrize("endpoint", ["[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:90", "[::1]:90"])
def test_a_static_run_needs_a_rank_at_any_address(library: Library, endpoint: str) -> None:
    with pytest.raises(ValueError, match="rank"):
        library.static_tcp_rendezvous.create_rdzv_handler(library.params("static", endpoint))


# FileStore ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "prefix"])
def test_a_store_in_a_file_says_of_every_key_that_it_deleted_it(library: Library, prefix: str, tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    store: Any = dist.FileStore(path) if library.name == "torch" else stores.FileStore(path)
    if prefix:
        store = (dist.PrefixStore if library.name == "torch" else stores.PrefixStore)(prefix, store)
    assert store.delete_key("key") is True
    store.set("key", "value")
    assert store.delete_key("key") is True
    assert not store.check(["key"])
    assert store.delete_key("key") is True


# The handler ----------------------------------------------------------------------------------------------------------


def test_a_backend_that_never_says_anything_is_enough_for_one_node(library: Library) -> None:
    class SilentBackend(library.dynamic_rendezvous.RendezvousBackend):  # type: ignore[misc,name-defined]
        name = "silent"

        def get_state(self) -> None:
            return None

        def set_state(self, state: bytes, token: Any) -> None:
            return None

    params = library.params("silent", min_nodes=1, max_nodes=1, local_addr="127.0.0.2")
    handler = library.dynamic_rendezvous.create_handler(dist.HashStore(), SilentBackend(), params)
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert info.bootstrap_store_info.master_addr == "127.0.0.2"
    handler._stop_heartbeats()


def test_rounds_follow_each_other(meeting: Meeting) -> None:
    handler = meeting.handler(1, 1)
    for _ in range(4):
        (info,) = meeting.meet(handler)
        assert (info.rank, info.world_size) == (0, 1)
        assert info.store.add("met", 1) == 1


def test_a_surplus_node_takes_the_place_of_a_silent_one(meeting: Meeting) -> None:
    first, silent, surplus = (meeting.handler(1, 2, keep_alive_max_attempt=2) for _ in range(3))
    meeting.meet(first, silent)
    (standing_by,) = meeting.join(surplus)
    until(lambda: meeting.nodes() == 3)
    assert not standing_by.done()
    silent._stop_heartbeats()
    until(lambda: first.num_nodes_waiting() > 0)
    (info,) = meeting.meet(first)
    assert {info.world_size, standing_by.result(PATIENCE_S).world_size} == {2}
    assert {info.rank, standing_by.result().rank} == {0, 1}


def test_an_error_of_the_backend_reaches_who_joins(meeting: Meeting) -> None:
    def fail(*_: object) -> None:
        raise meeting.library.api.RendezvousStateError("it is damaged")

    meeting.backend.get_state = fail
    with pytest.raises(meeting.library.api.RendezvousStateError):
        meeting.handler(1, 1).next_rendezvous()
