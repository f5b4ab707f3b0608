"""Ctrl-C in any wait ends the process at once, and nobody counts it any more: real processes, real signals."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.etcd_node_processes import OPTIONS, EtcdNode, Observer, fresh_run, observing
from tests.support.etcd_servers import running, shared
from tests.support.node_processes import FAST, ControlledProcess, Node, Processes, free_port
from tests.support.waiting import until

UNTIMED_S = 15.0
"""On a busy machine too it has ended by then, and no time-out has: those are 30 s and more.  How long it takes, a soak measures."""
A_SECOND_S = 1.0
TRIALS = 5

Hang = Callable[[], object]


class Interruptible(ControlledProcess):
    """A program that waits in its main thread."""

    def __init__(self, do: str, **arguments: Any) -> None:
        super().__init__("tests.faults.waiting_program", json.dumps({"do": do, "with": arguments}))

    def press(self) -> None:
        """Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def interrupt(self, times: int = 1) -> float:
        """Ctrl-C; it ends by that signal, with the main thread's traceback and no other; how long that took."""
        began = time.monotonic()
        for _ in range(times):
            self.press()
        self.process.wait(30)
        elapsed_s = time.monotonic() - began
        for reader in self._readers:
            reader.join()
        said = "".join(self.errors)
        assert self.process.returncode == -signal.SIGINT, said
        assert elapsed_s < UNTIMED_S, said
        # A second signal may interrupt the printing of the traceback; Python then says in other lines what it was.
        assert said.rstrip().endswith("KeyboardInterrupt") or (times > 1 and "lost sys.stderr" in said), said
        assert said.count("Traceback") - said.count("During handling of") == 1, said
        assert "Exception in" not in said, said
        assert "never retrieved" not in said, said
        return elapsed_s


class Meeting:
    """A way to meet: where, with which options, and who else comes."""

    never_serves: Mapping[str, bool] = {}

    def __init__(self, processes: Processes, endpoint: str, run: str, **options: Any) -> None:
        self.processes, self.endpoint, self.run, self.options = processes, endpoint, run, options

    def program(self, do: str, nodes: str | int, **options: Any) -> Interruptible:
        """Start the program that will be interrupted; its node is called `a`."""
        given = {**self.options, "node_name": "a", **options}
        program = Interruptible(do, endpoint=self.endpoint, run=self.run, nodes=str(nodes), **given)
        self.processes.actors.append(program)
        return program

    def node(self, name: str, nodes: str | int, **options: Any) -> Node:
        """Another node, which joins."""
        node = self.processes.node(name)
        node.join(self.endpoint, nodes, self.run, **{"is_host": None, **self.options, **options})
        return node

    def left_behind(self) -> None:
        """Nothing of the program is there any more."""


class EtcdMeeting(Meeting):
    """Through etcd: the program serves where it was first."""

    never_serves: Mapping[str, bool] = {"is_host": False}  # so that a claim that is left behind is the program's

    def __init__(self, processes: Processes, run: str, observer: Observer, endpoint: str) -> None:
        # A claim that is still there after this test was left behind, and has not just expired.
        super().__init__(processes, f"etcd://{endpoint}", run, **{**OPTIONS, "lease_ttl": 60})
        self.observer = observer

    def node(self, name: str, nodes: str | int, **options: Any) -> Node:
        node = EtcdNode(name)
        self.processes.actors.append(node)
        node.expect("ready")
        given = {**self.options, **options}
        node.join(self.endpoint.removeprefix("etcd://"), nodes, self.run, **given)
        return node

    def left_behind(self) -> None:
        assert self.observer.claims() == ()


MEETINGS = ("server", "hosted", "c10d", "file", "etcd-v2", "etcd")


