"""The recorder: what happened, when, and why.  Subscribe to it, or let it write JSON lines.

The time of an event is the wall clock of the process that recorded it, for people to read; nothing is decided by it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

log = logging.getLogger("rallypoint.events")

__all__ = ["Event", "add_listener", "record", "subscribe", "write_json_lines"]


@dataclass(frozen=True)
class Event:
    """Something that happened: `sealed`, `lost`, `left`, `broken`, `closed` …, in which run, and why in words."""

    kind: str
    run_id: str
    why: str
    at: str = ""
    details: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]

_lock = threading.Lock()
_listeners: list[Listener] = []


def record(kind: str, run_id: str, why: str, **details: Any) -> None:
    """Tell every subscriber; one that fails is reported and harms nobody."""
    with _lock:
        listeners = list(_listeners)
    if not listeners:
        return
    event = Event(kind, run_id, why, datetime.now(timezone.utc).isoformat(timespec="milliseconds"), details)
    for listener in listeners:
        _tell(listener, event)


def _tell(listener: Listener, event: Event) -> None:
    try:
        listener(event)
    except Exception:
        log.exception("a subscriber to events failed on %s", event)


def add_listener(listener: Listener) -> None:
    """Let a function hear of every event from now on, once however often it is added."""
    with _lock:
        if listener not in _listeners:
            _listeners.append(listener)


@contextmanager
def subscribe(listener: Listener) -> Iterator[None]:
    """Let a function hear of every event while the block runs, on the thread that it happened on."""
    with _lock:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)


@contextmanager
def write_json_lines(path: Path) -> Iterator[None]:
    """Append every event to a file, one JSON object a line, while the block runs."""
    with path.open("a", encoding="utf-8", buffering=1) as file, subscribe(lambda event: _write(file.write, event)):
        yield


def _write(write: Callable[[str], object], event: Event) -> None:
    write(json.dumps(asdict(event)) + "\n")
