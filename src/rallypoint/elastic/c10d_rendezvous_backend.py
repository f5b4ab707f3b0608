"""PyTorch's `c10d` backend: the document is one key of a c10d store, torch's or ours, over TCP or in a file."""

from __future__ import annotations

import logging
import os
import tempfile
from datetime import timedelta
from typing import Any

from rallypoint import events
from rallypoint.backends.c10d_stores import file_store, tcp_store
from rallypoint.backends.membership import IS_HOST
from rallypoint.backends.options import check_run_id, choice, read_options, seconds
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.dynamic_rendezvous import OPTIONS as DYNAMIC_OPTIONS
from rallypoint.elastic.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousBackend, own_options
from rallypoint.elastic.dynamic_rendezvous import create_handler as create_dynamic_handler
from rallypoint.elastic.lazy_names import lazy_names
from rallypoint.elastic.utils import _failures_recorded, parse_rendezvous_endpoint
from rallypoint.errors import RendezvousError
from rallypoint.net import DEFAULT_PORT
from rallypoint.stores import TcpStore
from rallypoint.stores.c10d_document import C10dDocument, innermost
from rallypoint.torch_bridge import stores_c10d
from rallypoint.torch_bridge.errors import in_torch_words_too

__getattr__ = lazy_names(
    *(__name__, "FileStore", "NodeState", "Store", "TCPStore", "construct_and_record_rdzv_event"),
    *("RendezvousConnectionError", "RendezvousStateError", "Token"),
)

logger = logging.getLogger("rallypoint")

BACKEND = "c10d"
FILE_REST_S = 50.0

STORE_TYPE = choice("store_type", ("tcp", "file"), "tcp", "which kind of store holds the run")
READ_TIMEOUT = seconds("read_timeout", 60.0, "how long a call to the TCP store may take")
OPTIONS = (STORE_TYPE, READ_TIMEOUT, IS_HOST)


class C10dRendezvousBackend(C10dDocument, RendezvousBackend):
    """The document under one key of a store; its token is the value itself.

    `place` names the store, so that the handlers of a process share an election.  `rest_s` is how long the beat of a claim
    may rest in this store, where that is special.
    """

    @in_torch_words_too
    def __init__(self, store: Any, run_id: str) -> None:
        check_run_id(run_id)
        inner = innermost(store)
        super().__init__(store, run_id, reconnects=isinstance(inner, TcpStore) or stores_c10d.is_tcp_store(inner))
        self.place: tuple[Any, ...] | None = None
        # Every write makes the file of torch's store longer, and every node reads all of it.
        self.rest_s = FILE_REST_S if stores_c10d.is_file_store(inner) else None

    @property
    def name(self) -> str:
        return BACKEND

    get_state = in_torch_words_too(C10dDocument.get_state)
    set_state = in_torch_words_too(C10dDocument.set_state)


@in_torch_words_too
def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Any]:
    """The backend and its store, as the parameters ask for them: torch's own stores where torch is installed."""
    with_torch, served = stores_c10d.has_torch(), None
    with _failures_recorded("backend failed", params.run_id, params.backend):
        options = own_options(params, OPTIONS)
        if options[STORE_TYPE] == "file":
            path = (params.endpoint or "").strip() or _private_file()
            store = file_store(path, with_torch=with_torch)
            backend = C10dRendezvousBackend(store, params.run_id)
            backend.place = ("file", path)
        else:
            host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
            timeout = timedelta(seconds=options[READ_TIMEOUT])
            store, served = tcp_store(host, port, timeout, options[IS_HOST], with_torch=with_torch)
            backend = C10dRendezvousBackend(store, params.run_id)
            backend.hosts_store, backend.served = served is not None, served
            backend.place = ("tcp", host, port)
    why = f"a {options[STORE_TYPE]} store {'served' if served is not None else 'used'} by this process"
    events.record("backend created", params.run_id, why, backend=params.backend, endpoint=params.endpoint)
    return backend, store


@in_torch_words_too
def create_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """The creator of the backend `c10d`; an option that nobody knows is warned of, and ignored."""
    read_options(BACKEND, params.config, (*OPTIONS, *DYNAMIC_OPTIONS), lenient=True)
    backend, store = create_backend(params)
    return create_dynamic_handler(store, backend, params)


def _private_file() -> str:
    try:
        handle, path = tempfile.mkstemp(prefix="rallypoint-")
    except OSError as exc:
        raise RendezvousError(
            f"no endpoint is given, and a file for the store cannot be made in {tempfile.gettempdir()}: "
            f"{exc.strerror}; give a path as the endpoint"
        ) from exc
    os.close(handle)
    return path
