"""The port that a node offers for a round's store (rule 12): whose it is, and for how long."""

from __future__ import annotations

import os
import socket

import pytest

from rallypoint.client.round_store import StoreOffer
from rallypoint.net import parse_endpoint


def test_a_child_by_fork_does_not_listen_in_its_parents_place() -> None:
    offer = StoreOffer("127.0.0.1")
    ready, tell_ready = os.pipe()
    wait_for_end, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(end)
            os.write(tell_ready, b"!")
            os.read(wait_for_end, 1)
        finally:
            os._exit(0)
    try:
        os.close(wait_for_end)
        os.read(ready, 1)
        offer.withdraw()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(parse_endpoint(offer.endpoint, 0), timeout=5.0)
    finally:
        os.close(end)
        os.waitpid(child, 0)
        for descriptor in (ready, tell_ready):
            os.close(descriptor)
