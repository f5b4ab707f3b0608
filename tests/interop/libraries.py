"""The two libraries side by side: the same module and class names, found under two import paths."""

from __future__ import annotations

import importlib
import pickle
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from rallypoint.client.admin_client import AdminClient
from rallypoint.record import decode
from tests.support.waiting import PATIENCE_S

# Beats of a second that may be missed where a machine that stalls must not make anybody a lost node.
STALLS = 60
ROOTS = {"torch": "torch.distributed.elastic.rendezvous", "rallypoint": "rallypoint.elastic"}


class Library:
    """One of the two; `library.dynamic_rendezvous.RendezvousTimeout` is that library's own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root = importlib.import_module(ROOTS[name])

    def __getattr__(self, module: str) -> Any:
        return importlib.import_module(f"{ROOTS[self.name]}.{module}")

    def __repr__(self) -> str:
        return self.name

    def params(self, backend: str = "memory", endpoint: str = "", **given: Any) -> Any:
        """RendezvousParameters with what every run needs."""
        given = {"run_id": "run", "min_nodes": 1, "max_nodes": 2, **given}
        return self.api.RendezvousParameters(backend=backend, endpoint=endpoint, **given)

    def backend(self) -> Any:
        """A backend of one's own: two methods."""

        class MemoryBackend(self.dynamic_rendezvous.RendezvousBackend):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                self.state: bytes | None = None
                self.token = 0
                self.lock = threading.Lock()

            @property
            def name(self) -> str:
                return "memory"

            def get_state(self) -> Any:
                with self.lock:
                    return None if self.state is None else (self.state, self.token)

            def set_state(self, state: bytes, token: Any = None) -> Any:
                with self.lock:
                    matches = token == self.token if self.state is not None else token is None
                    if matches:
                        self.state, self.token = state, self.token + 1
                    return self.state, self.token, matches

        return MemoryBackend()


class Meeting:
    """Handlers of one library on one backend, and threads that wait for them."""

    def __init__(self, library: Library, store: Any) -> None:
        self.library = library
        self.store = store
        self.backend = library.backend()
        self.handlers: list[Any] = []
        self._pool = ThreadPoolExecutor(16)

    def handler(self, min_nodes: int = 2, max_nodes: int = 2, **given: Any) -> Any:
        timeout = self.library.dynamic_rendezvous.RendezvousTimeout(
            join=timedelta(seconds=given.pop("join_s", PATIENCE_S)),
            last_call=timedelta(seconds=1),
            close=timedelta(seconds=given.pop("close_s", 30)),
        )
        given = {"local_addr": "127.0.0.1", "keep_alive_interval": 1, **given}
        made = self.library.dynamic_rendezvous.DynamicRendezvousHandler.from_backend(
            "run", self.store, self.backend, min_nodes, max_nodes, timeout=timeout, **given
        )
        self.handlers.append(made)
        return made

    def nodes(self) -> int:
        """How many nodes the run has, as taking part or standing by."""
        if self.library.name == "rallypoint":
            claim = decode(self.backend.state).claim
            assert claim is not None
            with AdminClient(claim.addresses[0], claim.port, secret=claim.secret) as admin:
                return len(admin.status("run").nodes)
        document = pickle.loads(self.backend.state)  # noqa: S301  # written by torch in this process
        return len(document.participants) + len(document.redundancy_list)

    def join(self, *handlers: Any) -> list[Future[Any]]:
        return [self._pool.submit(handler.next_rendezvous) for handler in handlers]

    def meet(self, *handlers: Any) -> list[Any]:
        return [joining.result(PATIENCE_S) for joining in self.join(*handlers)]

    def end(self) -> None:
        for handler in self.handlers:
            handler._stop_heartbeats()
        self._pool.shutdown()
