"""`rallypoint status`: where runs stand, in the sentence of rule 11 and a table of nodes."""

from __future__ import annotations

import argparse
import signal
import time
from typing import TYPE_CHECKING, NoReturn

from rallypoint.cli.arguments import add_endpoint_arguments, connect, run_name
from rallypoint.cli.as_json import error_as_json, status_as_json, statuses_as_json
from rallypoint.cli.output import drawn_table, is_terminal, plain_table, printable
from rallypoint.errors import RendezvousError
from rallypoint.net import written

if TYPE_CHECKING:
    from rich.console import Group

    from rallypoint.protocol import Status
    from rallypoint.report import KeptOutLine

HELP = "show where a run stands and who is in it; all runs, where none is named"
REFRESH_S = 1.0
COLUMNS = ("node", "rank", "standing", "address", "id")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    parser.add_argument(
        "run_id", nargs="?", type=run_name, default=None, metavar="RUN", help="the run (default: every run)"
    )
    add_endpoint_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON: an object for RUN, a list without it")
    parser.add_argument("--watch", action="store_true", help="show it again each second, until interrupted")


def run(args: argparse.Namespace) -> int:
    """Show it once, or until interrupted."""
    found = _ask(args)
    if args.watch:
        return _watch(args, found)
    if is_terminal() and not args.json:
        from rich.console import Console

        Console().print(_picture(args, found))
    else:
        print("\n".join(_lines(args, found)))
    return 0


def _ask(args: argparse.Namespace) -> list[Status]:
    with connect(args) as admin:
        if args.run_id:
            return [admin.status(args.run_id)]
        return admin.statuses()


# Watching -------------------------------------------------------------------------------------------------------------


def _watch(args: argparse.Namespace, found: list[Status]) -> int:
    """Ask each second, since a server pushes to nodes only.  One that goes away is waited for."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        if is_terminal() and not args.json:
            _watch_live(args, found)
        else:
            _watch_plain(args, found)
    except KeyboardInterrupt:
        return 0


def _watch_live(args: argparse.Namespace, found: list[Status]) -> NoReturn:
    from rich.live import Live
    from rich.text import Text

    with Live(_picture(args, found), auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_S)
            try:
                picture: Group | Text = _picture(args, _ask(args))
            except RendezvousError as exc:
                picture = Text(printable(str(exc)), "red")
            live.update(picture, refresh=True)


def _watch_plain(args: argparse.Namespace, found: list[Status]) -> NoReturn:
    """Print what is new only; JSON is printed each time, so that its reader knows that nothing is new."""
    lines, shown = _lines(args, found), [""]
    while True:
        if lines != shown or args.json:
            print("\n".join(lines), flush=True)
        shown = lines
        time.sleep(REFRESH_S)
        try:
            lines = _lines(args, _ask(args))
        except RendezvousError as exc:
            lines = [error_as_json(exc) if args.json else printable(str(exc))]


# Showing --------------------------------------------------------------------------------------------------------------


def _lines(args: argparse.Namespace, found: list[Status]) -> list[str]:
    if args.json:
        return [statuses_as_json(found) if args.run_id is None else status_as_json(found[0])]
    if not found:
        return [_nothing(args)]
    lines: list[str] = []
    for status in found:
        lines += [_sentence(status), *plain_table(COLUMNS, _rows(status)), *_remarks(status)]
    return lines


def _picture(args: argparse.Namespace, found: list[Status]) -> Group:
    from rich.console import Group
    from rich.text import Text

    parts: list[object] = []
    for status in found:
        parts += [Text(_sentence(status), "bold"), drawn_table(COLUMNS, _rows(status))]
        parts += [Text(remark, "dim") for remark in _remarks(status)]
    return Group(*(parts or [Text(_nothing(args))]))  # type: ignore[arg-type]


def _nothing(args: argparse.Namespace) -> str:
    where = args.endpoint if isinstance(args.endpoint, str) else written(*args.endpoint)
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
    from rallypoint.wording import duration

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
