"""A program that has imported torch gets torch's classes and torch's events from our handlers, outside torchrun too."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.elastic import events as torch_events
from torch.distributed.elastic import rendezvous as torch_api

import rallypoint
from rallypoint import elastic, events
from rallypoint.elastic.c10d_rendezvous_backend import C10dRendezvousBackend, create_backend
from rallypoint.elastic.dynamic_rendezvous import create_handler
from tests.support.etcd_servers import shared
from tests.support.node_processes import free_port

SOON = {"join_timeout": 0.2, "last_call_timeout": 1}
BACKENDS = ("rallypoint", "c10d", "static", "etcd", "etcd-v2", "etcd-v3")


def params(backend: str, endpoint: str, run_id: str = "run", **config: Any) -> elastic.RendezvousParameters:
    return elastic.RendezvousParameters(backend, endpoint, run_id, 2, 2, local_addr="127.0.0.1", **{**SOON, **config})


@pytest.fixture(params=BACKENDS)
def lonely(request: pytest.FixtureRequest) -> Iterator[elastic.RendezvousHandler]:
    """A handler of each backend, whose join fails soon: nobody else comes."""
    backend, run_id = request.param, f"presence-{uuid.uuid4().hex}"
    endpoint = shared().endpoint if backend.startswith("etcd") else f"127.0.0.1:{free_port()}"
    # The older backend must also find its etcd within that time.
    config: dict[str, Any] = {"static": {"rank": 1, "timeout": 1}, "etcd": {"timeout": 3}}.get(backend, {})
    handler = elastic.get_rendezvous_handler(params(backend, endpoint, run_id, **config))
    yield handler
    handler.shutdown()


def fail_to_join(handler: elastic.RendezvousHandler) -> Exception:
    """What the handler's join raises, which is one of torch's errors."""
    # Nobody is awaited in a static run: what is missing is rank 0, which serves the store.
    is_static = handler.get_backend() == "static"
    with pytest.raises(torch_api.RendezvousConnectionError if is_static else torch_api.RendezvousTimeoutError) as error:
        handler.next_rendezvous()
    failure: Exception = error.value
    return failure


def test_a_handler_is_one_of_torchs(lonely: elastic.RendezvousHandler) -> None:
    assert isinstance(lonely, torch_api.RendezvousHandler)


def test_a_join_that_fails_is_caught_by_torchs_class_and_by_ours(lonely: elastic.RendezvousHandler) -> None:
    error = fail_to_join(lonely)
    if lonely.get_backend() == "static":
        assert isinstance(error, elastic.RendezvousConnectionError)
        assert "no c10d store answered at" in str(error)
    else:
        assert isinstance(error, elastic.RendezvousTimeoutError)
        assert "was not joined within" in str(error)


def test_a_place_that_is_not_found_is_caught_by_torchs_class_as_well() -> None:
    with pytest.raises(torch_api.RendezvousTimeoutError):
        rallypoint.join(f"127.0.0.1:{free_port()}", run="run", nodes=2, join_timeout=0.2, quiet=True)


def test_a_backend_that_fails_is_caught_by_torchs_class_and_by_ours() -> None:
    class Broken:
        def compare_set(self, *_: object) -> bytes:
            raise RuntimeError("it broke")

    with pytest.raises(torch_api.RendezvousConnectionError) as failure:
        C10dRendezvousBackend(Broken(), "run")
    assert isinstance(failure.value, elastic.RendezvousConnectionError)
    with pytest.raises(torch_api.RendezvousConnectionError):
        elastic.get_rendezvous_handler(params("c10d", "127.0.0.1:1", is_host=False, read_timeout=1))


class Listening(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(json.loads(record.getMessage()))


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    """torch's stream of rendezvous events, as a program sets it up."""
    from torch.distributed.elastic.events import handlers as torch_handlers

    listening = Listening()
    monkeypatch.setitem(torch_handlers._log_handlers, "dynamic_rendezvous", listening)
    monkeypatch.setattr(torch_events, "_events_loggers", {})
    yield listening
    logging.getLogger("torchelastic-events-dynamic_rendezvous").removeHandler(listening)


def test_a_failed_join_is_in_torchs_stream_and_in_ours(lonely: elastic.RendezvousHandler, stream: Listening) -> None:
    ours: list[events.Event] = []
    with events.subscribe(ours.append):
        error = fail_to_join(lonely)
    (recorded,) = (event for event in ours if event.kind == "join failed")
    assert recorded.run_id == lonely.get_run_id()
    assert str(error) in recorded.why
    (failed,) = (event for event in stream.heard if event["name"].endswith("rallypoint.join failed"))
    assert (failed["run_id"], failed["node_state"]) == (lonely.get_run_id(), "FAILED")
    assert failed["message"] == recorded.why


def test_a_handler_on_a_backend_of_ones_own_records_a_failed_join(stream: Listening) -> None:
    store, ours = dist.HashStore(), list[events.Event]()
    handler = create_handler(store, C10dRendezvousBackend(store, "run"), params("c10d", ""))
    with events.subscribe(ours.append):
        fail_to_join(handler)
    handler.shutdown()
    for kinds in (
        [event.kind for event in ours],
        [event["name"].partition("rallypoint.")[2] for event in stream.heard],
    ):
        assert kinds.count("join failed") == 1


def test_the_first_backend_of_a_program_is_in_torchs_stream(stream: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    """No handler has been made yet when it is created, or fails."""
    monkeypatch.setattr(events, "_listeners", [])
    create_backend(params("c10d", f"127.0.0.1:{free_port()}"))
    with pytest.raises(torch_api.RendezvousConnectionError):
        create_backend(params("c10d", "127.0.0.1:1", is_host=False, read_timeout=1))
    names = [(event["name"].partition("rallypoint.")[2], event["node_state"]) for event in stream.heard]
    assert names == [("backend created", "RUNNING"), ("backend failed", "FAILED")]


def test_torch_is_not_imported_for_it() -> None:
    program = f"""
import sys
import rallypoint.elastic as elastic
params = elastic.RendezvousParameters("rallypoint", "127.0.0.1:{free_port()}", "run", 2, 2, join_timeout=0.1)
handler = elastic.get_rendezvous_handler(params)
try:
    handler.next_rendezvous()
except elastic.RendezvousTimeoutError as exc:
    print(type(exc).__module__, "torch" in sys.modules)
handler.shutdown()
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "rallypoint.errors False\n"
