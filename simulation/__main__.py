"""The simulation's own command line: `python -m simulation run|scenario|play|demo`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simulation import scenario
from simulation.schedule import play
from simulation.seed_runs import run_seeds

PROGRAM = "python -m simulation"


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Virtual clusters for the production core.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="play a range of seeds, print what happened, and name those that failed")
    run.add_argument("--seeds", type=_seeds, default=range(1000), metavar="A:B", help="from A up to, not including, B")
    run.add_argument("--jobs", type=int, default=0, help="processes (default: one a core)")
    run.add_argument("--stop", action="store_true", help="stop at the first failure")
    write = commands.add_parser("scenario", help="turn a seed into a scenario file")
    write.add_argument("seed", type=int)
    write.add_argument("--to", type=Path, metavar="FILE", help="where to write it (default: print it)")
    again = commands.add_parser("play", help="play a scenario file and compare")
    again.add_argument("file", type=Path)
    again.add_argument("--rewrite", action="store_true", help="write what happens into the file")
    demo = commands.add_parser("demo", help="a scripted run, with a live table")
    demo.add_argument("--pace", type=float, default=1.0, help="seconds of real time a second of the run (0: at once)")
    given = parser.parse_args(arguments)
    if given.command == "run":
        return _run(given.seeds, given.jobs, given.stop)
    if given.command == "scenario":
        return _scenario(given.seed, given.to)
    if given.command == "play":
        return _play(given.file, given.rewrite)
    from simulation.demo import show

    return show(given.pace)


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    try:
        seeds = range(int(first), int(last)) if colon else range(int(first), int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of seeds such as 0:1000") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} has no seeds in it")
    return seeds


def _run(seeds: range, jobs: int, stop: bool) -> int:
    totals = run_seeds(seeds, jobs, stop_at_first=stop)
    print("\n".join(totals.lines()))
    print()
    for seed, failure in sorted(totals.failures.items()):
        print(f"seed {seed}: {failure}")
        print(f"  to look at it: {PROGRAM} scenario {seed}")
    short = list(totals.shortcomings())
    for line in short:
        print(f"the schedules are not what they should be: {line}")
    print(f"{totals.schedules - len(totals.failures)} passed, {len(totals.failures)} failed")
    return 1 if totals.failures or short else 0


def _scenario(seed: int, to: Path | None) -> int:
    played = play(seed)
    title = f"Seed {seed}: {played.failure or 'every invariant held'}"
    text = str(scenario.from_schedule(title, played.setup, played.commands))
    if to is None:
        print(text, end="")
    else:
        to.write_text(text, encoding="utf-8")
        print(f"{to}: {len(played.commands)} commands; {title}")
    return 0


def _play(file: Path, rewrite: bool) -> int:
    try:
        expected = scenario.parse(file.read_text(encoding="utf-8"))
        played = scenario.play(expected)
    except (OSError, ValueError) as exc:
        print(f"{file}: {exc}", file=sys.stderr)
        return 2
    if rewrite:
        file.write_text(str(played), encoding="utf-8")
        return 0
    print(str(played), end="")
    return 0 if str(played) == str(expected) else 1


if __name__ == "__main__":
    sys.exit(main())
