"""`rallypoint status`: where runs stand, in the sentence of rule 11 and a table of nodes."""

from __future__ import annotations

import argparse
import json
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rallypoint.cli.arguments import add_endpoint_arguments, connect, run_name
from rallypoint.cli.as_json import error_fields, status_fields
from rallypoint.cli.output import Output, Sentence, Table, display, show
from rallypoint.errors import RendezvousError
from rallypoint.net import written

if TYPE_CHECKING:
    from rallypoint.protocol import Status

HELP = "show where a run stands and who is in it; all runs, where none is named"
REFRESH_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    parser.add_argument("run_id", nargs="?", type=run_name, metavar="RUN", help="the run (default: every run)")
    add_endpoint_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON: an object for RUN, a list without it")
    parser.add_argument("--watch", action="store_true", help="show it again each second, until interrupted")


def run(args: argparse.Namespace) -> int:
    """Show it once, or until interrupted."""
    output = _answer(args)
    if args.watch:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            _watch(args, output)
    else:
        show(output)
    return 0


def _watch(args: argparse.Namespace, output: Output) -> None:
    """Ask each second, because a server pushes to nodes only.  A server that goes away is waited for."""
    with display(as_json=args.json) as show_again:
        while True:
            show_again(output)
            time.sleep(REFRESH_S)
            try:
                output = _answer(args)
            except RendezvousError as exc:
                output = json.dumps(error_fields(exc)) if args.json else [Sentence(str(exc), "red")]


def _answer(args: argparse.Namespace) -> Output:
    with connect(args) as admin:
        found = [admin.status(args.run_id)] if args.run_id else admin.statuses()
    if args.json:
        fields = [status_fields(status) for status in found]
        return json.dumps(fields if args.run_id is None else fields[0])
    if not found:
        where = args.endpoint if isinstance(args.endpoint, str) else written(*args.endpoint)
        return [Sentence(f"There are no runs at {where}.")]
    return [part for status in found for part in _parts(status)]


def _parts(status: Status) -> list[Sentence | Table]:
    from rallypoint.wording import duration

    run = status.run
    assert run is not None, "the server answers with a run, or says that there is none"
    rows = [
        (node.name, "" if node.rank is None else str(node.rank), node.standing, node.address, node.id)
        for node in status.nodes
    ]
    for node in status.kept_out:
        standing = f"evicted, kept out for another {duration(node.left_s)}" + (f": {node.why}" if node.why else "")
        rows.append((node.name, "", standing, node.address, node.id))
    parts: list[Sentence | Table] = [
        Sentence(f"run {run.run_id!r} ({run.phase}, nodes {status.bounds}): {run.situation}", "bold"),
        Table(("node", "rank", "standing", "address", "id"), rows),
    ]
    missing = run.nodes - sum(node.standing != "finished" for node in status.nodes)
    if missing > 0:
        parts.append(Sentence(f"… and {missing} more that are not shown", "dim"))
    if status.messages:
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(status.messages.items()))
        parts.append(Sentence(f"the server's messages so far: {counts}", "dim"))
    return parts
