"""Run every benchmark, or those that are named, print the tables, and leave the plots in `build/bench/`.

python -m benchmarks launcher torchrun
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks import (
    access,
    c10d,
    etcd_client,
    etcd_v2,
    etcd_v3,
    forming,
    launcher,
    simulated,
    slow_disk,
    store_throughput,
    torchrun,
)

OUTPUT = Path("build/bench")
BENCHMARKS: dict[str, Callable[[Console, Path], None]] = {
    "forming": forming.run,
    "access": access.run,
    "store_throughput": store_throughput.run,
    "c10d": c10d.run,
    "torchrun": torchrun.run,
    "launcher": launcher.run,
    "etcd_v2": etcd_v2.run,
    "etcd_v3": etcd_v3.run,
    "slow_disk": slow_disk.run,
    "etcd_client": etcd_client.run,
    "simulated": simulated.run,
}


def main(arguments: list[str] | None = None) -> None:
    """Measure one after the other: two cores are no place for two benchmarks at once."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure the costs, print them as tables."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these, of {', '.join(BENCHMARKS)}")
    names = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]!r}: there are {', '.join(BENCHMARKS)}")
    OUTPUT.mkdir(parents=True, exist_ok=True)
    console = Console()
    for name, run in BENCHMARKS.items():
        if not names or name in names:
            run(console, OUTPUT)


if __name__ == "__main__":
    main()
