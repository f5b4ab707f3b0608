"""`rallypoint demo`: four launchers on this machine add up numbers, through deaths, a newcomer and a change of server.

Each step is read off what the launchers and their workers really did; the exit code is 0 only if all of it happened and the
sum is right.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rallypoint.cli.exit_codes import ExitCode
from rallypoint.cli.output import print_error

if TYPE_CHECKING:
    from rallypoint.cli.demo_processes import Demo, Launcher

HELP = "show a run with real processes on this machine, with deaths and a change of server, in a few seconds"
SETTINGS = "last_call_timeout=20,heartbeat_interval=0.2,heartbeat_timeout=3,join_timeout=30"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes no arguments."""


def run(args: argparse.Namespace) -> int:
    """Play it; 0 only if all of it happened."""
    from rallypoint.cli.demo_processes import Demo, DemoError

    started = time.monotonic()
    demo = Demo()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, demo.interrupt)
    try:
        with demo.running():
            _Steps(demo).play()
    except DemoError as exc:
        print_error("demo", f"this should not have happened: {exc}")
        return ExitCode.FAILED
    print(f"All of it happened, in {time.monotonic() - started:.1f} s.", flush=True)
    return 0


class _Steps:
    """What happens, step by step."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._port = _free_port()
        self._nodes: list[Launcher] = []

    def play(self) -> None:
        for step in (self._meet, self._crash, self._lose_one, self._grow, self._change_server, self._finish):
            step()

    def _meet(self) -> None:
        self._demo.say("Four launchers start; the run wants two to four. Their workers add up 1, 2, 3, …", heading=True)
        self._nodes = [self._launch("node1")]
        self._demo.wait(self._is_served, "node1 served the run")
        self._nodes += [self._launch(f"node{number}") for number in (2, 3, 4)]
        self._await_round(1, "four nodes counted together")
        self._demo.say(f"they count: {self._ranks()}; node1 was the first, so it serves the others")

    def _crash(self) -> None:
        victim = self._nodes[2]
        rank = victim.place()[1]
        self._demo.say(f"The worker of {victim.name}, rank {rank}, is killed with SIGKILL.", heading=True)
        self._disturb(lambda: os.kill(victim.worker(), signal.SIGKILL), 2, "the workers were started again")
        found = f"rank {rank} on "
        verdicts = {next((line for line in node.lines() if found in line), "") for node in self._nodes}
        self._demo.demand(
            len(verdicts) == 1 and "" not in verdicts, f"the nodes do not agree on what failed: {sorted(verdicts)}"
        )
        self._demo.say(f"every node says: {verdicts.pop().removeprefix('rallypoint: ')}")

    def _lose_one(self) -> None:
        victim = self._nodes.pop(1)
        self._demo.say(f"{victim.name} is killed with SIGKILL, launcher and all.", heading=True)
        self._disturb(victim.kill, 3, "the other three regrouped")

    def _grow(self) -> None:
        self._demo.say("A fifth node arrives.", heading=True)
        self._disturb(lambda: self._nodes.append(self._launch("node5")), 4, "the fifth node was let in")

    def _change_server(self) -> None:
        victim = self._nodes.pop(0)
        self._demo.say(f"{victim.name}, which serves, is killed with SIGKILL: another has to.", heading=True)
        self._disturb(victim.kill, 5, "another node served and the three regrouped")

    def _finish(self) -> None:
        self._demo.say("It is enough.", heading=True)
        (self._demo.folder / "enough").touch()
        self._demo.wait(lambda: all(node.outcome for node in self._nodes), "all nodes finished")
        counted, total = self._demo.checkpoint()
        self._demo.demand(
            total == counted * (counted + 1) // 2,
            f"1 to {counted} were added up to {total}: one was lost or came twice",
        )
        self._demo.say(
            f"every launcher ended with exit code 0; 1 to {counted} add up to {total}: nothing lost or twice"
        )

    # Doing things -------------------------------------------------------------------------------------------------

    def _launch(self, name: str) -> Launcher:
        meeting = ("--rdzv", f"127.0.0.1:{self._port}", "--run-id", "demo", "--nnodes", "2:4")
        return self._demo.launch(name, *meeting, "--rdzv-conf", f"{SETTINGS},node_name={name}", "--grace", "2")

    def _is_served(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False

    def _disturb(self, action: Callable[[], object], number: int, what: str) -> None:
        """Do something that ends the round; say how long it took until the next one counted on."""
        before, began = self._demo.checkpoint()[0], time.monotonic()
        action()
        self._await_round(number, what)
        self._demo.say(
            f"they counted on after {(time.monotonic() - began) * 1000:.0f} ms, from {before}: {self._ranks()}"
        )

    def _await_round(self, number: int, what: str) -> None:
        """Wait until the nodes, and no others, are in one world of this round, which has saved a checkpoint."""

        def is_counting() -> bool:
            places = sorted(node.place() for node in self._nodes)
            return places == [(number, rank, len(places)) for rank in range(len(places))] and self._demo.has_saved(
                number
            )

        self._demo.wait(is_counting, what)

    def _ranks(self) -> str:
        placed = sorted((node.place(), node.name) for node in self._nodes)
        return f"round {placed[0][0][0]}, " + ", ".join(f"{name} rank {place[1]}" for place, name in placed)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
