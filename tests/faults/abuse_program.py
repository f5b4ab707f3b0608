"""Callers that mean harm, as a process of their own: `python -m tests.faults.abuse_program KIND PORT`.

It says how often it has done its worst, once it has done it often enough, and goes on until its standard input ends.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from rallypoint import protocol
from rallypoint.messages.requests import Announced, Joined, Left, Seat, Standing
from rallypoint.messages.types import Bounds, Node, Reason

PATIENCE_S = 20.0
HELLO = protocol.MAGIC + protocol.frame(protocol.Hello(protocol.VERSION))
BOUNDS = Bounds(1, 1)
chance = random.Random(11)
held: list[socket.socket] = []
"""Connections that are kept for as long as the process lives."""
_numbers = itertools.count()


def dial(port: int) -> socket.socket:
    """A connection to the server."""
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def said(port: int, data: bytes) -> None:
    """Say something on a connection of its own, and wait until the server has hung up."""
    with dial(port) as sock, suppress(ConnectionError):
        sock.sendall(data)
        while sock.recv(65536):
            pass


def hold(port: int, data: bytes = b"", most: int = 1_000_000) -> None:
    """Say something, and keep the connection; beyond so many, wait until the server has hung up on the oldest."""
    held.append(sock := dial(port))
    sock.sendall(data)
    if len(held) > most:
        with held.pop(0) as oldest:
            while oldest.recv(4096):
                pass


def node_hello(run: str, node_id: str, **more: object) -> bytes:
    hello = protocol.Hello(protocol.VERSION, run, node_id, 1)
    fields = {**json.loads(protocol.frame(hello)[4:]), **more}
    return protocol.MAGIC + protocol.framed(json.dumps(fields).encode())


def as_node(message: object, **changed: object) -> bytes:
    """A node's hello and this message, some fields of which are as no node of ours would have them."""
    fields = {**json.loads(protocol.frame(message)[4:]), **changed}
    return node_hello("abused", "liar") + protocol.framed(json.dumps(fields).encode())


NODE = Node(id="liar", name="liar", address="127.0.0.1")
JOINED = Joined(NODE, BOUNDS)


def garbage(port: int) -> None:
    said(port, chance.randbytes(chance.randrange(4, 4000)))


def half_a_frame(port: int) -> None:
    hold(port, HELLO[: chance.randrange(1, len(HELLO))], most=800)


def slow_loris(port: int) -> None:
    """Many connections; of each round one byte more is said on all of them."""
    if len(held) < 300:
        hold(port)
        return
    place = next(_numbers)
    for sock in held:
        with suppress(ConnectionError):
            sock.sendall(HELLO[place % len(HELLO) :][:1])


