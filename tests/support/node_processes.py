"""Servers and nodes as processes that tests command and listen to.  Tests wait for events; nobody sleeps.

Every process is ended by its own id, at the end of the test at the latest.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.access_files import flags
from tests.support.forked_processes import NODES, ForkedProcess, has_stopped
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
STDERR_CHARS = 8000
"""How much of what a process said is shown when it fails: the stacks of a dozen threads."""

FAST: dict[str, Any] = {
    "heartbeat_interval": 0.3,
    "heartbeat_timeout": 3.0,
    "last_call_timeout": 1.0,
    "join_timeout": 40.0,
}
NOTHING: Mapping[str, str] = MappingProxyType({})
NIMBLE: dict[str, Any] = {**FAST, "heartbeat_interval": 0.2, "heartbeat_timeout": 1.0}

Event = dict[str, Any]


class ControlledProcess:
    """A process that says what happens in JSON lines."""

    shows_stacks = False
    """Whether it prints what each of its threads is doing when it is sent SIGUSR1."""

    def __init__(
        self, module: str, *arguments: str, before: Sequence[str] = (), imported: Sequence[str] | None = NODES
    ) -> None:
        """Start `python -m MODULE`: by a fork of a process that has `imported` something, or afresh, `before` it a command."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        self.process: ForkedProcess | subprocess.Popen[str]
        if imported is not None and not before:
            self.process = ForkedProcess(module, *arguments, environment=environment, imported=tuple(imported))
        else:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        self.seen: list[Event] = []
        self.unclaimed: list[Event] = []
        self.errors: list[str] = []
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def expect(self, kind: str, timeout_s: float = PATIENCE_S, **wanted: Any) -> Event:
        """Wait for an event of this kind with these details, be it among those that were passed over.

        An error that was not asked for fails the test.
        """
        for number, event in enumerate(self.unclaimed):
            if _is(event, kind, wanted):
                return self.unclaimed.pop(number)
        while True:
            try:
                event = self._next(timeout_s)
            except queue.Empty:
                self._show_stacks()
                raise AssertionError(f"no {kind!r} with {wanted} came; {self.account()}") from None
            except EOFError:
                raise AssertionError(f"the process ended before {kind!r} with {wanted}; {self.account()}") from None
            if _is(event, kind, wanted):
                return event
            assert event["event"] != "error", f"an error came where {kind!r} with {wanted} was awaited: {event}"
            self.unclaimed.append(event)

    def heard(self, kind: str) -> list[Event]:
        """All events of this kind that have come up to now."""
        with suppress(queue.Empty, EOFError):
            while True:
                self.unclaimed.append(self._next(0.0))
        return [event for event in self.seen if event["event"] == kind]

    def _next(self, timeout_s: float) -> Event:
        event = self._events.get(timeout=timeout_s) if timeout_s else self._events.get_nowait()
        if event is None:
            self._events.put(None)
            raise EOFError
        self.seen.append(event)
        return event

    def account(self) -> str:
        return f"seen: {self.seen}; said on stderr: {''.join(self.errors)[-STDERR_CHARS:]}"

    def _show_stacks(self) -> None:
        """Let a process that hangs say where."""
        if self.shows_stacks and self.process.poll() is None:
            before = len(self.errors)
            os.kill(self.pid, signal.SIGUSR1)
            with suppress(queue.Empty, EOFError):
                while self._next(1.0):
                    pass
            self.errors.insert(before, "its threads:\n")

    def order(self, do: str, **arguments: Any) -> None:
        """Tell the process to do something; what comes of it is an event."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")

    def pause(self) -> None:
        """SIGSTOP, and wait until it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: has_stopped(self.pid), "it has stopped")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)
            self._events.put({"event": "stderr", "line": line})


