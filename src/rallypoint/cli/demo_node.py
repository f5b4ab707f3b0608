"""A node of the demo: a real process that joins, joins again when its world changes, and prints each step as JSON.

Orders come as lines on its standard input: `roll call` asks the server who is in the world, `finish` ends the work.  The
end of the input means that whoever started it is gone, and ends it at once.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
from typing import TYPE_CHECKING

from rallypoint.errors import RendezvousError

if TYPE_CHECKING:
    from rallypoint.api import Place

LOOK_S = 0.05
"""How often orders are looked at; a change of the world wakes the node by itself."""
ANSWER_S = 0.1
"""How long one answer to the roll call is waited for before it is asked again."""


def main() -> int:
    """Take part until told to finish."""
    parser = argparse.ArgumentParser(prog="python -m rallypoint.cli.demo_node", description="A node of the demo.")
    parser.add_argument("endpoint")
    parser.add_argument("run_id")
    parser.add_argument("name")
    parser.add_argument("--nodes", default="3:4")
    args = parser.parse_args()
    from rallypoint.api import join

    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    _say("joining")
    try:
        with join(
            args.endpoint,
            run=args.run_id,
            nodes=args.nodes,
            node_name=args.name,
            is_host=False,  # while the server is away, its port is to stay free for it
            join_timeout=30,
            last_call_timeout=20,
            heartbeat_interval=0.2,
            heartbeat_timeout=3,
            read_timeout=ANSWER_S,
            close_timeout=10,
        ) as place:
            _work(place, orders)
    except RendezvousError as exc:
        print(f"{args.name}: {exc}", file=sys.stderr)
        return 1
    _say("finished")
    return 0


def _work(place: Place, orders: queue.SimpleQueue[str]) -> None:
    _say_where(place)
    while True:
        order = "" if orders.empty() else orders.get()
        if order == "finish":
            return
        if order == "roll call":
            _say("roll call", names=_roll_call(place))
        if place.changed.wait(LOOK_S):
            _say("changed")
            place.again()
            _say_where(place)


def _roll_call(place: Place) -> list[str]:
    """The names in the world, as the server knows them; asked until it answers, or the world is another."""
    names = None
    while names is None and not place.changed.is_set():
        names = _answer(place)
    return names or []


def _answer(place: Place) -> list[str] | None:
    try:
        return [peer.name for peer in place.peers()]
    except RendezvousError:
        return None


def _say_where(place: Place) -> None:
    _say("placed", round=place.round, rank=place.rank, size=place.world_size, fence=place.fence)


def _say(event: str, **details: object) -> None:
    print(json.dumps({"event": event, **details}), flush=True)


def _listen(orders: queue.SimpleQueue[str]) -> None:
    """Pass orders on.  Read without buffers, whose locks a thread must not hold when the interpreter ends."""
    waiting = b""
    while data := os.read(0, 4096):
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            orders.put(line.decode().strip())
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
