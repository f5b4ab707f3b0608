"""The backend etcd-v2: its key, its options, its errors, and answers that get lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError as TorchConnectionError
from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend as TorchBackend

from rallypoint import events
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.etcd_rendezvous_backend import EtcdRendezvousBackend, create_backend, create_handler
from rallypoint.elastic.etcd_store import EtcdStore
from rallypoint.elastic.registry import get_rendezvous_handler
from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from tests.etcd_v2.answer_losing_proxy import Proxy
from tests.support.etcd_servers import Certificates, Cluster, running, shared, wait_until

PREFIX = "/torch/elastic/rendezvous"


def params(endpoint: str, run_id: str, nodes: int = 1, **config: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd-v2", endpoint, run_id, nodes, nodes, local_addr="127.0.0.1", **config)


@pytest.fixture
def backend(client: Any, name: str) -> EtcdRendezvousBackend:
    return EtcdRendezvousBackend(client, name, "/documents")


def test_the_document_is_base64_under_prefix_and_run_id_for_two_hours(
    backend: EtcdRendezvousBackend, client: Any, name: str
) -> None:
    assert backend.name == "etcd-v2"
    assert backend.get_state() is None
    written = backend.set_state(b"x")
    node = client.read(f"/documents/{name}")
    assert (node.value, written) == (b64encode(b"x").decode(), (b"x", node.modifiedIndex, True))
    assert 7100 < node.ttl <= 7200
    assert backend.get_state() == (b"x", node.modifiedIndex)


def test_a_time_to_live_may_be_given(client: Any, name: str) -> None:
    EtcdRendezvousBackend(client, name, "/documents/", ttl=100).set_state(b"x")
    assert 90 < client.read(f"/documents/{name}").ttl <= 100


def test_a_document_that_is_only_read_lives_on(
    backend: EtcdRendezvousBackend, client: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.set_state(b"x")
    client.write(f"/documents/{name}", b64encode(b"x").decode(), ttl=50)
    monkeypatch.setattr(backend, "_prolong_at", 0.0)
    found = backend.get_state()
    assert found is not None
    assert 7100 < client.read(f"/documents/{name}").ttl <= 7200
    assert backend.set_state(b"y", found[1]) is not None
    assert backend.get_state() != found


def test_the_right_token_writes_and_another_changes_nothing(backend: EtcdRendezvousBackend) -> None:
    first = backend.set_state(b"1")
    assert first is not None
    second = backend.set_state(b"2", first[1])
    assert second is not None
    assert second[0] == b"2"
    assert second[2]
    assert backend.set_state(b"3", first[1]) == (b"2", second[1], False)
    assert backend.set_state(b"3") == (b"2", second[1], False)
    for nonsense in ("text", b"bytes", 1.5, True, ("a",)):
        assert backend.set_state(b"3", nonsense) == (b"2", second[1], False)
    assert backend.get_state() == (b"2", second[1])


def test_a_token_of_a_document_that_is_gone_writes_nothing(
    backend: EtcdRendezvousBackend, client: Any, name: str
) -> None:
    written = backend.set_state(b"x")
    assert written is not None
    client.delete(f"/documents/{name}")
    with pytest.raises(RendezvousConnectionError, match="it has expired or was deleted"):
        backend.set_state(b"y", written[1])
    assert backend.set_state(b"y", "text") is None
    assert backend.get_state() is None


@pytest.mark.parametrize("kind", ["torch", "ours"])
def test_tokens_are_taken_as_torch_takes_them(client: Any, name: str, kind: str) -> None:
    backend: Any = (TorchBackend if kind == "torch" else EtcdRendezvousBackend)(client, name, "/documents")
    _, index, _ = backend.set_state(b"1")
    for falsy in (0, "", b"", None):
        assert backend.set_state(b"2", falsy) == (b"1", index, False)
    for form in (str, lambda number: str(number).encode(), float, int):
        _, index, was_set = backend.set_state(b"2", form(index))
        assert was_set
    assert backend.set_state(b"3", "text") == (b"2", index, False)
    client.delete(f"/documents/{name}")
    errors = (RendezvousConnectionError, TorchConnectionError)
    with pytest.raises(errors):
        backend.set_state(b"3", index)
    assert backend.set_state(b"3", "0")[2], "a text that is 0 is no token"


def test_what_is_no_document_is_a_state_error(backend: EtcdRendezvousBackend, client: Any, name: str) -> None:
    client.write(f"/documents/{name}", "not base64")
    with pytest.raises(RendezvousStateError, match=r"should hold base64, and begins with b'not base64'"):
        backend.get_state()
    with pytest.raises(RendezvousStateError):
        backend.set_state(b"x")


def test_an_empty_run_id_is_refused(client: Any) -> None:
    with pytest.raises(ValueError, match="run id is empty"):
        EtcdRendezvousBackend(client, "", "/documents")


# Answers that get lost ------------------------------------------------------------------------------------------------


def test_a_write_whose_answer_is_lost_is_reported_as_written(proxy: Proxy, proxied: Any, name: str) -> None:
    backend = EtcdRendezvousBackend(proxied, name, "/documents")
    proxy.lose_answer_to("PUT")
    first = backend.set_state(b"1")
    assert first is not None
    assert first[2]
    assert backend.get_state() == (b"1", first[1])
    proxy.lose_answer_to("PUT", "PUT")
    second = backend.set_state(b"2", first[1])
    assert second is not None
    assert second[2]
    assert backend.get_state() == (b"2", second[1])
    assert proxy.lost == 3


def test_a_refusal_whose_answer_is_lost_is_reported_as_refused(
    proxy: Proxy, proxied: Any, one_etcd: Cluster, name: str
) -> None:
    backend = EtcdRendezvousBackend(proxied, name, "/documents")
    other = EtcdRendezvousBackend(one_etcd.client(), name, "/documents")
    first = backend.set_state(b"1")
    assert first is not None
    theirs = other.set_state(b"theirs", first[1])
    assert theirs is not None
    proxy.lose_answer_to("PUT")
    assert backend.set_state(b"2", first[1]) == (b"theirs", theirs[1], False)
    assert proxy.lost == 1


def test_a_write_that_was_overwritten_before_its_answer_came_was_written_all_the_same(
    proxy: Proxy, proxied: Any, one_etcd: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rallypoint.stores.etcd_v2.keys import Keys

    backend = EtcdRendezvousBackend(proxied, name, "/documents")
    other = EtcdRendezvousBackend(one_etcd.client(), name, "/documents")
    first = backend.set_state(b"1")
    assert first is not None
    turn = Keys._pause

    def overwrite(self: Keys, *args: Any) -> None:
        # Between the lost answer and the next attempt.
        there = other.get_state()
        assert there is not None
        assert there[0] == b"2"
        assert other.set_state(b"theirs", there[1]) is not None
        turn(self, *args)

    monkeypatch.setattr(Keys, "_pause", overwrite)
    proxy.lose_answer_to("PUT")
    second = backend.set_state(b"2", first[1])
    assert second is not None
    assert (second[0], second[2]) == (b"2", True)
    there = backend.get_state()
    assert there is not None
    assert there[0] == b"theirs"
    assert second[1] < there[1]


# create_backend -------------------------------------------------------------------------------------------------------


def test_create_backend_uses_the_known_places(etcd: Cluster, name: str) -> None:
    recorded: list[events.Event] = []
    with events.subscribe(recorded.append):
        backend, store = create_backend(params(etcd.endpoint, name))
    assert isinstance(store, EtcdStore)
    backend.set_state(b"x")
    store.set(name, "value")
    client = etcd.client()
    assert client.read(f"{PREFIX}/{name}").value == b64encode(b"x").decode()
    there = client.read(f"/torch/elastic/store/{b64encode(name.encode()).decode()}")
    assert there.value == b64encode(b"value").decode()
    assert 7100 < there.ttl <= 7200
    assert [event.kind for event in recorded] == ["backend created"]


def test_https_with_client_certificates(name: str) -> None:
    cluster = shared("3.5", tls=True)
    assert cluster.tls is not None
    files: dict[str, Any] = {"ssl_cert": cluster.tls.cert, "ssl_cert_key": cluster.tls.key, "ca_cert": cluster.tls.ca}
    backend, store = create_backend(params(cluster.endpoint, name, protocol="HTTPS", **files))
    assert backend.set_state(b"x") is not None
    reader = threading.Thread(target=store.get, args=(name,))
    reader.start()
    store.set(name, "value")
    reader.join(30)
    assert not reader.is_alive()
    handler = create_handler(params(cluster.endpoint, f"{name}-2", protocol="https", **files))
    assert handler.next_rendezvous().world_size == 1
    handler.shutdown()

    with pytest.raises(RendezvousConnectionError, match=r"is http what it speaks"):
        create_backend(params(cluster.endpoint, name, read_timeout=1))


def test_a_client_without_the_right_certificates_is_refused_in_words(name: str, tmp_path: Path) -> None:
    cluster, stranger = shared("3.5", tls=True), Certificates(tmp_path)
    assert cluster.tls is not None
    right: dict[str, Any] = {
        "ssl_cert": cluster.tls.cert,
        "ssl_cert_key": cluster.tls.key,
        "ca_cert": cluster.tls.ca,
    }
    wrong: list[dict[str, Any]] = [
        {},
        {"ca_cert": cluster.tls.ca},
        {**right, "ssl_cert": stranger.cert, "ssl_cert_key": stranger.key},
        {**right, "ca_cert": stranger.ca},
    ]
    words = "do not trust each other", "has each side a certificate that the other side's authority has signed?"

    def is_told(given: dict[str, Any]) -> bool:
        with pytest.raises(RendezvousConnectionError, match="is not reached") as told:
            create_handler(params(cluster.endpoint, name, protocol="https", read_timeout=2, **given))
        return all(part in str(told.value) for part in words)

    for given in wrong:
        wait_until(partial(is_told, given))  # a busy machine may be too slow to say more than that
    handler = create_handler(params(cluster.endpoint, name, protocol="https", **right))
    assert handler.next_rendezvous().world_size == 1
    handler.shutdown()


def test_a_cluster_with_certificates_goes_on_when_a_member_dies(name: str) -> None:
    with running("3.5", 3, tls=True) as cluster:
        assert cluster.tls is not None
        files: dict[str, Any] = {
            "ssl_cert": cluster.tls.cert,
            "ssl_cert_key": cluster.tls.key,
            "ca_cert": cluster.tls.ca,
        }
        backend, store = create_backend(params(cluster.endpoints, name, protocol="https", **files))
        first = backend.set_state(b"1")
        assert first is not None
        cluster.members[0].kill()
        second = backend.set_state(b"2", first[1])
        assert second is not None
        assert second[2]
        assert store.add("n", 5) == 5


@pytest.mark.parametrize(
    ("option", "value"), [("read_timeout", "0"), ("read_timeout", "-1"), ("read_timeout", "x"), ("protocol", "gopher")]
)
def test_a_bad_option_is_a_value_error(option: str, value: Any, one_etcd: Cluster) -> None:
    with pytest.raises(ValueError, match=option):
        create_backend(params(one_etcd.endpoint, "run", **{option: value}))


def test_an_unknown_option_is_warned_of_and_ignored(
    one_etcd: Cluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_handler(params(one_etcd.endpoint, name, raed_timeout=5, is_host=True, ssl_cert="", ca_cert=""))
    warned = "The backend 'etcd-v2' has no option 'raed_timeout', and ignores it. Did you mean 'read_timeout'?"
    assert [record.getMessage() for record in caplog.records if "option" in record.getMessage()] == [warned]


@pytest.mark.parametrize("endpoint", ["127.0.0.1:1", "no-such-host.invalid:2379"])
def test_etcd_that_is_not_there_is_a_connection_error(endpoint: str) -> None:
    recorded: list[events.Event] = []
    with (
        events.subscribe(recorded.append),
        pytest.raises(RendezvousConnectionError, match=rf"etcd at {endpoint} is not reached: .* is it running there"),
    ):
        create_backend(params(endpoint, "run", read_timeout=1))
    assert [event.kind for event in recorded] == ["backend failed"]


@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_an_etcd_whose_api_v2_is_off_is_told_in_words(version: str) -> None:
    cluster = shared(version, v2=False)
    with pytest.raises(
        RendezvousConnectionError, match=r"does not speak the API v2: start it with --enable-v2.*'etcd-v3'"
    ):
        create_backend(params(cluster.endpoint, "run"))


def test_without_python_etcd_the_error_names_the_extra(one_etcd: Cluster) -> None:
    program = f"""
import sys
sys.modules["etcd"] = None
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.registry import get_rendezvous_handler
for backend in ("etcd-v2", "etcd"):
    try:
        get_rendezvous_handler(RendezvousParameters(backend, {one_etcd.endpoint!r}, "run", 1, 1))
    except ValueError as exc:
        print(exc)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.count("install rallypoint[etcd-v2]") == 2


@pytest.mark.parametrize("backend", ["etcd-v2", "etcd"])
def test_both_are_registered(one_etcd: Cluster, name: str, backend: str) -> None:
    handler = get_rendezvous_handler(
        RendezvousParameters(backend, one_etcd.endpoint, name, 1, 1, local_addr="127.0.0.1")
    )
    assert handler.get_backend() == backend
    assert handler.next_rendezvous().world_size == 1
    assert handler.shutdown()


# The handler on it ----------------------------------------------------------------------------------------------------
