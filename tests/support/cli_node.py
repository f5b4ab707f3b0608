"""A node for the tests of the command line: it joins, joins again when its world changes, and prints each step as JSON.

    python -m tests.support.cli_node ENDPOINT RUN NAME NODES

A line on its standard input, or the end of it, tells the node to finish.
"""

from __future__ import annotations

import json
import select
import sys
import time

from rallypoint.api import Place, join
from rallypoint.errors import RendezvousError

LOOK_S = 0.05  # how often standard input is looked at; a change of the world wakes the node by itself


def main() -> int:
    """Take part until told to finish."""
    endpoint, run_id, name, nodes = sys.argv[1:]
    _report("joining")
    try:
        with join(
            endpoint,
            run=run_id,
            nodes=nodes,
            node_name=name,
            is_host=False,  # while the server is away, its port is to stay free for it
            join_timeout=30,
            last_call_timeout=20,
            heartbeat_interval=0.2,
            heartbeat_timeout=3,
            close_timeout=10,
        ) as place:
            _report_place(place)
            while not select.select([sys.stdin], [], [], 0)[0]:
                if place.changed.wait(LOOK_S):
                    _report("changed")
                    place.again()
                    _report_place(place)
    except RendezvousError as exc:
        print(f"{name}: {exc}", file=sys.stderr)
        return 1
    _report("finished")
    return 0


def _report_place(place: Place) -> None:
    _report("placed", round=place.round, rank=place.rank, size=place.world_size, fence=place.fence)


def _report(event: str, **details: object) -> None:
    """Print one step; all processes of a machine share the clock that `at` is read from."""
    print(json.dumps({"event": event, **details, "at": time.monotonic()}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