class Server(ControlledProcess):
    """A standalone server."""

    def __init__(
        self,
        port: int,
        hold_s: float,
        state: Path | None,
        open_files: int,
        before: Sequence[str] = (),
        host: str = "127.0.0.1",
        record: Path | None = None,
        access: Mapping[str, str] = NOTHING,
    ) -> None:
        arguments = ["--host", host, "--port", str(port), "--hold", str(hold_s), *flags(access)]
        arguments += ["--state", str(state)] if state else []
        arguments += ["--record", str(record)] if record else []
        if open_files:
            before = [*before, "prlimit", f"--nofile={open_files}:{open_files}"]
        super().__init__("tests.support.server_program", *arguments, before=before)
        self.host, self.port = host, port

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"


class Node(ControlledProcess):
    """A node of a run."""

    def __init__(self, name: str, *, before: Sequence[str] = ()) -> None:
        super().__init__("tests.support.node_program", before=before)
        self.name = name

    def join(self, endpoint: str, nodes: str | int, run: str = "run", *, do: str = "join", **options: Any) -> None:
        """Join; unless told otherwise, without ever hosting the server itself."""
        given = {"node_name": self.name, "is_host": False, **FAST, **options}
        given = {name: value for name, value in given.items() if value is not None}
        self.order(do, endpoint=endpoint, run=run, nodes=str(nodes), options=given)

    def join_second(self, endpoint: str, nodes: str | int, **options: Any) -> None:
        """Join with another node of the same process."""
        self.join(endpoint, nodes, do="join_second", **{"node_name": f"second-{self.name}", **options})

    def ask(self, do: str, answer: str, **arguments: Any) -> Event:
        self.order(do, **arguments)
        return self.expect(answer)

    def again(self) -> None:
        self.order("again")

    def placed(self, **wanted: Any) -> Event:
        return self.expect("placed", **wanted)

    def changed(self) -> Event:
        return self.expect("changed")

    def failed(self, kind: str) -> str:
        """Wait for this type of error; its text."""
        return str(self.expect("error", type=kind)["text"])

    def waiting(self) -> int:
        """What `num_nodes_waiting()` answers now."""
        return int(self.ask("waiting", "waiting")["count"])


class Processes:
    """Makes actors, and ends them all when the test ends."""

    def __init__(self) -> None:
        self.actors: list[ControlledProcess] = []

    def server(
        self,
        *,
        port: int = 0,
        hold_s: float = 0.0,
        state: Path | None = None,
        open_files: int = 0,
        before: Sequence[str] = (),
        host: str = "127.0.0.1",
        record: Path | None = None,
        access: Mapping[str, str] = NOTHING,
    ) -> Server:
        server = Server(port, hold_s, state, open_files, before, host, record, access)
        self.actors.append(server)
        server.port = int(server.expect("serving")["port"])
        return server

    def nodes(self, *names: str, before: Sequence[str] = ()) -> list[Node]:
        nodes: list[Node] = []
        for name in names:
            nodes.append(Node(name, before=before))
            self.actors.append(nodes[-1])
        for node in nodes:
            node.expect("ready")
        return nodes

    def node(self, name: str, *, before: Sequence[str] = ()) -> Node:
        return self.nodes(name, before=before)[0]

    def end(self) -> None:
        for actor in self.actors:
            actor.kill()


def _is(event: Event, kind: str, wanted: dict[str, Any]) -> bool:
    return event["event"] == kind and all(event.get(name) == value for name, value in wanted.items())


def by_rank(nodes: Sequence[Node], **wanted: Any) -> list[Node]:
    """The nodes in the order of the ranks that they get; all of them in one world."""
    places = {node.name: node.placed(**wanted) for node in nodes}
    assert len({place["fence"] for place in places.values()}) == 1, places
    assert sorted(place["rank"] for place in places.values()) == list(range(len(nodes))), places
    assert {place["size"] for place in places.values()} == {len(nodes)}, places
    return sorted(nodes, key=lambda node: int(places[node.name]["rank"]))


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
