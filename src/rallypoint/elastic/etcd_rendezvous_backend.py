"""PyTorch's `etcd-v2` backend: the document is one key of etcd's, its token the index of the last change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rallypoint import events
from rallypoint.backends.etcd_v2_client import (
    CONNECTION,
    DEFAULT_PORT,
    client_with,
    connect,
)
from rallypoint.backends.options import check_run_id, read_options, seconds
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.dynamic_rendezvous import OPTIONS as DYNAMIC_OPTIONS
from rallypoint.elastic.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousBackend, Token
from rallypoint.elastic.dynamic_rendezvous import create_handler as create_dynamic_handler
from rallypoint.elastic.lazy_names import ETCD_STORE, lazy_names
from rallypoint.elastic.utils import parse_rendezvous_endpoint
from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.net import parse_endpoints
from rallypoint.stores.documents import ETCD_V2_FOLDER
from rallypoint.stores.etcd_v2_document import DEFAULT_TTL_S, EtcdV2Document
from rallypoint.torch_bridge import presence

if TYPE_CHECKING:
    from rallypoint.elastic.etcd_store import EtcdStore

__all__ = [
    "EtcdRendezvousBackend",
    "EtcdStore",
    "RendezvousBackend",
    "RendezvousConnectionError",
    "RendezvousParameters",
    "RendezvousStateError",
    "Token",
    "create_backend",
    "create_handler",
    "parse_rendezvous_endpoint",
]

__getattr__ = lazy_names(__name__, "Store", "etcd", "urllib3", EtcdStore=ETCD_STORE)

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
        """The backend's name."""
        return BACKEND

    @presence.in_torch_words_too
    def get_state(self) -> tuple[bytes, Token] | None:
        """The document and its token, or None."""
        return super().get_state()

    @presence.in_torch_words_too
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write if the token is still that of what is there, or, without one, if nothing is.

        A token is whatever `int()` takes; anything else fits nothing.  RendezvousConnectionError for a token where nothing
        is there at all.
        """
        return super().set_state(state, token)


@presence.in_torch_words_too
def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, Any]:
    """The backend and a store beside it, as the parameters ask for them; RendezvousConnectionError without etcd.

    The endpoint may name several members, with commas between them.
    """
    from rallypoint.elastic.etcd_store import EtcdStore  # brings torch, where that is installed

    known = {option.name for option in OPTIONS}
    try:
        options = read_options(
            params.backend, {name: value for name, value in params.config.items() if name in known}, OPTIONS
        )
        client = client_with(options, parse_endpoints(params.endpoint, DEFAULT_PORT), options[READ_TIMEOUT])
        connect(client, options[READ_TIMEOUT], f"etcd at {params.endpoint or 'localhost'}")
        backend = EtcdRendezvousBackend(client, params.run_id, ETCD_V2_FOLDER)
        store = EtcdStore(client, STORE, ttl_s=DEFAULT_TTL_S)
    except Exception as exc:
        events.record("backend failed", params.run_id, f"{type(exc).__name__}: {exc}", backend=params.backend)
        raise
    events.record("backend created", params.run_id, "etcd answers", backend=params.backend, endpoint=params.endpoint)
    return backend, store


@presence.in_torch_words_too
def create_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """The creator of the backend `etcd-v2`; an option that nobody knows is warned of, and ignored."""
    read_options(BACKEND, params.config, (*OPTIONS, *DYNAMIC_OPTIONS), lenient=True)
    backend, store = create_backend(params)
    return create_dynamic_handler(store, backend, params)
