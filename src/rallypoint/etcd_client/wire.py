"""Messages as bytes and back, in protobuf's encoding, driven by the tables of their fields.

etcd's messages consist of varints and length-delimited fields only, so this is all of protobuf that is needed, and
it never clashes with the protobuf version of anybody else in the process.  Fields that the table does not know are
skipped; input that is cut short or damaged is refused with an `EtcdMessageError`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from rallypoint.etcd_client.straight import reader_of, readers, writer_of, writers
from rallypoint.etcd_client.tables import Field, Message, Tag, fields_of

__all__ = ["Field", "Message", "Tag", "decode", "encode", "fields_of"]

M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """A message as bytes: the same bytes that protobuf writes."""
    kind = type(message)
    return (writers.get(kind) or writer_of(kind))(message)


def decode(cls: type[M], data: bytes) -> M:
    """The message in these bytes; a field that occurs twice is merged as protobuf does it."""
    message: Any = (readers.get(cls) or reader_of(cls))(data)
    return message  # type: ignore[no-any-return]
