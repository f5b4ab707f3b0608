"""A scripted run to look at: four nodes meet, one is lost, a spare steps in, the server restarts, the work is done."""

from __future__ import annotations

import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rallypoint.client.view import State
from rallypoint.messages.types import Bounds, Settings
from simulation.cluster import Cluster
from simulation.commands import perform

SCRIPT = [
    (
        "Three nodes come; the run wants two to four, so the last call runs.",
        ["start node1", "start node2", "start node3"],
    ),
    ("", ["advance 1"]),
    ("A fourth arrives: that is the maximum, and the world is sealed at once.", ["start node4", "advance 1"]),
    ("A fifth is surplus: it stands by as a spare.", ["start node5", "advance 1"]),
    ("node2 is killed. The others are told, and node5 takes its place.", ["kill node2", "advance 1.5"]),
    ("The server is killed. Workers keep running; nobody is told to stop.", ["crash", "advance 1.5"]),
    ("It comes back without its memory, and learns everything from the nodes.", ["restart", "advance 2"]),
    ("node3 is cut off from the network for longer than its time-out …", ["cut node3", "advance 6.5"]),
    ("… and learns that it is out when it is back. It joins again as a newcomer.", ["heal node3", "advance 3"]),
    ("The work is done.", ["finish node1", "finish node3", "finish node4", "finish node5", "advance 0.5"]),
]
LINES = 14
STEP_S = 0.1
COLOURS = {State.HOLDS: "green", State.WAITING: "yellow", State.SPARE: "cyan", State.BROKEN: "red", State.FENCED: "red"}


def show(pace: float) -> int:
    """Play the script, on a terminal with a live table, elsewhere as plain lines; 0 if it ended as it should."""
    cluster = Cluster(1, Bounds(2, 4), Settings(last_call_s=10.0, reconnect_backoff_s=0.5), talkative=True)
    console = Console()
    if console.is_terminal:
        with Live(console=console, refresh_per_second=20) as live:
            for words, commands in SCRIPT:
                if words:
                    cluster.log.append(f"[bold]{words}[/bold]")
                for command in commands:
                    _perform(cluster, command, pace, lambda: live.update(_picture(cluster)))
    else:
        for words, commands in SCRIPT:
            _say(cluster, words)
            for command in commands:
                _perform(cluster, command, 0, lambda: None)
                _say(cluster)
    ended = (
        cluster.run is not None and cluster.run.closing is not None and cluster.run.closing.ending.value == "succeeded"
    )
    print("The run closed well." if ended else f"This should not have happened: {cluster.situation()}")
    return 0 if ended else 1


def _perform(cluster: Cluster, command: str, pace: float, then: object) -> None:
    verb, _, words = command.partition(" ")
    left = float(words) if verb == "advance" else 0.0
    if verb != "advance":
        perform(cluster, command)
    while left > 0:
        perform(cluster, f"advance {min(left, STEP_S)}")
        left -= STEP_S
        if callable(then):
            then()
        time.sleep(STEP_S * pace)


def _say(cluster: Cluster, words: str = "") -> None:
    for line in cluster.log:
        print(line)
    cluster.log.clear()
    if words:
        print(f"\n{words}")
    sys.stdout.flush()


def _picture(cluster: Cluster) -> Group:
    table = Table(title=f"run {cluster.run_id!r}, {cluster.time:.1f} s", title_justify="left", expand=True)
    for column in ("node", "state", "round", "rank", "why"):
        table.add_column(column)
    for name, agent in sorted(cluster.agents.items()):
        view = agent.view
        state = view.state.value if agent.alive else "gone"
        world_now = view.world if agent.alive and view.state is State.HOLDS else None
        place = (str(world_now.round), f"{world_now.rank} of {world_now.size}") if world_now else ("", "")
        colour = COLOURS.get(view.state, "white") if agent.alive else "dim"
        table.add_row(name, Text(state, colour), *place, view.why if agent.alive else "")
    recent = [Text.from_markup(line) if line.startswith("[") else Text(line) for line in cluster.log[-LINES:]]
    return Group(table, Text(cluster.situation(), "bold"), Text(), *recent)
