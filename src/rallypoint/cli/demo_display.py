"""What the demo shows: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

    from rallypoint.cli.demo_processes import ChildProcess

PAUSE_S = 1.3
"""Between the acts, for the eye; without a terminal there is none."""


class Display:
    """Sentences, and who is where."""

    def __init__(self, print_line: Callable[[str], None], pause_s: float) -> None:
        self.children: Sequence[ChildProcess] = ()
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
def plain_display() -> Iterator[Display]:
    """A line for each sentence."""
    yield Display(lambda line: print(line, flush=True), pause_s=0.0)


@contextmanager
def live_display() -> Iterator[Display]:
    """A table that follows the processes, and the sentences below it."""
    from rich.live import Live

    display = Display(lambda line: None, PAUSE_S)
    with Live(auto_refresh=False) as live:
        display.draw = lambda: live.update(_picture(display), refresh=True)
        yield display


def _picture(display: Display) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("process", "pid", "round", "rank", "state", title="run 'demo'", title_justify="left", min_width=60)
    for child in display.children:
        place = child.place
        state, colour = _state(child)
        cells = (
            (str(place["round"]), f"{place['rank']} of {place['size']}") if place and not child.outcome else ("", "")
        )
        table.add_row(child.name, str(child.process.pid), *cells, Text(state, colour))
    story = [Text(words if act else f"  {words}", "bold" if act else "") for words, act in display.told]
    return Group(table, *story)


def _state(child: ChildProcess) -> tuple[str, str]:
    """What a process is doing, and its colour."""
    if child.outcome:
        return child.outcome, "red" if child.outcome == "killed" else "dim"
    if not child.messages:
        return "starting", "dim"
    said = child.messages[-1].said
    if not said:
        return "serving", "cyan"
    known = {"joining": "waiting", "changed": "regrouping", "finished": "finished"}.get(said["event"])
    return (known, "yellow") if known else ("working", "green")
