"""`rallypoint demo`: real processes on this machine meet, lose one, outlive their server, and grow.

Four nodes form a world; one is killed and the others regroup; the server is killed and restarted, and nobody notices; a
fifth node arrives and the world grows; all finish.  Nothing is assumed: each step is what the nodes themselves report,
and the exit code is 0 only if all of it happened.
"""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rallypoint.cli.exit_codes import ExitCode
from rallypoint.cli.output import is_terminal, print_error

if TYPE_CHECKING:
    from rallypoint.cli.demo_display import Display
    from rallypoint.cli.demo_processes import ChildProcess, ProcessGroup

HELP = "show a run with real processes on this machine, with a death and a restart, in a few seconds"
RUN_ID = "demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes no arguments."""


def run(args: argparse.Namespace) -> int:
    """Play it; 0 only if all of it happened."""
    import tempfile

    from rallypoint.cli.demo_display import live_display, plain_display
    from rallypoint.cli.demo_processes import DemoError, Interruption, ProcessGroup

    interruption = Interruption()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, interruption.ask)  # so that what was started is ended, too
    started = time.monotonic()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="rallypoint-demo-") as folder,
            live_display() if is_terminal() else plain_display() as display,
            ProcessGroup(Path(folder), display.draw, interruption) as group,
        ):
            display.children = group.children
            _Scenario(group, display, Path(folder) / "state").play()
    except DemoError as exc:
        print_error("demo", f"this should not have happened: {exc}")
        return ExitCode.FAILED
    print(f"All of it happened, in {time.monotonic() - started:.1f} s.", flush=True)
    return 0


