"""What the demo shows: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

    from rallypoint.cli.demo_stage import Actor

PAUSE_S = 1.3
"""Between the acts, for the eye; without a terminal there is none."""


class Screen:
    """Sentences, and who is where."""

    def __init__(self, print_line: Callable[[str], None], pause_s: float) -> None:
        self.actors: Sequence[Actor] = ()
        self.pause_s = pause_s
        self.told: list[tuple[str, bool]] = []
        self.draw: Callable[[], None] = lambda: None
        self._print_line = print_line

    def say(self, words: str, *, act: bool) -> None:
        """Tell what happens (an act) or what came of it."""
        self.told.append((words, act))
        self._print_line(words if act else f"  {words}")
        self.draw()


@contextmanager
def plain_screen() -> Iterator[Screen]:
    """A line for each sentence."""
    yield Screen(lambda line: print(line, flush=True), pause_s=0.0)


@contextmanager
def live_screen() -> Iterator[Screen]:
    """A table that follows the processes, and the sentences below it."""
    from rich.live import Live

    screen = Screen(lambda line: None, PAUSE_S)
    with Live(auto_refresh=False) as live:
        screen.draw = lambda: live.update(_picture(screen), refresh=True)
        yield screen


def _picture(screen: Screen) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("process", "pid", "round", "rank", "state", title="run 'demo'", title_justify="left", min_width=60)
    for actor in screen.actors:
        place = actor.place
        state, colour = _state(actor)
        cells = (str(place["round"]), f"{place['rank']} of {place['size']}") if place and not actor.fate else ("", "")
        table.add_row(actor.name, str(actor.process.pid), *cells, Text(state, colour))
    story = [Text(words if act else f"  {words}", "bold" if act else "") for words, act in screen.told]
    return Group(table, *story)


def _state(actor: Actor) -> tuple[str, str]:
    """What a process is doing, and its colour."""
    if actor.fate:
        return actor.fate, "red" if actor.fate == "killed" else "dim"
    if not actor.heard:
        return "starting", "dim"
    said = actor.heard[-1].said
    if not said:
        return "serving", "cyan"
    known = {"joining": "waiting", "changed": "regrouping", "finished": "finished"}.get(said["event"])
    return (known, "yellow") if known else ("working", "green")
