"""The same options on torch's backends and on ours: what is taken, what is refused, and what an empty value means.

A real etcd answers, so that an option that spoils the connection is noticed.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.interop.libraries import Library
from tests.support.etcd_servers import shared
from tests.support.node_processes import free_port

# torch's thread that keeps a run's directory alive ends with an error: it prolongs it as if it were a key.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception in thread .*lease_worker:pytest.PytestUnhandledThreadExceptionWarning"
)


@pytest.fixture(params=["torch", "rallypoint"])
def library(request: pytest.FixtureRequest) -> Library:
    return Library(request.param)


@pytest.fixture
def run_id() -> str:
    """A run that nobody else has."""
    return f"options-{uuid.uuid4().hex}"


# Quotes that a shell left in a configuration --------------------------------------------------------------------------


def timeouts(library: Library, text: str) -> tuple[float, float, float]:
    """The time-outs of a handler that is made with a configuration as torchrun takes it."""
    params = library.params(**library.utils._parse_rendezvous_config(text))
    timeout = library.dynamic_rendezvous.create_handler(dist.HashStore(), library.backend(), params).settings.timeout
    return timeout.join.total_seconds(), timeout.last_call.total_seconds(), timeout.close.total_seconds()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("join_timeout=5,last_call_timeout=6,close_timeout=7", (5, 6, 7)),
        # The quotes belong to the first name and to the last value: nobody knows the one, and nobody asks for the other.
        ("'join_timeout=5,last_call_timeout=6,timeout=7'", (600, 6, 30)),
        ('"join_timeout=5,last_call_timeout=6,timeout=7"', (600, 6, 30)),
        ("'join_timeout'=5,last_call_timeout=6", (600, 6, 30)),
        ("'join_timeout=5'", (600, 30, 30)),
    ],
)
def test_quotes_are_part_of_what_they_surround(
    library: Library, text: str, expected: tuple[float, float, float]
) -> None:
    assert timeouts(library, text) == expected


@pytest.mark.parametrize(
    "text", ["join_timeout='5'", 'last_call_timeout="6"', "'join_timeout=5,last_call_timeout=6'", "close_timeout=7'"]
)
def test_a_number_with_a_quote_is_none(library: Library, text: str) -> None:
    with pytest.raises(ValueError, match="_timeout"):
        timeouts(library, text)


@pytest.mark.parametrize("option", ["store_type", "is_host"])
def test_a_word_with_quotes_is_another_word(library: Library, option: str, tmp_path: Path) -> None:
    quoted: dict[str, Any] = {"store_type": "'file'", "is_host": "'true'"}
    endpoint = str(tmp_path / "store") if option == "store_type" else f"localhost:{free_port()}"
    with pytest.raises(ValueError, match=r".+"):
        library.c10d_rendezvous_backend.create_backend(library.params("c10d", endpoint, **{option: quoted[option]}))


# static ---------------------------------------------------------------------------------------------------------------


def test_a_static_run_takes_options_that_nobody_knows(library: Library) -> None:
    handler = library.registry.get_rendezvous_handler(
        library.params("static", f"localhost:{free_port()}", rank=0, timeout=10, max_nodes=1, is_host=True, tiemout=5)
    )
    assert (handler.timeout.total_seconds(), handler.next_rendezvous().world_size) == (10, 1)


# etcd-v2 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"protocol": "HTTP"},
        {"protocol": " Http "},
        {"ssl_cert": ""},
        {"ssl_cert": "", "ssl_cert_key": ""},
        {"ssl_cert": "", "ssl_cert_key": "/no/such/file"},
        {"ca_cert": ""},
        {"is_host": True, "raed_timeout": 5},
    ],
)
def test_the_backend_on_etcd_takes(library: Library, given: dict[str, Any], run_id: str) -> None:
    params = library.params("etcd-v2", shared().endpoint, run_id=run_id, **given)
    backend, store = library.etcd_rendezvous_backend.create_backend(params)
    assert backend.set_state(b"one")[2]
    assert backend.get_state()[0] == b"one"
    assert store.add(run_id, 2) == 2


@pytest.mark.parametrize("given", [{"protocol": "gopher"}, {"protocol": ""}, {"read_timeout": 0}])
def test_the_backend_on_etcd_refuses(library: Library, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        library.etcd_rendezvous_backend.create_backend(library.params("etcd-v2", shared().endpoint, **given))


# The older etcd protocol ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"protocol": "HTTP"}, {"protocol": ""}, {"protocol": " http"}, {"timeout": "'5'"}])
def test_the_older_backend_refuses(library: Library, given: dict[str, Any], run_id: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        library.etcd_rendezvous.create_rdzv_handler(library.params("etcd", shared().endpoint, run_id=run_id, **given))


@pytest.mark.parametrize(
    "given", [{"protocol": "http"}, {"cert": "", "cacert": ""}, {"is_host": True, "tiemout": 5}, {"timeout": "60"}]
)
def test_the_older_backend_takes(library: Library, given: dict[str, Any], run_id: str) -> None:
    params = library.params("etcd", shared().endpoint, run_id=run_id, max_nodes=1, **given)
    handler = library.etcd_rendezvous.create_rdzv_handler(params)
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert handler.shutdown()


@pytest.mark.parametrize("timeout", [0, "0"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_older_backend_without_any_time_is_a_time_out(
    library: Library, timeout: int | str, nodes: int, run_id: str
) -> None:
    params = library.params("etcd", shared().endpoint, run_id=run_id, min_nodes=nodes, max_nodes=nodes, timeout=timeout)
    handler = library.etcd_rendezvous.create_rdzv_handler(params)
    with pytest.raises(library.api.RendezvousTimeoutError):
        handler.next_rendezvous()