@pytest.fixture(params=MEETINGS)
def meeting(request: pytest.FixtureRequest, processes: Processes, tmp_path: Path) -> Iterator[Meeting]:
    """A server of its own or in the program, or one that is elected: by a store in the program, a file, etcd."""
    with ExitStack() as ends:
        if request.param == "etcd":
            run, endpoints = fresh_run(), shared("3.5", 3).endpoints
            yield EtcdMeeting(processes, run, ends.enter_context(observing(endpoints, run)), endpoints)
        elif request.param == "server":
            yield Meeting(processes, processes.server().endpoint, "run", **FAST, is_host=False)
        elif request.param == "etcd-v2":
            yield Meeting(processes, f"etcd-v2://{shared('3.5').endpoint}", fresh_run(), **FAST)
        else:
            address = f"127.0.0.1:{free_port()}"
            places = {"hosted": address, "c10d": f"c10d://{address}", "file": f"file://{tmp_path}/register"}
            yield Meeting(processes, places[request.param], "run", **FAST)


@pytest.fixture(params=["", "c10d://", "etcd-v2://", "etcd://"])
def nobody(request: pytest.FixtureRequest, processes: Processes) -> Meeting:
    """Nobody is there."""
    endpoint = f"{request.param}127.0.0.1:{free_port()}"
    options = {"": {**FAST, "is_host": False}, "c10d://": {**FAST, "is_host": False}, "etcd-v2://": FAST}
    return Meeting(processes, endpoint, "run", **options.get(request.param, OPTIONS))


@pytest.fixture(params=["c10d", "file", "etcd-v2", "etcd"])
def hanging(request: pytest.FixtureRequest, processes: Processes, tmp_path: Path) -> Iterator[tuple[Meeting, Hang]]:
    """A medium that names the server, and what makes it hang: it takes questions, and answers none."""
    with ExitStack() as ends:
        if request.param == "file":
            path = tmp_path / "register"
            yield Meeting(processes, f"file://{path}", "run", **FAST), lambda: _lock(path, ends)
        elif request.param == "c10d":
            store = ControlledProcess("tests.support.store_server_program", "ours", "0")
            processes.actors.append(store)
            port = store.expect("serving")["port"]
            yield Meeting(processes, f"c10d://127.0.0.1:{port}", "run", **FAST, is_host=False), store.pause
        else:
            (member,) = ends.enter_context(running("3.5")).members
            options = OPTIONS if request.param == "etcd" else FAST
            yield Meeting(processes, f"{request.param}://{member.endpoint}", "run", **options), member.pause


def _lock(path: Path, ends: ExitStack) -> None:
    """Keep the lock of a store in a file, as a process does that is stopped while it has it."""
    file = ends.enter_context(path.open("rb+"))
    fcntl.flock(file, fcntl.LOCK_EX)


def is_forgotten(meeting: Meeting, nodes: int) -> None:
    """Somebody who comes now finds itself alone."""
    other = meeting.node("z", nodes, join_timeout=1.5)
    text = other.failed("RendezvousTimeoutError")
    assert "here (z);" in text or "left (z);" in text, text


def test_while_the_server_is_absent(nobody: Meeting) -> None:
    program = nobody.program("join", 2)
    program.expect("waits")
    program.interrupt()


def test_twice(nobody: Meeting) -> None:
    program = nobody.program("join", 2)
    program.expect("waits")
    program.interrupt(times=2)


@pytest.mark.parametrize("do", ["join", "wait_for_change", "handler_joins", "wait_for_change_outside"])
def test_the_second_one_does_not_wait_as_the_first_does(processes: Processes, do: str) -> None:
    """A server that hangs does not confirm the goodbye, which the first one would wait for here for ten minutes."""
    server = processes.server()
    meeting = Meeting(processes, server.endpoint, "run", **FAST, is_host=False)
    program = meeting.program(do, 1 if do.startswith("wait") else 2, hurry_s=600.0)
    program.expect("waits")
    server.pause()
    program.press()
    program.expect("leaves")
    program.interrupt()


