"""`python -m tests.faults.waiting_program JSON`: a program that waits in its main thread until Ctrl-C ends it.

It says `waits` once its main thread is in the wait that it was asked for.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import rallypoint
from rallypoint.backends.endpoints import backend_at
from rallypoint.client import member
from rallypoint.elastic import RendezvousParameters, get_rendezvous_handler
from rallypoint.elastic.member_handler import MemberHandler
from tests.support.node_program import say
from tests.support.waiting import until


class Program:
    """Each method is a program."""

    def __init__(self, endpoint: str, run: str, nodes: str, *, hurry_s: float = 0.0, **options: Any) -> None:
        """With `hurry_s` it waits for so long to be heard when it is interrupted, and says `leaves` when it does."""
        self.endpoint, self.run, self.nodes, self.options = endpoint, run, nodes, options
        if hurry_s:
            member._HURRY_S = hurry_s
            announce("is_heard", event="leaves")

    def enter(self) -> rallypoint.Place:
        began = time.monotonic()
        place = rallypoint.join(self.endpoint, run=self.run, nodes=self.nodes, **self.options)
        say("placed", rank=place.rank, size=place.world_size, took_s=time.monotonic() - began)
        return place

    def handler(self) -> rallypoint.RendezvousHandler:
        backend, number = backend_at(self.endpoint), int(self.nodes)
        params = RendezvousParameters(backend.name, self.endpoint, self.run, number, number, **self.options)
        return MemberHandler(backend, params)

    def join(self) -> None:
        announce("_settle")
        self.enter()

    def join_and_log(self) -> None:
        logging.basicConfig(filename=os.environ["LOG_FILE"], level=logging.INFO, format="%(name)s %(message)s")
        self.join()

    def join_for_a_while(self) -> None:
        """Join, and finish as soon as the world is over."""
        with self.enter() as place:
            place.changed.wait()

    def join_a_name(self) -> None:
        """Join at a name whose lookup hangs."""
        let_names_hang()
        announce("run", "_settle")
        self.enter()

    def join_again(self) -> None:
        with self.enter() as place:
            place.changed.wait()
            announce("_settle")
            place.again()

    def wait_for_change(self) -> None:
        with self.enter() as place:
            announce("wait")
            place.changed.wait()

    def wait_for_change_outside(self) -> None:
        """Without a `with` block."""
        place = self.enter()
        announce("wait")
        place.changed.wait()

    def read_store(self) -> None:
        with self.enter() as place:
            announce("get")
            place.store.get("nobody-sets-it")

    def finish(self) -> None:
        with self.enter():
            announce("leave")

    def handler_joins(self) -> None:
        handler = self.handler()
        announce("_settle")
        handler.next_rendezvous()

    def named_handler_joins(self) -> None:
        """A handler by the name that PyTorch has for its backend."""
        options = dict(self.options)
        backend, inside = options.pop("backend"), options.pop("inside")
        params = RendezvousParameters(backend, self.endpoint, self.run, int(self.nodes), int(self.nodes), **options)
        let_names_hang()
        announce(*inside)
        get_rendezvous_handler(params).next_rendezvous()

    def handler_closes(self) -> None:
        handler = self.handler()
        announce("close_run")
        handler.set_closed()


def let_names_hang() -> None:
    """From now on the lookup of one name hangs, as it does where the name server is cut off."""
    libc, lock, found = ctypes.CDLL(None), ctypes.create_string_buffer(256), socket.getaddrinfo

    def look_up(host: str, *rest: Any, **more: Any) -> Any:
        while host == "hangs.invalid":
            libc.pthread_mutex_lock(lock)  # the second one waits for ever, outside Python, and minds no signal
        return found(host, *rest, **more)

    socket.getaddrinfo = look_up  # type: ignore[assignment]


def announce(*functions: str, event: str = "waits") -> None:
    """Say so when the main thread is inside one of these functions, and in a call that blocks."""
    main = threading.main_thread().ident
    assert main is not None
    last: list[tuple[FrameType | None, int]] = []

    def is_there() -> bool:
        top = sys._current_frames().get(main)  # it has none between the program's end and what is done at exit
        frame = top
        while frame is not None and frame.f_code.co_name not in functions:
            frame = frame.f_back
        # It stands at the same place as when it was last looked at.
        last[:] = [*last[-3:], (top, top.f_lasti if top is not None else 0)]
        return len(last) == 4 and frame is not None and len(set(last)) == 1

    def look() -> None:
        until(is_there, f"the main thread waits in one of {functions}")
        say(event)

    threading.Thread(target=look, daemon=True).start()


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    given = json.loads(sys.argv[1])
    program: Callable[[], None] = getattr(Program(**given["with"]), given["do"])
    program()


if __name__ == "__main__":
    main()
