"""How a store on etcd's API v2 writes its keys and values: as torch's EtcdStore does, in base64.

Where base64 would put a slash into a name, which etcd takes for a directory, another alphabet and a tilde stand instead.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

from rallypoint.stores.base import WrongKindError, decode_key, encode_key, encode_value, name_some
from rallypoint.stores.errors import StoreError

LARGEST_VALUE = 4 * 1024 * 1024
"""What etcd takes in one request, with some room; its own limit is 10 MB for the whole request."""

_ODD = "~"
# Letters that base64 does not have, and that every decoder of it passes over, torch's among them.
_MARKS, _MARK_LETTERS = "-_.~", 24


def as_name(key: str | bytes) -> bytes:
    """A key as bytes; torch's EtcdStore takes both kinds."""
    return key if isinstance(key, bytes) else encode_key(key)


def as_names(keys: Sequence[str | bytes]) -> list[bytes]:
    """Several keys as bytes.  One text is refused: its letters would pass for keys."""
    if isinstance(keys, (str, bytes)):
        raise WrongKindError(f"expected a list of keys, not the text {keys!r}")
    return [as_name(key) for key in keys]


def shown(*keys: str | bytes) -> str:
    """Keys for a message."""
    return name_some([decode_key(as_name(key)) for key in keys])


def as_file(name: bytes) -> str:
    """What etcd knows a key by."""
    text = b64encode(name).decode()
    return text if text and "/" not in text else _ODD + urlsafe_b64encode(name).decode()


def of_file(path: str) -> bytes:
    """The key that stands at a path of etcd's."""
    file = path.rpartition("/")[2]
    try:
        return urlsafe_b64decode(file[1:]) if file.startswith(_ODD) else b64decode(file, validate=True)
    except ValueError:
        return file.encode("utf-8", "surrogateescape")


def as_text(value: bytes | str) -> str:
    """A value as etcd holds it; StoreError if it is larger than etcd takes."""
    data = encode_value(value)
    if len(data) > LARGEST_VALUE:
        raise StoreError(
            f"the value has {len(data):,} bytes, but etcd takes {LARGEST_VALUE:,} at most: keep it elsewhere, and its "
            f"address in the store"
        )
    return b64encode(data).decode()


def decoded(text: str, path: str) -> bytes:
    """The value in what etcd holds; StoreError where that is none."""
    try:
        return b64decode(unmarked(text), validate=True)
    except ValueError as exc:
        raise StoreError(
            f"{path} holds {text[:40]!r}, but should be base64: something else writes into this store's directory"
        ) from exc


def mark() -> str:
    """Letters that make a base64 text unlike any other, without changing what it says."""
    # The system is asked once: each time that it is, other threads of the process come first.
    number = secrets.randbits(2 * _MARK_LETTERS)
    return "".join(_MARKS[number >> 2 * place & 3] for place in range(_MARK_LETTERS))


def unmarked(text: str) -> str:
    """The base64 text without its mark."""
    return text.rstrip(_MARKS)
