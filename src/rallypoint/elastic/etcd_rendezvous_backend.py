"""PyTorch's `etcd-v2` backend: the document is one key of etcd's, its token the index of the last change."""

from __future__ import annotations

import random
import time
from base64 import b64encode
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from rallypoint import events
from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.documents import ETCD_V2_FOLDER, decode_document
from rallypoint.elastic.dynamic_rendezvous import (
    OPTIONS as DYNAMIC_OPTIONS,
)
from rallypoint.elastic.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    Token,
)
from rallypoint.elastic.dynamic_rendezvous import (
    create_handler as create_dynamic_handler,
)
from rallypoint.elastic.etcd_v2_client import PROTOCOL, certificates, connect, make_client, parse_endpoints
from rallypoint.elastic.lazy_names import ETCD_STORE, lazy_names
from rallypoint.elastic.options import read_options, seconds
from rallypoint.elastic.utils import parse_rendezvous_endpoint
from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.stores.base import Term
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.keys import Keys, Node
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
DEFAULT_TTL_S = 7200

READ_TIMEOUT = seconds("read_timeout", 60.0, "how long a call to etcd may take")
SSL_CERT, SSL_CERT_KEY, CA_CERT = certificates("ssl_cert", "ssl_cert_key", "ca_cert")
OPTIONS = (READ_TIMEOUT, PROTOCOL, SSL_CERT, SSL_CERT_KEY, CA_CERT)

T = TypeVar("T")


class EtcdRendezvousBackend(RendezvousBackend):
    """The document under one key; `client` is one of python-etcd.

    The key lives for `ttl` seconds after it was last written or read by a live node, so that a run that everybody has
    left is forgotten.
    """

    def __init__(self, client: Any, run_id: str, key_prefix: str | None = None, ttl: int | None = None) -> None:
        if not run_id:
            raise ValueError("The run id is empty: every job needs a name of its own, such as its job id.")
        self._keys = Keys.of(client)
        self._path = "/" + f"{key_prefix or ''}/{run_id}".lstrip("/")
        self._ttl_s = DEFAULT_TTL_S if not ttl or ttl < 0 else ttl
        self._prolong_at = self._next_prolonging()

    @property
    def name(self) -> str:
        """The backend's name."""
        return BACKEND

    @presence.in_torch_words_too
    def get_state(self) -> tuple[bytes, Token] | None:
        """The document and its token, or None."""
        node = self._call(lambda term: self._keys.read(self._path, term)).node
        if node is None:
            return None
        if time.monotonic() >= self._prolong_at:
            self._prolong_at = self._next_prolonging()
            self._call(lambda term: self._keys.prolong(self._path, self._ttl_s, term))
            node = self._call(lambda term: self._keys.read(self._path, term)).node
        return None if node is None else self._decode(node)

    @presence.in_torch_words_too
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write if the token is still that of what is there, or, without one, if nothing is.

        A token is whatever `int()` takes; anything else fits nothing.  RendezvousConnectionError for a token where nothing
        is there at all.
        """
        try:
            index = int(token) if token else None
        except (TypeError, ValueError, OverflowError):
            there = self.get_state()
            return None if there is None else (*there, False)
        text = b64encode(state).decode()
        swapped = self._call(
            lambda term: self._keys.swap(self._path, text, term, index=index or None, ttl_s=self._ttl_s)
        )
        if swapped.done:
            self._prolong_at = self._next_prolonging()
            return state, swapped.modified, True
        there = self.get_state()
        if there is None and index:
            raise RendezvousConnectionError(
                f"the document of the run cannot be changed: it is not at {self._path} any more, because it has expired or "
                f"was deleted"
            )
        return None if there is None else (*there, False)

    def _decode(self, node: Node) -> tuple[bytes, Token]:
        return decode_document(node.value.encode(errors="replace"), self._path), node.modified

    def _call(self, ask: Callable[[Term], T]) -> T:
        try:
            return ask(Term.of(timedelta(seconds=self._keys.patience_s)))
        except StoreError as exc:
            raise RendezvousConnectionError(f"the document of the run cannot be used: {exc}") from exc

    def _next_prolonging(self) -> float:
        # Not everybody at once.
        return time.monotonic() + self._ttl_s * random.uniform(0.2, 0.4)


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
        client = make_client(
            parse_endpoints(params.endpoint),
            protocol=options[PROTOCOL],
            read_timeout_s=options[READ_TIMEOUT],
            cert=options[SSL_CERT],
            key=options[SSL_CERT_KEY],
            ca=options[CA_CERT],
        )
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