def never_reads(port: int) -> None:
    questions = protocol.frame(protocol.AskStatus(1, "quiet")) * 60
    with dial(port) as sock, suppress(ConnectionError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(HELLO)
        while True:
            sock.sendall(questions)


def silent(port: int) -> None:
    hold(port)


def beyond_the_limit(port: int) -> None:
    """More callers than there is room for, each of which is answered."""
    held.append(sock := dial(port))
    sock.sendall(HELLO)
    sock.recv(4096)
    if len(held) > 400:
        held.pop(0).close()


def joins_and_leaves(port: int) -> None:
    node = Node(id=f"churn-{next(_numbers)}", name="churn", address="127.0.0.1")
    goes = protocol.frame(Joined(node, BOUNDS)) + protocol.frame(Left(node.id, Reason.WITHDREW))
    with dial(port) as sock:
        sock.sendall(node_hello("churn", node.id) + goes)
        sock.recv(65536)


def odd_names(port: int) -> None:
    size = chance.choice((300, 60_000))
    name = chance.choice(("\x1b[2J\n\0", "\u202e\u0007", "n")) * size
    said(port, as_node(JOINED, node={"id": "liar", "name": name}))


def a_name_of_a_megabyte(port: int) -> None:
    said(port, as_node(JOINED, node={"id": "liar", "name": "n" * 2**20}))


def json_bomb(port: int) -> None:
    bodies = (
        b"[" * 60_000,
        b'{"a":' * 12_000,
        b'{"type":"join","node":' * 2_000,
        b"9" * 60_000,
        b'{"type":"hello","protocol":1e' + b"9" * 60_000 + b"}",
        b'{"type":"hello",' + b'"x":0,' * 10_000 + b'"protocol":2',
        b'"' + b"\\ud800" * 10_000 + b'"',
    )
    said(port, protocol.MAGIC + protocol.framed(chance.choice(bodies)))


def out_of_range(port: int) -> None:
    number = chance.choice((-1, 2**53 + 1, 2**63, 2**64, 10**30, -(10**30)))
    lies = (
        {"bounds": {"min": 1, "max": number}},
        {"round_seen": number},
        {"settings": {"last_call_s": number}},
        {"settings": {"heartbeat_timeout_s": 1e30}},
        {"node": {"id": "liar", "name": "liar", "wanted_rank": number}},
        {"seat": {"round": number, "seal_id": "s", "size": 2, "rank": 0}},
        {"seat": {"round": 1, "seal_id": "s", "size": 10**6, "rank": 0}},
        {"seat": {"round": 1, "seal_id": "s", "size": 2, "rank": 2}},
    )
    said(port, as_node(JOINED, **chance.choice(lies)))


def lies(port: int) -> None:
    """Places that nobody gave out: high rounds, large worlds, other seal ids, epochs of another server."""
    node = Node(id=f"liar-{next(_numbers)}", name="liar", address="127.0.0.1")
    size = chance.choice((2, 1000, 100_000))
    seat = Seat(chance.choice((1, 2**40, 2**52)), f"s{chance.random()}", size, chance.randrange(size))
    standing = chance.choice((Standing.HOLDS, Standing.BROKEN, Standing.CLOSED, Standing.FINISHED))
    run = f"lied-about-{chance.randrange(50)}"
    tells = Announced(node, Bounds(1, 100_000), standing, incarnation="invented", seat=seat, round_seen=2**32)
    with dial(port) as sock:
        hello = node_hello(run, node.id, epoch=2**53, incarnation="invented", claim_id="c")
        sock.sendall(hello + protocol.frame(tells))
        sock.recv(65536)


def wrong_proofs(port: int) -> None:
    """It answers the challenge, with what it made up."""
    made_up = protocol.frame(protocol.Proof(chance.randbytes(32).hex()))
    said(port, node_hello("abused", f"liar-{next(_numbers)}", nonce="n") + made_up)


ABUSES: dict[str, tuple[Callable[[int], None], int]] = {
    "garbage": (garbage, 300),
    "half a frame": (half_a_frame, 500),
    "slow loris": (slow_loris, 400),
    "never reads": (never_reads, 3),
    "silent": (silent, 10_000),
    "beyond the limit": (beyond_the_limit, 1_000),
    "joins and leaves": (joins_and_leaves, 500),
    "odd names": (odd_names, 200),
    "a name of a megabyte": (a_name_of_a_megabyte, 50),
    "a json bomb": (json_bomb, 200),
    "out of range": (out_of_range, 300),
    "lies": (lies, 500),
}
"""What is done, and how often before it counts."""
BEFORE_A_PROOF: dict[str, tuple[Callable[[int], None], int]] = {
    "wrong proofs": (wrong_proofs, 1_000),
    "silent": ABUSES["silent"],
    "slow loris": ABUSES["slow loris"],
}
"""The same, to a server that wants a token."""
BEFORE_A_HANDSHAKE: dict[str, tuple[Callable[[int], None], int]] = {
    "garbage": ABUSES["garbage"],
}
"""The same, to a server that wants certificates."""


def repeated(abuse: Callable[[int], None], port: int) -> Iterator[None]:
    while True:
        with suppress(ConnectionError, TimeoutError):
            abuse(port)
        yield


def main(kind: str, port: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    abuse, often = {**ABUSES, **BEFORE_A_PROOF, **BEFORE_A_HANDSHAKE}[kind]
    often = min(often, hard - 200)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    for times, _ in enumerate(repeated(abuse, port), 1):
        if times == often:
            print(times, flush=True)
            if kind == "silent":
                threading.Event().wait()  # that is all that they do


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
