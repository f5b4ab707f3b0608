"""`rallypoint demo`: real processes on this machine meet, lose one, outlive their server, and grow.

Each step is what the nodes and the server themselves report; the exit code is 0 only if all of it happened.
"""

from __future__ import annotations

import argparse
import signal
import time
from typing import TYPE_CHECKING

from rallypoint.cli.exit_codes import ExitCode
from rallypoint.cli.output import print_error

if TYPE_CHECKING:
    from rallypoint.cli.demo_processes import Demo, Process
    from rallypoint.report import RunLine

HELP = "show a run with real processes on this machine, with a death and a restart, in a few seconds"
RUN_ID = "demo"


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
        self._server, self._endpoint = self._serve("127.0.0.1:0")
        self._nodes: list[Process] = []

    def play(self) -> None:
        self._demo.say(f"A server listens on {self._endpoint}.", heading=True)
        for step in (self._meet, self._lose_one, self._restart, self._grow, self._finish):
            step()

    def _meet(self) -> None:
        self._demo.say("Four nodes come; the run wants three or four.", heading=True)
        self._nodes = [self._node(f"node{number}") for number in range(1, 5)]
        self._wait_for_world(1, "four nodes formed a world")
        formed_s = self._latest("placed") - self._latest("joining")
        self._demo.say(f"formed in {_ms(formed_s)} after the last had arrived: {self._ranks()}")

    def _lose_one(self) -> None:
        victim = next(node for node in self._nodes if _rank(node) == 0)
        self._demo.say(f"{victim.name}, which is rank 0, is killed with SIGKILL.", heading=True)
        killed = victim.kill()
        self._nodes.remove(victim)
        self._wait_for_world(2, "the others regrouped")
        self._demo.say(f"loss noticed after {_ms(self._latest('changed') - killed)}")
        self._demo.say(f"regrouped after {_ms(self._latest('placed') - killed)}: {self._ranks()}")

    def _restart(self) -> None:
        self._demo.say("The server is killed with SIGKILL, and started again on the same port.", heading=True)
        killed = self._server.kill()
        before = [node.events() for node in self._nodes]
        self._server, _ = self._serve(self._endpoint)
        away_s = time.monotonic() - killed
        # It recovers until every rank of the world has told it that it goes on (rule 14).
        self._demo.wait(lambda: self._report().phase == "sealed", "the nodes found the server again")
        survived_s = time.monotonic() - killed
        self._demo.demand([node.events() for node in self._nodes] == before, "a node was told to restart")
        self._demo.say(f"server restart survived in {_ms(survived_s)}, of which it was away for {_ms(away_s)}")
        self._demo.say(f"nobody was told to restart, and every rank is as it was: {self._ranks()}")

    def _grow(self) -> None:
        self._demo.say("A fifth node arrives.", heading=True)
        before = [_rank(node) for node in self._nodes]
        newcomer = self._node("node5")
        self._nodes.append(newcomer)
        self._wait_for_world(3, "the fifth node was let in")
        self._demo.demand(
            [_rank(node) for node in self._nodes[:-1]] == before, f"a node changed its rank: {self._ranks()}"
        )
        grown_s = self._latest("placed") - newcomer.last("joining")["at"]
        self._demo.say(f"grown after {_ms(grown_s)}: {self._ranks()}")

    def _finish(self) -> None:
        self._demo.say("All finish.", heading=True)
        for node in self._nodes:
            assert node.popen.stdin is not None, "started with a pipe"
            node.popen.stdin.close()
        self._demo.wait(lambda: all(node.outcome for node in self._nodes), "all nodes finished")
        report = self._report()
        self._demo.demand(report.ending == "succeeded", f"the run is not over: {report.situation}")
        self._server.popen.terminate()
        self._demo.wait(lambda: self._server.outcome != "", "the server ended")
        self._demo.say(f"every node and the server ended with exit code 0; the run is {report.situation}")

    # Doing things -------------------------------------------------------------------------------------------------

    def _serve(self, bind: str) -> tuple[Process, str]:
        server = self._demo.start(
            "server", "rallypoint", "serve", "--bind", bind, "--state", str(self._demo.folder / "state")
        )
        self._demo.wait(lambda: server.lines() != [], "the server listened")
        return server, server.lines()[0].rpartition(" ")[2]

    def _node(self, name: str) -> Process:
        return self._demo.start(name, "rallypoint.cli.demo_node", self._endpoint, RUN_ID, name, "3:4")

    def _wait_for_world(self, number: int, what: str) -> None:
        """Wait until the nodes, and no others, are in one world of this round."""

        def is_formed() -> bool:
            places = [node.last("placed") for node in self._nodes]
            if len({place.get("fence") for place in places}) > 1 or places[0].get("round") != number:
                return False
            return sorted(place["rank"] for place in places) == list(range(places[0]["size"]))

        self._demo.wait(is_formed, what)

    def _report(self) -> RunLine:
        """Where the run stands, as the server says."""
        from rallypoint.cli.arguments import listen_address
        from rallypoint.client.admin_client import AdminClient

        with AdminClient(*listen_address(self._endpoint)) as admin:
            line = admin.status(RUN_ID).run
        assert line is not None, "the server answers with a run, or says that there is none"
        return line

    def _latest(self, event: str) -> float:
        return max(float(node.last(event)["at"]) for node in self._nodes)

    def _ranks(self) -> str:
        ordered = sorted(self._nodes, key=_rank)
        ranks = ", ".join(f"{node.name} rank {_rank(node)}" for node in ordered)
        return f"round {ordered[0].last('placed')['round']}, {ranks}"


def _rank(node: Process) -> int:
    return int(node.last("placed")["rank"])


def _ms(duration_s: float) -> str:
    return f"{duration_s * 1000:.0f} ms"
