"""`rallypoint status`: where runs stand, in the sentence of rule 11 and a table of nodes."""

from __future__ import annotations

import argparse
import json
import signal
import time
from typing import TYPE_CHECKING, NoReturn

from rallypoint.cli.arguments import declare_endpoint, visit, written
from rallypoint.cli.output import drawn_table, is_terminal, plain_table, printable
from rallypoint.cli.runs import as_json
from rallypoint.errors import RendezvousError

if TYPE_CHECKING:
    from rich.console import Group

    from rallypoint.protocol import Status
    from rallypoint.report import KeptOutLine

HELP = "show where a run stands and who is in it; all runs, where none is named"
REFRESH_S = 1.0
COLUMNS = ("node", "rank", "standing", "address", "id")


def declare(parser: argparse.ArgumentParser) -> None:
    """Say which arguments it takes."""
    parser.add_argument("run_id", nargs="?", default="", metavar="RUN", help="the run (default: every run)")
    declare_endpoint(parser)
    parser.add_argument("--json", action="store_true", help="print JSON: an object for RUN, a list without it")
    parser.add_argument("--watch", action="store_true", help="show it again each second, until interrupted")


def run(given: argparse.Namespace) -> int:
    """Show it once, or until interrupted."""
    found = _ask(given)
    if given.watch:
        return _watch(given, found)
    if is_terminal() and not given.json:
        from rich.console import Console

        Console().print(_picture(given, found))
    else:
        print("\n".join(_lines(given, found)))
    return 0


def _ask(given: argparse.Namespace) -> list[Status]:
    with visit(given) as visitor:
        if given.run_id:
            return [visitor.status(given.run_id)]
        return visitor.statuses()


# Watching -------------------------------------------------------------------------------------------------------------


def _watch(given: argparse.Namespace, found: list[Status]) -> int:
    """Ask each second, since a server pushes to nodes only.  One that goes away is waited for."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        if is_terminal() and not given.json:
            _watch_live(given, found)
        else:
            _watch_plain(given, found)
    except KeyboardInterrupt:
        return 0


def _watch_live(given: argparse.Namespace, found: list[Status]) -> NoReturn:
    from rich.live import Live
    from rich.text import Text

    with Live(_picture(given, found), auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_S)
            try:
                picture: Group | Text = _picture(given, _ask(given))
            except RendezvousError as exc:
                picture = Text(printable(str(exc)), "red")
            live.update(picture, refresh=True)


def _watch_plain(given: argparse.Namespace, found: list[Status]) -> NoReturn:
    """Print what is new only; JSON each time, for whoever reads it expects a beat."""
    lines, shown = _lines(given, found), [""]
    while True:
        if lines != shown or given.json:
            print("\n".join(lines), flush=True)
        shown = lines
        time.sleep(REFRESH_S)
        try:
            lines = _lines(given, _ask(given))
        except RendezvousError as exc:
            lines = [json.dumps({"error": str(exc)}) if given.json else printable(str(exc))]


# Showing --------------------------------------------------------------------------------------------------------------


def _lines(given: argparse.Namespace, found: list[Status]) -> list[str]:
    if given.json:
        told = [_for_machines(status) for status in found]
        return [json.dumps(told[0] if given.run_id else told)]
    if not found:
        return [_nothing(given)]
    lines: list[str] = []
    for status in found:
        lines += [_sentence(status), *plain_table(COLUMNS, _rows(status)), *_remarks(status)]
    return lines


def _picture(given: argparse.Namespace, found: list[Status]) -> Group:
    from rich.console import Group
    from rich.text import Text

    parts: list[object] = []
    for status in found:
        parts += [Text(_sentence(status), "bold"), drawn_table(COLUMNS, _rows(status))]
        parts += [Text(remark, "dim") for remark in _remarks(status)]
    return Group(*(parts or [Text(_nothing(given))]))  # type: ignore[arg-type]


def _nothing(given: argparse.Namespace) -> str:
    where = given.endpoint if isinstance(given.endpoint, str) else written(*given.endpoint)
    return f"There are no runs at {where}."


def _sentence(status: Status) -> str:
    assert status.run is not None, "the server answers with a run, or says that there is none"
    line = status.run
    return printable(f"run {line.run_id!r} ({line.phase}, nodes {status.bounds}): {line.situation}")


def _rows(status: Status) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (node.name, "" if node.rank is None else str(node.rank), node.standing, node.address, node.id)
        for node in status.nodes
    ]
    return rows + [(node.name, "", _kept_out(node), node.address, node.id) for node in status.kept_out]


def _kept_out(node: KeptOutLine) -> str:
    from rallypoint.core.explain import duration

    return f"evicted, kept out for another {duration(node.left_s)}" + (f": {node.why}" if node.why else "")


def _remarks(status: Status) -> list[str]:
    assert status.run is not None, "the server answers with a run, or says that there is none"
    remarks = []
    missing = status.run.nodes - sum(node.standing != "finished" for node in status.nodes)
    if missing > 0:
        remarks.append(f"… and {missing} more that are not shown")
    if status.messages:
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(status.messages.items()))
        remarks.append(f"the server's messages so far: {counts}")
    return remarks


def _for_machines(status: Status) -> dict[str, object]:
    assert status.run is not None, "the server answers with a run, or says that there is none"
    nodes = [
        {"name": node.name, "id": node.id, "standing": node.standing, "rank": node.rank, "address": node.address}
        for node in status.nodes
    ]
    out = [
        {"name": node.name, "id": node.id, "address": node.address, "left_s": node.left_s, "why": node.why}
        for node in status.kept_out
    ]
    told = {"bounds": status.bounds, "nodes": nodes, "kept_out": out, "messages": status.messages}
    return {**as_json(status.run), **told}
