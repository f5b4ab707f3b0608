"""`python -m tests.etcd_v3.interrupted_program ENDPOINT RUN RANK`: a node whose `shutdown()` is interrupted, and which lives on."""

from __future__ import annotations

import signal
import sys

from rallypoint.elastic.api import RendezvousParameters
from rallypoint.elastic.member_handler import create_etcd_v3_handler
from tests.support.etcd_node_processes import OPTIONS
from tests.support.node_program import say

OUTAGE_GRACE_S = 30.0
"""The lease of the run is twice as long, and etcd's clients renew one after a third of its time."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    endpoint, run, rank = sys.argv[1:]
    given = {**OPTIONS, "node_name": "interrupted", "is_host": True, "rank": rank, "close_timeout": 60.0}
    given["outage_grace"] = OUTAGE_GRACE_S
    handler = create_etcd_v3_handler(RendezvousParameters("etcd-v3", endpoint, run, 2, 2, **given))
    say("placed", rank=handler.next_rendezvous().rank)
    sys.stdin.readline()
    try:
        say("left", done=handler.shutdown())
    except KeyboardInterrupt:
        say("interrupted")
    sys.stdin.readline()  # the program has other things to do


if __name__ == "__main__":
    main()
