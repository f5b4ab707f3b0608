"""The parts of a transaction: conditions, operations, ranges of keys.  No network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rallypoint.etcd_client import messages
from rallypoint.etcd_client.errors import EtcdRefusedError

Text = bytes | str
"""Keys and values are bytes; text is written as UTF-8."""

# etcd's numbers for what a condition compares, and how.
_RELATIONS = {"==": 0, ">": 1, "<": 2, "!=": 3}
_TARGETS = {"version": 0, "create_revision": 1, "mod_revision": 2, "value": 3, "lease": 4}


def to_bytes(text: Text) -> bytes:
    """Keys and values as etcd wants them."""
    return text.encode() if isinstance(text, str) else text


def range_of(key: Text, prefix: bool = False, end: Text | None = None) -> tuple[bytes, bytes]:
    """A key alone, everything that begins with it, or everything up to but without an end; as etcd writes it."""
    start = to_bytes(key)
    if prefix and end is not None:
        raise EtcdRefusedError("a range is given by its prefix or by its end, not by both")
    if end is not None:
        return start, to_bytes(end)
    if not prefix:
        if not start:
            raise EtcdRefusedError("a key must not be empty; for all keys, write prefix=True")
        return start, b""
    return start or b"\0", prefix_end(start)


def prefix_end(prefix: bytes) -> bytes:
    """The first key behind all that begin so; b"\\0" means that there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


def compare(key: Text, relation: str = "==", **what: Any) -> messages.Compare:
    """A condition such as `compare("k", mod_revision=7)` or `compare("k", "!=", value=b"x")`.

    One of `value`, `version`, `create_revision`, `mod_revision`, `lease`; the numbers are 0 for a key that does not exist.
    """
    if relation not in _RELATIONS:
        raise EtcdRefusedError(f"{relation!r} is no relation; write one of {', '.join(_RELATIONS)}")
    if len(what) != 1 or not set(what) <= set(_TARGETS):
        raise EtcdRefusedError(f"a condition is on one of {', '.join(_TARGETS)}; this one is on {sorted(what)}")
    ((target, expected),) = what.items()
    if target == "value":
        expected = to_bytes(expected)
    return messages.Compare(_RELATIONS[relation], _TARGETS[target], to_bytes(key), **{target: expected})


def get_op(key: Text, *, prefix: bool = False, end: Text | None = None, limit: int = 0) -> messages.RequestOp:
    """Read, in a transaction."""
    return messages.RequestOp(request_range=messages.RangeRequest(*range_of(key, prefix, end), limit))


def put_op(key: Text, value: Text, *, lease: int = 0) -> messages.RequestOp:
    """Write, in a transaction."""
    return messages.RequestOp(request_put=messages.PutRequest(to_bytes(key), to_bytes(value), lease))


def delete_op(key: Text, *, prefix: bool = False, end: Text | None = None) -> messages.RequestOp:
    """Delete, in a transaction."""
    return messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(*range_of(key, prefix, end)))


@dataclass(frozen=True)
class TransactionResult:
    """What came of a transaction: which branch was taken, and the answers of its operations in their order."""

    succeeded: bool
    revision: int
    answers: tuple[messages.RangeResponse | messages.Response | messages.DeleteRangeResponse, ...]

    @staticmethod
    def of(response: messages.TxnResponse) -> TransactionResult:
        answers = (op.response_range or op.response_put or op.response_delete_range for op in response.responses)
        return TransactionResult(response.succeeded, response.revision, tuple(filter(None, answers)))


@dataclass(frozen=True)
class GuardedPut:
    """What came of a guarded write: whether the key holds our value, its mod_revision, and what it holds where not."""

    succeeded: bool
    revision: int
    current: messages.KeyValue | None
