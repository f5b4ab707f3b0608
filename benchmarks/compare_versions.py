"""What a change costs or gains: an earlier version beside the working tree, in turns, in one run.

    make bench BEFORE=9ef17f0
    python -m benchmarks.compare_versions 9ef17f0 --at-most 4 --turns 1      # a quick look

Absolute times move from machine to machine, so the ratio of the medians counts.  Both versions run the same node
program, `benchmarks.node`, which uses only what users use; each process imports its version by PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import elected, registers, versions
from benchmarks.measurements import GIVE_UP_S, Setup, form, idle, regroup, split
from benchmarks.node import PLACE
from benchmarks.processes import free_port, server
from benchmarks.versions import BUILD, ROOT, Version

HANDLER = "rallypoint:rallypoint"
OPTIONS = {"join_timeout": GIVE_UP_S}
SERVERS = ("serve", "embedded")
# How many nodes, and how often each version is measured: short times are noisy, so they are measured more often.
ONE_A_PROCESS = {4: 25, 16: 9, 64: 5}
AS_THREADS = {256: 5, 1000: 3}
IDLE = 1000
LAST_CALL_S = 2
TURNS = 3

Show = Callable[[float], str]
Figures = Mapping[str, float]
"""What one measurement found, by what it is called."""


class Measurement(NamedTuple):
    """Something to measure on one version, given the folder of its source."""

    what: str
    server: str
    nodes: int
    measure: Callable[[Path], Figures]
    turns: int = TURNS
    show: Show = "{:.3f}".format
    torch: Callable[[], Figures] | None = None
    """The same on torch's own backend, where it has one that can do it."""


class Row(NamedTuple):
    """What one figure of a measurement was, in each turn, and torch's; what failed has a sentence instead."""

    what: str
    server: str
    before: list[float] | str
    now: list[float] | str
    show: Show
    torch: list[float] | str | None = None

    @property
    def ratio(self) -> float | None:
        """The median now to the median before; None where there is none."""
        if isinstance(self.before, str) or isinstance(self.now, str) or not median(self.before):
            return None
        return median(self.now) / median(self.before)

    @property
    def failures(self) -> list[str]:
        """What went wrong, a sentence for each version that failed."""
        sides = (("before", self.before), ("now", self.now), ("torch", self.torch))
        return [f"{self.what}, {self.server}, {side}: {told}" for side, told in sides if isinstance(told, str)]


# What is measured -----------------------------------------------------------------------------------------------------


def measurements() -> Iterator[Measurement]:
    """All of them; one node per process comes first, because that is how nodes live."""
    for place in SERVERS:
        for nodes, turns in ONE_A_PROCESS.items():
            yield _forming(f"form {nodes}, one node per process", place, [1] * nodes, turns)
    for place in SERVERS:
        for nodes, turns in AS_THREADS.items():
            yield _forming(f"form {nodes:,}, threads in four processes", place, split(nodes), turns)
    for place in SERVERS:
        yield _regrouping("kill -9 of one of four", place, host_dies=False)
    yield _regrouping("kill -9 of the host of four", "embedded", host_dies=True)
    for place in SERVERS:
        yield _idling(place)
    for place in SERVERS:
        yield _forming_alone(place)
    yield from _on_etcd()
    yield from _on_registers()


def _on_etcd() -> Iterator[Measurement]:
    """A server that is elected through etcd v3, one member on this machine; beside torch's backend for etcd's API v2."""

    def measurement(
        what: str,
        nodes: int,
        measure: Callable[[Path], Figures],
        show: Show = "{:.3f}".format,
        torch: Callable[[], Figures] | None = None,
    ) -> Measurement:
        return Measurement(what, "etcd-v3", nodes, measure, show=show, torch=torch)

    for nodes in (4, 64):
        # Each process that imports torch takes some 200 MB: many of torch's nodes are threads in four of them.
        torch = partial(registers.forming, None, shares=[1] * nodes if nodes <= 4 else split(nodes), backend="etcd-v2")
        measure = partial(elected.forming, shares=[1] * nodes)
        yield measurement(f"form {nodes}, one node per process", nodes, measure, torch=torch)
    yield measurement("form 1,000, threads in four processes", 1000, partial(elected.forming, shares=split(1000)))
    yield measurement("kill -9 of a node of four", 4, partial(elected.losing, nodes=4, server=False, others=1))
    for nodes in (4, 32):
        yield measurement(
            f"kill -9 of the serving node of {nodes}",
            nodes,
            partial(elected.losing, nodes=nodes, server=True, others=0),
        )
    yield measurement(
        "kill -9 of the serving node and another of four", 4, partial(elected.losing, nodes=4, server=True, others=1)
    )
    yield measurement("SIGSTOP of the serving node of four", 4, elected.pausing)
    yield measurement(f"etcd stopped for {elected.AWAY_S:.0f} s, a node of four killed", 4, elected.standstill)
    yield measurement(f"{IDLE:,} idle: CPU of etcd", IDLE, partial(elected.idling, nodes=IDLE), "{:.1%}".format)


