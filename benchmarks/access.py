"""What a token and mutual TLS cost 64 nodes that meet, one in each process, where one of them serves the endpoint.

The three ways are measured in turns, and the medians are compared: every node connects when it joins, so that each figure
has the handshakes of all of them in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.measurements import Setup, form
from benchmarks.node import PLACE
from benchmarks.processes import free_port
from rallypoint.cli.certificates import make_certificates
from rallypoint.tokens import new_token

NODES, TURNS = 64, 5
OPEN, TOKEN, TLS = "open", "with a token", "with mutual TLS"
GOALS = {OPEN: "", TOKEN: "at most 1.3", TLS: "at most 4"}


def run(console: Console, output: Path) -> None:
    """Form in all three ways; nothing is drawn, so `output` stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        ways = ways_in(Path(folder))
        turns = [{way: form_with(options) for way, options in ways.items()} for _ in range(TURNS)]
    seconds = {way: median(turn[way] for turn in turns) for way in ways}
    table = Table("64 nodes form", "s", "times the open time", "goal", title="access", title_justify="left")
    for way, taken in seconds.items():
        table.add_row(way, f"{taken:.3f}", f"{taken / seconds[OPEN]:.2f}", GOALS[way])
    console.print(table)


def ways_in(folder: Path) -> dict[str, Mapping[str, str]]:
    """The options of each way, whose files are written into a folder."""
    token, certs = folder / "token", folder / "certs"
    token.write_text(new_token(), encoding="ascii")
    make_certificates(certs, (), 30)
    return {
        OPEN: {},
        TOKEN: {"token_file": str(token)},
        TLS: {"cacert": f"{certs}/ca.pem", "cert": f"{certs}/node.pem", "key": f"{certs}/node-key.pem"},
    }


def form_with(options: Mapping[str, str]) -> float:
    """Seconds until the last of the nodes has its rank."""
    return form(Setup(PLACE, f"127.0.0.1:{free_port()}", (NODES, NODES), options), [1] * NODES)


if __name__ == "__main__":
    run(Console(), Path())
