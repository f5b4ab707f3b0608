"""A node that a server sends away, for want of room say, does not storm it."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest

import rallypoint
from rallypoint import protocol
from rallypoint.errors import RendezvousTimeoutError

FULL = protocol.Goodbye("there is no room")
WELCOME = protocol.MAGIC + protocol.frame(protocol.Welcome(protocol.VERSION, "full")) + protocol.frame(FULL)


def test_a_node_that_is_welcomed_and_sent_away_pauses_for_longer_each_time() -> None:
    moments: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send_away() -> None:
            with suppress(OSError):  # the listener is closed
                while True:
                    connection, _ = listener.accept()
                    moments.append(time.monotonic())
                    with connection:
                        connection.recv(4096)
                        connection.sendall(WELCOME)

        threading.Thread(target=send_away, daemon=True).start()
        with pytest.raises(RendezvousTimeoutError, match="there is no room"):
            rallypoint.join(
                f"127.0.0.1:{listener.getsockname()[1]}", run="r", nodes=1, is_host=False, join_timeout=1.5, quiet=True
            )
    assert 3 <= len(moments) <= 10
