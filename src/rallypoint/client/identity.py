"""The identity of a node: one of its own for every node, and for every return of one that was given up (rule 9)."""

from __future__ import annotations

import itertools
import secrets
import socket

import msgspec

from rallypoint.forks import run_in_children
from rallypoint.messages.types import Node

_numbers = itertools.count(1)
_token, _secret = secrets.token_hex(6), secrets.token_hex(16)
LONGEST_NAME = 64
"""What an id keeps of a long name."""


@run_in_children
def _renew_token() -> None:
    """A forked child is another process."""
    global _token, _secret  # it is the process that they speak of
    _token, _secret = secrets.token_hex(6), secrets.token_hex(16)


def process_token() -> str:
    """A text that the nodes of this process share with its server, and with nobody else."""
    return _secret


def mint_id(name: str) -> str:
    """An identity that nobody else has; everybody may see it."""
    # Copies of a machine that was stopped and started again have the same memory, and must differ as well.
    return f"{name[:LONGEST_NAME]}.{_token}_{next(_numbers)}{secrets.randbelow(10**6):06d}"


def fresh_identity(node: Node) -> Node:
    """The same process under a new identity."""
    return msgspec.structs.replace(node, id=mint_id(node.name), store="", store_secret="")


def this_node(name: str = "", **hints: object) -> Node:
    """A node for this process, named after its machine unless it is given a name."""
    name = name or socket.gethostname()
    return msgspec.convert({"id": mint_id(name), "name": name, **hints}, Node)
