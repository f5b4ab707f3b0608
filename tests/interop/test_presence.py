"""A program that has imported torch gets torch's classes and torch's events from our handlers, outside torchrun too."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
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
from tests.support.node_processes import free_port

SOON = {"join_timeout": 0.2, "last_call_timeout": 1}


def params(backend: str, endpoint: str, **config: Any) -> elastic.RendezvousParameters:
    return elastic.RendezvousParameters(backend, endpoint, "run", 2, 2, local_addr="127.0.0.1", **{**SOON, **config})


def handlers() -> Iterator[elastic.RendezvousHandler]:
    yield elastic.get_rendezvous_handler(params("rallypoint", f"127.0.0.1:{free_port()}"))
    yield elastic.get_rendezvous_handler(params("c10d", f"127.0.0.1:{free_port()}"))
    yield elastic.get_rendezvous_handler(params("static", f"127.0.0.1:{free_port()}", rank=0))


def test_a_handler_is_one_of_torchs() -> None:
    for handler in handlers():
        assert isinstance(handler, torch_api.RendezvousHandler)
        handler.shutdown()


def test_a_join_that_fails_is_caught_by_torchs_class_and_by_ours() -> None:
    for handler in handlers():
        if handler.get_backend() == "static":
            continue
        with pytest.raises(torch_api.RendezvousTimeoutError) as failure:
            handler.next_rendezvous()
        assert isinstance(failure.value, elastic.RendezvousTimeoutError)
        assert "was not joined within" in str(failure.value)
        handler.shutdown()
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


def test_events_reach_torchs_stream(stream: Listening) -> None:
    store = dist.HashStore()
    settings = params("c10d", "")
    handler = create_handler(store, C10dRendezvousBackend(store, "run"), settings)
    with pytest.raises(torch_api.RendezvousTimeoutError):
        handler.next_rendezvous()
    handler.shutdown()
    (failed,) = (event for event in stream.heard if event["name"].endswith("rallypoint.join failed"))
    assert (failed["run_id"], failed["node_state"]) == ("run", "FAILED")
    assert "was not joined within" in failed["message"]


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
