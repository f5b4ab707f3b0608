"""Run every benchmark, print the tables, and leave the plots in `build/bench/`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from benchmarks import c10d, etcd_client, etcd_v2, etcd_v3, forming, simulated, slow_disk, store_throughput, torchrun

OUTPUT = Path("build/bench")


def main() -> None:
    """Measure one after the other: two cores are no place for two benchmarks at once."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    console = Console()
    forming.run(console, OUTPUT)
    store_throughput.run(console, OUTPUT)
    c10d.run(console, OUTPUT)
    torchrun.run(console, OUTPUT)
    etcd_v2.run(console, OUTPUT)
    etcd_v3.run(console, OUTPUT)
    slow_disk.run(console, OUTPUT)
    etcd_client.run(console, OUTPUT)
    simulated.run(console, OUTPUT)


if __name__ == "__main__":
    main()
