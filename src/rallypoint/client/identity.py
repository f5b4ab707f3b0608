"""Who a node is: an identity of its own for every node, and for every return of one that was given up (rule 9)."""

from __future__ import annotations

import itertools
import os
import secrets
import socket

import msgspec

from rallypoint.messages.types import Node


class _Process:
    """What the identities of one process have in common; a forked child is another process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.token = secrets.token_hex(6)
        self.numbers = itertools.count(1)


_process = _Process()


def _this_process() -> _Process:
    global _process  # noqa: PLW0603  # it is the process that it speaks of
    if _process.pid != os.getpid():
        _process = _Process()
    return _process


def process_token() -> str:
    """A text that the nodes of this process share with its server, and with nobody else."""
    return _this_process().token


def mint_id(name: str) -> str:
    """An identity that nobody else has."""
    process = _this_process()
    # Copies of a machine that was stopped and started again have the same memory, and must differ as well.
    return f"{name}.{process.token}_{next(process.numbers)}{secrets.randbelow(10**6):06d}"


def fresh_identity(node: Node) -> Node:
    """The same process under a new identity."""
    return msgspec.structs.replace(node, id=mint_id(node.name), store="")


def this_node(name: str = "", **wishes: object) -> Node:
    """A node for this process, named after its machine unless it is given a name."""
    name = name or socket.gethostname()
    return msgspec.convert({"id": mint_id(name), "name": name, **wishes}, Node)