def _on_registers() -> Iterator[Measurement]:
    """A server that is elected through a c10d store, or etcd's API v2; beside torch's own backends of those names."""

    def forming(backend: str, shares: list[int], how: str, *, beside_torch: bool = True) -> Measurement:
        measure = partial(registers.forming, shares=shares, backend=backend)
        return Measurement(
            f"form {sum(shares):,}, {how}",
            backend,
            sum(shares),
            measure,
            torch=partial(measure, None) if beside_torch else None,
        )

    one, threads = "one node per process", "threads in four processes"
    yield forming("c10d", [1] * 4, one)
    yield forming("c10d", [1] * 64, one, beside_torch=False)
    yield forming("c10d", split(128), threads)
    yield forming("c10d", split(1000), threads, beside_torch=False)
    yield forming("etcd-v2", [1] * 4, one)
    yield forming("etcd-v2", split(64), threads)
    for backend in registers.REGISTERS:
        for is_server, what in ((False, "a node"), (True, "the serving node")):
            losing = partial(registers.losing, backend=backend, server=is_server)
            yield Measurement(f"kill -9 of {what} of four", backend, 4, losing)


@contextmanager
def _served(place: str, source: Path) -> Iterator[tuple[str, int | None]]:
    """An endpoint, and the process id of the standalone server; None where the first node that binds it serves it."""
    if place == "embedded":
        yield f"127.0.0.1:{free_port()}", None
    else:
        with server(source) as (endpoint, pid):
            yield endpoint, pid


def _forming(what: str, place: str, shares: Sequence[int], turns: int) -> Measurement:
    nodes = sum(shares)

    def measure(source: Path) -> Figures:
        with _served(place, source) as (endpoint, _):
            return {"": form(Setup(HANDLER, endpoint, (nodes, nodes), OPTIONS, source), shares, GIVE_UP_S)}

    return Measurement(what, place, nodes, measure, turns)


def _forming_alone(place: str) -> Measurement:
    options = {**OPTIONS, "last_call_timeout": LAST_CALL_S}

    def measure(source: Path) -> Figures:
        with _served(place, source) as (endpoint, _):
            return {"": form(Setup(HANDLER, endpoint, (1, 2), options, source), [1], GIVE_UP_S)}

    return Measurement(f"form 1:2 alone, last call {LAST_CALL_S} s", place, 1, measure)


def _idling(place: str) -> Measurement:
    def measure(source: Path) -> Figures:
        with _served(place, source) as (endpoint, pid):
            return {"": idle(Setup(HANDLER, endpoint, (IDLE, IDLE), OPTIONS, source), split(IDLE), pid)}

    whose = "server" if place == "serve" else f"host and its {split(IDLE)[0]}"
    return Measurement(f"{IDLE:,} idle: CPU of the {whose}", place, IDLE, measure, show="{:.1%}".format)


def _regrouping(what: str, place: str, *, host_dies: bool) -> Measurement:
    def measure(source: Path) -> Figures:
        with _served(place, source) as (endpoint, _):
            found = regroup(Setup(PLACE, endpoint, (3, 4), OPTIONS, source), host_dies=host_dies)
            return {": told": found.told_s, ": new world": found.world_s}

    return Measurement(what, place, 4, measure, 5)


# How it is measured ---------------------------------------------------------------------------------------------------


