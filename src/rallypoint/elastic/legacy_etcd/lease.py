"""Keeping a key of etcd's alive from a thread of its own, which no error ends."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.keys import Keys
from rallypoint.waiting import Deadline

log = logging.getLogger("rallypoint.etcd")

_RETRY_S = 0.5


class KeyLease:
    """Prolongs a key at half of its time; where it is gone, `revive` is called, a method that may bring it back.

    It ends by `stop()`, when nobody holds it any more, or when the key is gone and there is no such method.  The thread holds
    neither the lease nor the owner of that method.
    """

    def __init__(
        self, keys: Keys, path: str, ttl_s: int, *, directory: bool = False, revive: Callable[[], object] | None = None
    ) -> None:
        self.stopped = threading.Event()
        weakref.finalize(self, self.stopped.set).atexit = False
        held = None if revive is None else weakref.WeakMethod(revive)
        attempt_s = min(ttl_s / 4, keys.request_timeout_s)  # short: an etcd that does not answer is asked again

        def prolong() -> bool:
            return keys.prolong(path, ttl_s, Deadline.after(attempt_s), directory=directory)

        kept = (self.stopped, prolong, path, ttl_s, held)
        threading.Thread(target=_keep, args=kept, name="etcd-lease", daemon=True).start()

    def stop(self) -> None:
        """Let the key expire."""
        self.stopped.set()


Held = weakref.WeakMethod[Callable[[], object]]


def _keep(stopped: threading.Event, prolong: Callable[[], bool], path: str, ttl_s: int, held: Held | None) -> None:
    wait_s, troubled = ttl_s / 2, False
    while not stopped.wait(wait_s):
        try:
            alive = prolong()
            if not alive and held is None:
                stopped.set()
                return
            revive = None if alive or held is None else held()
            if revive is not None and not stopped.is_set():
                revive()
            del revive
            wait_s, troubled = ttl_s / 2, False
        except StoreError as exc:  # noqa: PERF203  # trying again is the point
            if not troubled:
                log.warning("%s cannot be kept alive at the moment, and is tried again: %s", path, exc)
            wait_s, troubled = _RETRY_S, True
        except Exception:
            log.exception("keeping %s alive failed; it is tried again", path)
            wait_s = _RETRY_S
