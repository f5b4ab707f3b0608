"""A node as a process of its own, on any backend: `python -m tests.conformance.node_program [--skew S] [--without-torch]`.

Commands come in, and events go out, as JSON lines.  A process is one node after another, until it is killed; commands
with a `who` are for a second node in it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.conformance.user_backends import LockedFileBackend, SilentFileBackend
from tests.support.waiting import PATIENCE_S


class EventSender(threading.local):
    """The test that a thread reports to, and the node that it reports of."""

    test = 0
    who = ""


_printing = threading.Lock()
_reports = EventSender()
_tests = [0]


def say(event: str, **details: Any) -> None:
    """One line for the test to read; threads that are left from an earlier test print nothing."""
    with _printing:
        if _reports.test == _tests[-1]:
            print(json.dumps({"event": event, "who": _reports.who, **details}), flush=True)


def act_for(test: int, who: str, act: Callable[..., None], *arguments: Any) -> None:
    """Run a command in a thread that reports to this test, of this node."""
    _reports.test, _reports.who = test, who
    act(*arguments)


def begin_test() -> None:
    """From now on only this thread and those that it starts print anything."""
    with _printing:
        _tests.append(_tests[-1] + 1)
        _reports.test = _tests[-1]


class CommandedNode:
    """Does what it is told: each method is a command."""

    def __init__(self) -> None:
        self.handler: Any = None
        self.info: Any = None
        self.world = ""

    def open(self, backend: str, endpoint: str, run: str, nodes: str, options: dict[str, Any]) -> None:
        """Make a handler; nothing of it is seen by others yet."""
        from rallypoint.elastic.api import RendezvousParameters
        from rallypoint.elastic.dynamic_rendezvous import create_handler
        from rallypoint.elastic.registry import get_rendezvous_handler

        if "keep_alive" in options:
            shorten_keep_alives(options.pop("keep_alive"))
        least, _, most = nodes.partition(":")
        params = RendezvousParameters(
            backend, endpoint, run, int(least), int(most or least), local_addr="127.0.0.1", **options
        )
        own = {"locked-file": LockedFileBackend, "silent-file": SilentFileBackend}
        if backend in own:
            self.handler = create_handler(None, own[backend](Path(endpoint), run), params)
        else:
            self.handler = get_rendezvous_handler(params)
        say("opened")

    def connected(self) -> None:
        """Say so when there is a connection to the server."""
        link = self.handler._member.link
        say("connected", there=link.wait(lambda _: link.is_connected, time.monotonic() + PATIENCE_S))

    def join(self) -> None:
        handler = self.handler
        info = handler.next_rendezvous()
        if self.handler is not handler:
            return
        where = info.bootstrap_store_info
        self.info, self.world = info, f"{where.master_addr}:{where.master_port}"
        say("placed", rank=info.rank, size=info.world_size, fence=self.world)
        act = (_reports.test, _reports.who, self.watch, handler, self.world)
        threading.Thread(target=act_for, args=act, daemon=True).start()

    def watch(self, handler: Any, world: str) -> None:
        """Ask as torch's agent does, only more often."""
        pause = threading.Event()
        while self.handler is handler and self.world == world:
            count = handler.num_nodes_waiting()
            if count > 0:
                say("changed", fence=world, count=count)
                return
            pause.wait(0.01)

    def waiting(self) -> None:
        say("waiting", count=self.handler.num_nodes_waiting())

    def serving(self) -> None:
        """Whether this process serves the world that the node is in."""
        member = getattr(self.handler, "_member", None)
        if member is None:
            say("serving", here=False)
            return
        (seal_id, ranks), world = member.link.session.server_ranks, member.view.world
        say("serving", here=world.seal_id == seal_id and world.rank in ranks)

    def closed(self) -> None:
        say("closed", closed=self.handler.is_closed())

    def close(self) -> None:
        self.handler.set_closed()
        say("closing")

    def set(self, key: str, value: str) -> None:
        self.info.store.set(key, value)
        say("stored", key=key)

    def get(self, key: str) -> None:
        value = self.info.store.get(key)
        say("value", key=key, value=value if isinstance(value, str) else value.decode())

    def check(self, key: str) -> None:
        say("checked", key=key, there=bool(self.info.store.check([key])))

    def finish(self) -> None:
        self.world = ""
        say("left", done=self.handler.shutdown())

    def withdraw(self) -> None:
        self.world = ""
        try:
            raise RuntimeError("told to")
        except RuntimeError:
            say("left", done=self.handler.shutdown())

    def bide(self, seconds: float) -> None:
        """Let time pass."""
        threading.Event().wait(seconds)
        say("bided", count=self.handler.num_nodes_waiting())

    def leave_run(self) -> None:
        """The test is over: what was opened is closed."""
        handler, self.handler, self.world = self.handler, None, ""
        if hasattr(handler, "_member"):
            handler._member.stop()
        elif handler is not None:
            handler.shutdown()  # the older etcd protocol: a node that still waits ends by that


def reset(nodes: dict[str, CommandedNode]) -> None:
    """The next test begins, without nodes."""
    for node in nodes.values():
        node.leave_run()
    nodes.clear()
    begin_test()
    say("reset")


def obey(command: Callable[..., None], arguments: dict[str, Any]) -> None:
    try:
        command(**arguments)
    except Exception as exc:  # whatever it is, the test reads it
        logging.getLogger("node").info("a command failed", exc_info=True)
        say("error", type=type(exc).__name__, text=str(exc))


def shorten_keep_alives(ttl_s: int) -> None:
    """Let the keys of the older etcd protocol live for so long; those that need more have somebody who prolongs them."""
    from rallypoint.elastic.legacy_etcd import protocol

    protocol.JOINABLE_TTL_S = protocol.FROZEN_TTL_S = protocol.KEEP_ALIVE_TTL_S = ttl_s


def shift_clocks(by_s: float) -> None:
    """Let this process's clocks differ from all others'."""
    for name in ("time", "monotonic"):
        real = getattr(time, name)
        setattr(time, name, lambda real=real: real() + by_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("--without-torch", action="store_true")
    arguments = parser.parse_args()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    if arguments.skew:
        shift_clocks(arguments.skew)
    if arguments.without_torch:
        from rallypoint.torch_bridge import stores_c10d

        stores_c10d.has_torch = lambda: False
    else:
        import torch.distributed  # noqa: F401  # now, and not in the middle of a test
    nodes: dict[str, CommandedNode] = {}
    begin_test()
    say("ready")
    for line in sys.stdin:
        order = json.loads(line)
        do, who = order.pop("do"), order.pop("who", "")
        command = partial(reset, nodes) if do == "reset" else getattr(nodes.setdefault(who, CommandedNode()), do)
        act = (_tests[-1], who, obey, command, order)
        threading.Thread(target=act_for, args=act, daemon=True).start()


if __name__ == "__main__":
    main()
