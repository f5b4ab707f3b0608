"""Runs one target for a while: guided by coverage where atheris is installed, else by blind changes of the corpus.

    python -m fuzz server --seconds 60

The exit code is 0 if nothing was found; a find is printed, with the bytes that led to it in a file.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
NAMES = ("server", "frames", "messages", "records", "store", "secret", "endpoint")
LONGEST = 4096
FOUND = str(Path(tempfile.gettempdir()) / "rallypoint-fuzz-")
"""What the file with a find begins with."""


def main() -> int:
    """Fuzz one target."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", choices=NAMES)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, help="so many inputs instead, the same ones every time")
    parser.add_argument("--blind", action="store_true", help="without atheris, also where it is installed")
    options = parser.parse_args()
    if options.blind or find_spec("atheris") is None:
        return _blind(options.target, options.seconds, options.runs)
    return _guided(options.target, options.seconds, options.runs)


def _guided(name: str, seconds: int, runs: int | None) -> int:
    import atheris

    with atheris.instrument_imports(include=["rallypoint"]):
        from fuzz.targets import TARGETS
    with tempfile.TemporaryDirectory() as found:
        length = [f"-max_total_time={seconds}"] if runs is None else [f"-runs={runs}", "-seed=22"]
        limits = [*length, f"-max_len={LONGEST}", "-print_final_stats=1", f"-artifact_prefix={FOUND}"]
        atheris.Setup([sys.argv[0], found, str(CORPUS / name), *limits], TARGETS[name])
        atheris.Fuzz()  # it ends the process
    return 0


def _blind(name: str, seconds: int, runs: int | None) -> int:
    from fuzz.targets import TARGETS

    target, chance = TARGETS[name], random.Random(0)
    corpus = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    count, until = 0, time.monotonic() + seconds
    while count < runs if runs is not None else time.monotonic() < until:
        data = _changed(chance.choice(corpus), corpus, chance)
        try:
            target(data)
        except Exception:
            where = Path(f"{FOUND}crash-{name}")
            where.write_bytes(data)
            print(f"found: {where}", file=sys.stderr)
            raise
        count += 1
    print(f"stat::number_of_executed_units: {count}", file=sys.stderr)
    return 0


def _changed(data: bytes, corpus: list[bytes], chance: random.Random) -> bytes:
    """The same bytes with a few changes."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        place = chance.randint(0, len(changed))
        how = chance.randrange(4)
        if how == 0 and changed:
            changed[min(place, len(changed) - 1)] = chance.randrange(256)
        elif how == 1:
            del changed[place : place + chance.randint(1, 16)]
        elif how == 2:
            other = chance.choice(corpus)
            start = chance.randint(0, len(other))
            changed[place:place] = other[start : start + chance.randint(1, 64)]
        else:
            changed[place:place] = chance.randbytes(chance.randint(1, 8))
    return bytes(changed[:LONGEST])


if __name__ == "__main__":
    sys.exit(main())
