"""How long nodes take to meet by editing one document: our c10d backend and torch's, side by side in one run."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.forming import compared, form_embedded, regroup_embedded
from benchmarks.measurements import GIVE_UP_S

TORCH, OURS = "torch:c10d", "rallypoint:c10d"
SIZES = (16, 64, 128, 256)


def run(console: Console, output: Path) -> None:
    """Form and regroup; nothing is drawn, so `output` stays as it is."""
    table = Table(
        *("nodes", "torch c10d, s", "our c10d, s", "times faster", "goal"), title="c10d: form", title_justify="left"
    )
    for size in SIZES:
        try:
            theirs, ours = (form_embedded(kind, size, GIVE_UP_S) for kind in (TORCH, OURS))
            columns = compared(theirs, ours)
        except TimeoutError:
            ours = form_embedded(OURS, size, GIVE_UP_S)
            columns = f"not in {GIVE_UP_S:.0f}", f"{ours:.3f}", f"over {GIVE_UP_S / ours:.0f}"
        table.add_row(str(size), *columns, {128: "3", 256: "forms"}.get(size, "not slower"))
    console.print(table)
    again = Table(
        *("one of four is killed with kill -9", "torch c10d, s", "our c10d, s", "times faster"),
        title="c10d: regroup, with the keep-alives that both have by default",
        title_justify="left",
    )
    for what, watch in (("told: survivors rejoin at once", False), ("noticed: survivors only watch", True)):
        again.add_row(what, *_regrouped(*(regroup_embedded(kind, watch=watch) for kind in (TORCH, OURS))))
    console.print(again)


def _regrouped(theirs: float | None, ours: float | None) -> tuple[str, str, str]:
    """A row's columns, where either may never have noticed."""
    never = f"not in {GIVE_UP_S:.0f}"
    shown = [never if value is None else f"{value:.1f}" for value in (theirs, ours)]
    if ours is None:
        return shown[0], shown[1], ""
    return shown[0], shown[1], f"over {GIVE_UP_S / ours:.0f}" if theirs is None else f"{theirs / ours:.1f}"
