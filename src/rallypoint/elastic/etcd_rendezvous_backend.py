"""PyTorch's `etcd-v2` backend: the document is one key of etcd's, its token the index of the last change."""

from __future__ import annotations

from typing import Any

from rallypoint import events
from rallypoint.backends.etcd_v2_client import CONNECTION, DEFAULT_PORT, client_with, connect
from rallypoint.backends.options import check_run_id, read_options, seconds
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.dynamic_rendezvous import OPTIONS as DYNAMIC_OPTIONS
from rallypoint.elastic.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousBackend, own_options
from rallypoint.elastic.dynamic_rendezvous import create_handler as create_dynamic_handler
from rallypoint.elastic.lazy_names import lazy_names
from rallypoint.elastic.utils import _failures_recorded
from rallypoint.net import parse_endpoints
from rallypoint.stores.documents import ETCD_V2_FOLDER
from rallypoint.stores.etcd_v2_document import DEFAULT_TTL_S, EtcdV2Document
from rallypoint.torch_bridge.errors import in_torch_words_too

__getattr__ = lazy_names(
    *(__name__, "EtcdStore", "RendezvousConnectionError", "RendezvousStateError", "Store", "Token", "etcd"),
    *("parse_rendezvous_endpoint", "urllib3"),
)

BACKEND = "etcd-v2"
STORE = "/torch/elastic/store"

READ_TIMEOUT = seconds("read_timeout", 60.0, "how long a call to etcd may take")
OPTIONS = (READ_TIMEOUT, *CONNECTION)


class EtcdRendezvousBackend(EtcdV2Document, RendezvousBackend):
    """The document under one key; `client` is one of python-etcd."""

    def __init__(self, client: Any, run_id: str, key_prefix: str | None = None, ttl: int | None = None) -> None:
        check_run_id(run_id)
        super().__init__(client, run_id, key_prefix, ttl)

    @property
    def name(self) -> str:
        return BACKEND

    get_state = in_torch_words_too(EtcdV2Document.get_state)
    set_state = in_torch_words_too(EtcdV2Document.set_state)


@in_torch_words_too
def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, Any]:
    """The backend and a store beside it, as the parameters ask for them; RendezvousConnectionError without etcd.

    The endpoint may name several members, with commas between them.
    """
    from rallypoint.elastic.etcd_store import EtcdStore  # brings torch, where that is installed

    with _failures_recorded("backend failed", params.run_id, params.backend):
        options = own_options(params, OPTIONS)
        client = client_with(options, parse_endpoints(params.endpoint, DEFAULT_PORT), options[READ_TIMEOUT])
        connect(client, options[READ_TIMEOUT], f"etcd at {params.endpoint or 'localhost'}")
        backend = EtcdRendezvousBackend(client, params.run_id, ETCD_V2_FOLDER)
        store = EtcdStore(client, STORE, ttl_s=DEFAULT_TTL_S)
    events.record("backend created", params.run_id, "etcd answers", backend=params.backend, endpoint=params.endpoint)
    return backend, store


@in_torch_words_too
def create_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """The creator of the backend `etcd-v2`; an option that nobody knows is warned of, and ignored."""
    read_options(BACKEND, params.config, (*OPTIONS, *DYNAMIC_OPTIONS), lenient=True)
    backend, store = create_backend(params)
    return create_dynamic_handler(store, backend, params)
