"""A worker that needs no torch and starts at once: says that it is there, then does as it is told, and says that it is done.

python worker.py [--until FILE] [--steps] [--fail-once FILE] [--exit CODE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path


def tell(event: str, **details: int) -> None:
    """One line for the test to read."""
    place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    master = f"{os.environ['MASTER_ADDR']} {os.environ['MASTER_PORT']}"
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    said = json.dumps({"event": event, **place, "pid": os.getpid(), "restarts": restarts, "master": master, **details})
    # At once: torchrun starts workers unbuffered, and a line feed that `print` writes by itself may come late, behind what
    # another worker says.
    os.write(1, f"{said}\n".encode())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=Path, help="work until this file exists")
    parser.add_argument("--steps", action="store_true", help="say meanwhile that it works")
    parser.add_argument("--fail-once", type=Path, help="fail where this file does not exist, and make it")
    parser.add_argument("--exit", type=int, default=0, help="the exit code")
    options = parser.parse_args()
    tell("started")
    if options.fail_once is not None and not options.fail_once.exists():
        options.fail_once.touch()
        sys.exit(3)
    tick, step = threading.Event(), 0
    while options.until is not None and not options.until.exists():
        if options.steps:
            tell("step", step=step)
        step += 1
        tick.wait(0.05 if options.steps else 0.02)  # files tell nobody that they exist
    tell("done")
    sys.exit(options.exit)


if __name__ == "__main__":
    main()