def _measure(what: str, waiting: Callable[[], Interruptible]) -> None:
    """An interrupted process is gone within a second, as the median of some; the figures are printed."""
    times_s = [waiting().interrupt() for _ in range(TRIALS)]
    middle_s = statistics.median(times_s)
    print(f"Ctrl-C, {what}: gone after {middle_s:.2f} s (median of {TRIALS}; the longest took {max(times_s):.2f} s)")
    assert middle_s < A_SECOND_S, times_s


@pytest.mark.soak
@pytest.mark.parametrize("do", ["join", "wait_for_change"])
def test_it_takes_less_than_a_second(meeting: Meeting, do: str) -> None:
    def waiting() -> Interruptible:
        program = meeting.program(do, 2 if do == "join" else 1)
        program.expect("waits")
        return program

    _measure(f"{meeting.endpoint}, {do}", waiting)


@pytest.mark.soak
@pytest.mark.parametrize("do", ["join", "wait_for_change"])
def test_it_takes_less_than_a_second_where_the_server_hangs(processes: Processes, do: str) -> None:
    def waiting() -> Interruptible:
        server = processes.server()
        meeting = Meeting(processes, server.endpoint, "run", **FAST, is_host=False)
        program = meeting.program(do, 2 if do == "join" else 1)
        program.expect("waits")
        server.pause()
        return program

    _measure(f"the server hangs, {do}", waiting)


@pytest.mark.parametrize("do", ["join", "wait_for_change"])
def test_while_the_medium_hangs(hanging: tuple[Meeting, Hang], do: str) -> None:
    """What names the server cannot be told that this process serves no longer: it expires, or is found to be stale."""
    meeting, hang = hanging
    program = meeting.program(do, 2 if do == "join" else 1)
    program.expect("waits")
    hang()
    took_s = program.interrupt()
    print(f"Ctrl-C, {meeting.endpoint} hangs, {do}: gone after {took_s:.2f} s")


@pytest.mark.parametrize("scheme", ["", "c10d://", "etcd-v2://", "etcd://"])
def test_while_a_name_is_looked_up(processes: Processes, scheme: str) -> None:
    meeting = Meeting(processes, f"{scheme}hangs.invalid:29400", "run", **(OPTIONS if scheme == "etcd://" else FAST))
    program = meeting.program("join_a_name", 2)
    program.expect("waits")
    program.interrupt()


NAMED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "c10d": ({"is_host": False}, ["keep_trying"]),
    "static": ({"rank": 1}, ["keep_trying"]),
    "etcd-v2": ({}, ["_settle"]),
    "etcd": ({}, ["next_rendezvous"]),
}
"""Handlers by PyTorch's names: their options, and where each of them waits for others."""


def _named(processes: Processes, backend: str, endpoint: str, inside: list[str]) -> Interruptible:
    options = {**NAMED[backend][0], "backend": backend, "inside": inside}
    program = Interruptible("named_handler_joins", endpoint=endpoint, run=fresh_run(), nodes="2", **options)
    processes.actors.append(program)
    return program


@pytest.mark.parametrize("backend", NAMED)
def test_while_a_handler_by_the_name_of_torchs_waits(processes: Processes, backend: str) -> None:
    endpoint = shared("3.4").endpoint if backend.startswith("etcd") else f"127.0.0.1:{free_port()}"
    program = _named(processes, backend, endpoint, NAMED[backend][1])
    program.expect("waits")
    program.interrupt()


@pytest.mark.parametrize("backend", NAMED)
def test_while_a_handler_by_the_name_of_torchs_looks_up_a_name(processes: Processes, backend: str) -> None:
    program = _named(processes, backend, "hangs.invalid:29400", ["look_up", "interruptible"])
    program.expect("waits")
    program.interrupt()


def test_while_closing(nobody: Meeting) -> None:
    program = nobody.program("handler_closes", 2)
    program.expect("waits")
    program.interrupt()