class _Scenario:
    """The acts, in their order."""

    def __init__(self, group: ProcessGroup, display: Display, state: Path) -> None:
        self._group = group
        self._display = display
        self._state = state
        self._endpoint = ""
        self._nodes: list[ChildProcess] = []

    def play(self) -> None:
        server = self._serve("127.0.0.1:0")
        self._say(f"A server listens on {self._endpoint}.", act=True)
        self._meet()
        self._lose_one()
        server = self._restart(server)
        self._grow()
        self._finish(server)

    def _meet(self) -> None:
        self._say("Four nodes come; the run wants three or four.", act=True)
        self._nodes = [self._node(f"node{number}") for number in range(1, 5)]
        self._wait_for_world(after=0, what="four nodes formed a world")
        arrived = max(_moment(node, "joining") for node in self._nodes)
        self._say(f"formed in {_ms(self._placed_at() - arrived)} after the last had arrived: {self._ranks()}")

    def _lose_one(self) -> None:
        victim = next(node for node in self._nodes if node.place["rank"] == 0)
        before = victim.place["round"]
        self._say(f"{victim.name}, which is rank 0, is killed with SIGKILL.", act=True)
        killed = victim.kill()
        self._nodes.remove(victim)
        self._wait_for_world(after=before, what="the others regrouped")
        noticed = max(_moment(node, "changed") for node in self._nodes)
        self._say(f"loss noticed after {_ms(noticed - killed)}")
        self._say(f"regrouped after {_ms(self._placed_at() - killed)}: {self._ranks()}")

    def _restart(self, server: ChildProcess) -> ChildProcess:
        self._say("The server is killed with SIGKILL, and started again on the same port.", act=True)
        steps = [len(node.messages) for node in self._nodes]
        killed = server.kill()
        server = self._serve(self._endpoint)
        away = time.monotonic() - killed
        for node in self._nodes:
            node.order("roll call")
        self._group.wait(
            lambda: all(node.last("roll call") for node in self._nodes), "the nodes found the server again"
        )
        survived = max(_moment(node, "roll call") for node in self._nodes)
        names = sorted(node.name for node in self._nodes)
        for node, before in zip(self._nodes, steps, strict=True):
            since = [message.said for message in node.messages[before:]]
            _demand(
                len(since) == 1 and sorted(since[0]["names"]) == names,
                f"{node.name} was to hear of nothing but the same peers, and reports {since}",
            )
        self._say(f"server restart survived in {_ms(survived - killed)}, of which it was away for {_ms(away)}")
        self._say(f"nobody was told to restart, and every rank is as it was: {self._ranks()}")
        return server

    def _grow(self) -> None:
        self._say("A fifth node arrives.", act=True)
        before = {node.name: node.place for node in self._nodes}
        last = max(place["round"] for place in before.values())
        newcomer = self._node("node5")
        self._nodes.append(newcomer)
        self._wait_for_world(after=last, what="the fifth node was let in")
        for node in self._nodes[:-1]:
            _demand(node.place["rank"] == before[node.name]["rank"], f"{node.name} changed its rank: {node.place}")
        _demand(newcomer.place["round"] == last + 1, f"one round was to follow {last}, not {newcomer.place['round']}")
        grown = self._placed_at() - _moment(newcomer, "joining")
        self._say(f"grown after {_ms(grown)}: {self._ranks()}")

    def _finish(self, server: ChildProcess) -> None:
        from rallypoint.cli.arguments import listen_address
        from rallypoint.client.admin_client import AdminClient

        self._say("All finish.", act=True)
        for node in self._nodes:
            node.order("finish")
        self._group.wait_for_ends(self._nodes, "all nodes finished")
        with AdminClient(*listen_address(self._endpoint)) as admin:
            line = admin.status(RUN_ID).run
        _demand(line is not None and line.situation.startswith("closed as succeeded"), f"the run is not over: {line}")
        assert line is not None, "demanded above"
        server.process.terminate()
        self._group.wait_for_ends([server], "the server ended")
        self._say(f"every node and the server ended with exit code 0; the run is {line.situation}")

    # Doing things -------------------------------------------------------------------------------------------------

    def _serve(self, bind: str) -> ChildProcess:
        started = ("rallypoint", "serve", "--bind", bind, "--state", str(self._state))
        server = self._group.start("server", *started)
        self._group.wait(lambda: bool(server.messages), "the server listened")
        self._endpoint = server.messages[0].line.rpartition(" ")[2]
        return server

    def _node(self, name: str) -> ChildProcess:
        return self._group.start(name, "rallypoint.cli.demo_node", self._endpoint, RUN_ID, name)

    def _wait_for_world(self, after: int, what: str) -> None:
        """Wait until all nodes are in one world of a later round, and hold its ranks between them."""
        self._group.wait(lambda: self._is_one_world(after), what)
        ranks = sorted(node.place["rank"] for node in self._nodes)
        _demand(ranks == list(range(len(self._nodes))), f"the ranks were to be 0 to {len(ranks) - 1}, not {ranks}")

    def _is_one_world(self, after: int) -> bool:
        places = [node.place for node in self._nodes]
        if not all(place and place["round"] > after and place["size"] == len(places) for place in places):
            return False
        return len({place["fence"] for place in places}) == 1

    def _placed_at(self) -> float:
        return max(_moment(node, "placed") for node in self._nodes)

    def _ranks(self) -> str:
        ordered = sorted(self._nodes, key=_rank)
        places = ", ".join(f"{node.name} rank {node.place['rank']}" for node in ordered)
        return f"round {ordered[0].place['round']}, {places}"

    def _say(self, words: str, *, act: bool = False) -> None:
        if act:
            self._group.linger(self._display.pause_s)
        self._display.say(words, act=act)


def _rank(node: ChildProcess) -> int:
    rank: int = node.place["rank"]
    return rank


def _moment(node: ChildProcess, event: str) -> float:
    message = node.last(event)
    _demand(message is not None, f"{node.name} never said {event!r}")
    assert message is not None, "demanded above"
    return message.at


def _demand(holds: Any, otherwise: str) -> None:
    from rallypoint.cli.demo_processes import DemoError

    if not holds:
        raise DemoError(otherwise)


def _ms(duration_s: float) -> str:
    return f"{duration_s * 1000:.0f} ms"
