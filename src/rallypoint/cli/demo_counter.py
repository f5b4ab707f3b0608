"""What the workers of the demo do: they add up 1, 2, 3 and so on, and go on from the last checkpoint after a restart.

    rallypoint run -- python -m rallypoint.cli.demo_counter FOLDER

In each step every worker brings one number, through the round's store; rank 0 adds them up and saves a checkpoint.  A file
`enough` in the folder ends it after the next step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from rallypoint.worker_place import Worker, worker

STEP_S = 0.02  # the work of a step


def main() -> None:
    """Count until it is enough."""
    folder, me = Path(sys.argv[1]), worker()
    if me.rank == 0:
        me.store.set("start", json.dumps(last_checkpoint(folder)))
    counted, total = json.loads(me.store.get("start"))
    print(f"worker {os.getpid()} goes on after {counted}, sum {total}", flush=True)
    step, is_enough = 0, False
    while not is_enough:
        time.sleep(STEP_S)
        me.store.set(f"{step}/{me.rank}", str(counted + 1 + me.rank))
        if me.rank == 0:
            numbers = [int(me.store.get(f"{step}/{rank}")) for rank in range(me.world_size)]
            counted, total = counted + len(numbers), total + sum(numbers)
            _save(folder, me, counted, total)
            me.store.set(f"{step}/saved", json.dumps([counted, total, (folder / "enough").exists()]))
        counted, total, is_enough = json.loads(me.store.get(f"{step}/saved"))
        step += 1
    print(f"worker {os.getpid()} ends after {counted}, sum {total}", flush=True)


def last_checkpoint(folder: Path) -> tuple[int, int]:
    """How far it has been counted, and the sum.

    Each round has a file of its own and goes on from the newest: what a rank 0 of an earlier round still writes, because it
    has not heard of the new one, does no harm.
    """
    saved = max(folder.glob("round-*.json"), default=None)
    if saved is None:
        return 0, 0
    counted, total = json.loads(saved.read_text(encoding="utf-8"))
    return counted, total


def _save(folder: Path, me: Worker, counted: int, total: int) -> None:
    fresh = folder / f".{os.getpid()}"
    fresh.write_text(json.dumps([counted, total]), encoding="utf-8")
    fresh.replace(checkpoint_file(folder, me.round))


def checkpoint_file(folder: Path, number: int) -> Path:
    """The checkpoint of a round; names in the order of rounds."""
    return folder / f"round-{number:09}.json"


if __name__ == "__main__":
    main()