@pytest.mark.parametrize("do", ["join", "handler_joins"])
def test_while_nodes_are_missing(meeting: Meeting, do: str) -> None:
    program = meeting.program(do, 2)
    program.expect("waits")
    program.interrupt()
    meeting.left_behind()
    is_forgotten(meeting, 2)


@pytest.mark.parametrize(
    ("meeting", "do"),
    [
        *((where, "join") for where in MEETINGS),
        ("server", "handler_joins"),
        # Each takes seconds; that a handler withdraws, `test_while_nodes_are_missing` shows everywhere.
        *(pytest.param(where, "handler_joins", marks=pytest.mark.soak) for where in MEETINGS[1:]),
    ],
    indirect=["meeting"],
)
def test_others_who_wait_are_told(meeting: Meeting, do: str) -> None:
    """A node that waits hears at once that one less is here."""
    program = meeting.program(do, 3)
    program.expect("waits")
    other = meeting.node("b", 3, join_timeout=8.0)
    program.interrupt()
    assert "here (b);" in other.failed("RendezvousTimeoutError")


def test_while_joining_again(meeting: Meeting) -> None:
    program = meeting.program("join_again", 2)
    other = meeting.node("b", 2, **meeting.never_serves)
    program.expect("placed")
    other.placed(size=2)
    other.kill()
    program.expect("waits")
    program.interrupt()
    meeting.left_behind()


def test_while_standing_by(meeting: Meeting) -> None:
    other = meeting.node("b", 1)
    other.placed(size=1)
    program = meeting.program("join", 1)
    program.expect("waits")
    until(lambda: "standing by as a spare" in "".join(program.errors), "it says that it stands by")
    program.interrupt()
    other.order("finish")
    assert other.expect("left")["done"]


@pytest.mark.parametrize("do", ["wait_for_change", "wait_for_change_outside", "read_store"])
def test_while_in_a_world(meeting: Meeting, do: str) -> None:
    program = meeting.program(do, 2)
    other = meeting.node("b", 2)
    program.expect("placed")
    other.placed(size=2)
    program.expect("waits")
    program.interrupt()
    assert not other.changed()["closed"]
    why = other.heard("changed")[0]["why"]
    assert why.startswith("a withdrew"), why


@pytest.mark.parametrize("meeting", ["etcd"], indirect=True)
def test_while_it_waits_for_a_key_in_etcd(meeting: Meeting) -> None:
    program = meeting.program("read_store", 1, store="etcd")
    program.expect("waits")
    program.interrupt()
    meeting.left_behind()


@pytest.mark.parametrize("meeting", ["server", "etcd", "file"], indirect=True)
def test_while_it_stays_for_the_others(meeting: Meeting) -> None:
    """It has finished: the others do not mind, whatever becomes of its process.

    A server in the program has no record, and takes what it knows of finishes along (rule 14): it is not asked.
    """
    program = meeting.program("finish", 2, rank=0)
    other = meeting.node("b", 2, rank=1)
    program.expect("placed", rank=0)
    other.placed(size=2)
    program.expect("waits")
    program.interrupt()
    assert other.ask("bide", "bided", seconds=1.0)["news"] is False, other.account()


@pytest.mark.parametrize("do", ["wait_for_change", "join_again", "wait_for_change_outside", "handler_joins"])
def test_while_the_server_hangs(processes: Processes, do: str) -> None:
    server = processes.server()
    meeting = Meeting(processes, server.endpoint, "run", **FAST, is_host=False)
    if do == "join_again":
        program = meeting.program(do, 2)
        other = meeting.node("b", 2)
        program.expect("placed")
        other.placed()
        other.kill()
        server.expect("happened", phase="gathering")
    else:
        program = meeting.program(do, 1 if do.startswith("wait") else 2)
    program.expect("waits")
    server.pause()
    program.interrupt()
    server.resume()
