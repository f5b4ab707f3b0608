"""PyTorch's `utils`: endpoints, configuration strings, a pause, a periodic timer."""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rallypoint import events, net
from rallypoint.torch_bridge import presence
from rallypoint.torch_bridge.stores_c10d import is_torch_store, prefix_store

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = ["parse_rendezvous_endpoint"]

log = logging.getLogger(__name__)


def _parse_rendezvous_config(config_str: str) -> dict[str, str]:
    """Options from "name=value,name2=value2"; a value may contain "=". Blanks around names and values do not count."""
    config: dict[str, str] = {}
    if not config_str.strip():
        return config
    for part in config_str.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if not name:
            raise ValueError(
                f"The configuration {config_str!r} has {part.strip()!r} where an option should be: write name=value, "
                "with a comma between two options and none at the end."
            )
        if not value:
            raise ValueError(
                f"The option {name!r} has no value in the configuration {config_str!r}: write {name}=value, or leave "
                "it out."
            )
        config[name] = value
    return config


# Under PyTorch's names.
parse_rendezvous_endpoint = net.parse_endpoint
_matches_machine_hostname = net.is_this_machine


def _delay(seconds: float | tuple[float, float]) -> None:
    """Sleep for a time, or for a random time between two bounds."""
    if isinstance(seconds, tuple):
        seconds = random.uniform(*seconds)
    if seconds > 0:
        time.sleep(seconds)


def _part_of(store: Any, prefix: str) -> Any:
    """The keys of a store under a prefix, in torch's own type where the store is torch's."""
    if is_torch_store(store):
        return prefix_store(prefix, store)
    from rallypoint.stores import PrefixStore

    return PrefixStore(prefix, store)


@contextmanager
def _failures_recorded(kind: str, run_id: str, backend: str) -> Iterator[None]:
    """Record an event where something fails inside, for torch's stream as well."""
    presence.share_events()
    try:
        yield
    except Exception as exc:
        events.record(kind, run_id, f"{type(exc).__name__}: {exc}", backend=backend)
        raise


class _PeriodicTimer:
    """Calls a function in a thread of its own, again and again, with a pause of `interval` before each call.

    An error in the function is logged, and the calls go on. The thread ends by `cancel()`, or when nobody holds the
    timer any more.
    """

    def __init__(self, interval: timedelta, function: Callable[..., object], *args: object, **kwargs: object) -> None:
        interval_s = interval.total_seconds()
        if interval_s <= 0:
            raise ValueError(f"The interval of a timer is {interval_s} s, but should be above 0.")
        self._stop = threading.Event()
        weakref.finalize(self, self._stop.set).atexit = False
        # The thread must not hold the timer, or it would never be dropped.
        self._thread = threading.Thread(
            target=_call_periodically,
            args=(self._stop, min(interval_s, threading.TIMEOUT_MAX), partial(function, *args, **kwargs)),
            name="PeriodicTimer",
            daemon=True,
        )

    @property
    def name(self) -> str:
        return self._thread.name

    def set_name(self, name: str) -> None:
        """Name the thread; only before it has started."""
        if self._has_started:
            raise RuntimeError("The timer has started: name it before.")
        self._thread.name = name

    def start(self) -> None:
        """Start calling; a timer starts once."""
        if self._has_started:
            raise RuntimeError("The timer was started before: make another one.")
        self._thread.start()

    def cancel(self) -> None:
        """Stop calling, and wait for a call that is under way, unless this is it."""
        if self._has_started:
            self._stop.set()
            if self._thread is not threading.current_thread():
                self._thread.join()

    @property
    def _has_started(self) -> bool:
        return self._thread.ident is not None


def _call_periodically(stop: threading.Event, interval_s: float, call: Callable[[], object]) -> None:
    while not stop.wait(interval_s):
        try:
            call()
        except Exception:  # noqa: PERF203  # the next call follows
            name = threading.current_thread().name
            log.exception("A call of the timer %s failed; the next one follows in %g s.", name, interval_s)