def compare(measurement: Measurement, before: Version, now: Version, turns: int) -> list[Row]:
    """Measure both versions in turns: before, now, before, now.  A version that fails is not measured again."""
    figures: dict[Version, list[Figures]] = {before: [], now: []}
    failed: dict[Version, str] = {}
    for _ in range(turns):
        for version in (before, now):
            if version not in failed:
                try:
                    figures[version].append(measurement.measure(version.source))
                except (OSError, RuntimeError, ValueError) as exc:
                    failed[version] = str(exc)
    names = next((list(found[0]) for found in figures.values() if found), [""])
    torch = None if measurement.torch is None else _torchs(measurement.torch)

    def column(version: Version, name: str) -> list[float] | str:
        return failed.get(version) or [found[name] for found in figures[version]]

    def torch_column(name: str) -> list[float] | str | None:
        if torch is None or isinstance(torch, str):
            return torch
        return [torch[name]] if name in torch else None

    return [
        Row(
            measurement.what + name,
            measurement.server,
            column(before, name),
            column(now, name),
            measurement.show,
            torch_column(name),
        )
        for name in names
    ]


def _torchs(measure: Callable[[], Figures]) -> Figures | str:
    """torch's figures, once: it takes seconds, and varies less than it differs from ours."""
    try:
        return measure()
    except (OSError, RuntimeError, ValueError) as exc:
        return str(exc)


def run(
    console: Console, output: Path, before: Version, now: Version, turns: int | None, at_most: int, only: str = ""
) -> bool:
    """Measure everything for at most so many nodes, and print it; whether both versions passed all of it."""
    rows: list[Row] = []
    for measurement in measurements():
        if measurement.nodes <= at_most and (not only or measurement.server in only.split(",")):
            for row in compare(measurement, before, now, turns or measurement.turns):
                rows.append(row)
                _append(output / "before.jsonl", row, before, now)
                console.print(", ".join(filter(None, _cells(row))), style="dim", highlight=False, soft_wrap=True)
    console.print(_table(rows, before, now))
    failures = [failure for row in rows for failure in row.failures]
    for failure in failures:
        console.print(f"failed: {failure}", style="red", markup=False, highlight=False)
    return not failures


def _table(rows: Sequence[Row], before: Version, now: Version) -> Table:
    title = f"before ({_short(before)}) and now ({_short(now)}): seconds, least/median/most"
    columns = ("measurement", "server", "torch", "before", "now", "now / before")
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _short(version: Version) -> str:
    commit, dash, dirty = version.commit.partition("-")
    return f"{commit[:9]}{dash}{dirty}"


def _cells(row: Row) -> tuple[str, ...]:
    columns = (_spread(told, row.show) for told in (row.torch, row.before, row.now))
    return row.what, row.server, *columns, "" if row.ratio is None else f"{row.ratio:.2f}"


def _spread(figures: list[float] | str | None, show: Show) -> str:
    if figures is None:
        return ""
    if len(figures) == 1 and not isinstance(figures, str):
        return show(figures[0])
    if isinstance(figures, str):
        return "failed"
    return "/".join(show(figure) for figure in (min(figures), median(figures), max(figures)))


def _append(file: Path, row: Row, before: Version, now: Version) -> None:
    """Append a row to what was measured so far, as a JSON line; what was measured before an interruption stays."""
    record = {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "versions": {"before": before.commit, "now": now.commit},
        "yardstick": row.what,
        "server": row.server,
        "before": row.before,
        "now": row.now,
        "torch": row.torch,
        "ratio": row.ratio,
    }
    with file.open("a", encoding="utf-8") as lines:
        lines.write(f"{json.dumps(record)}\n")


def main() -> None:
    """Compare what the arguments say; the status is 1 where a version failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare_versions", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("revision", metavar="REV", help="the commit to compare with")
    parser.add_argument("--now", type=Path, default=ROOT, metavar="FOLDER", help="the tree that is measured beside it")
    parser.add_argument("--turns", type=int, metavar="N", help="how often each version is measured")
    parser.add_argument("--at-most", type=int, default=IDLE, metavar="NODES", help="leave out measurements with more")
    parser.add_argument(
        "--only", default="", metavar="SERVERS", help="only what is served so, for example c10d,etcd-v2"
    )
    given = parser.parse_args()
    # SystemExit instead of sudden death: the processes and the folder are cleared away.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    output = BUILD / "bench"
    output.mkdir(parents=True, exist_ok=True)
    with versions.checked_out(given.revision) as before:
        now = versions.in_folder(given.now)
        for version in (before, now):
            versions.prepare(version)
        console = Console(width=None if sys.stdout.isatty() else 120)
        passed = run(console, output, before, now, given.turns, given.at_most, given.only)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
