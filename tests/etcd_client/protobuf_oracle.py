"""protobuf itself, as the judge of our codec: the same messages, built from the same table."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from rallypoint.etcd_client import messages
from rallypoint.etcd_client.codec import Field, Message, _table_of

MESSAGES: tuple[type[Message], ...] = tuple(
    kind
    for _, kind in inspect.getmembers(messages, inspect.isclass)
    if issubclass(kind, Message) and kind is not Message
)
_TYPES = {
    bytes: descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    str: descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    bool: descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    int: descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
}


def fields_of(kind: type[Message]) -> tuple[Field, ...]:
    """The fields of a message, in the order in which they are written."""
    return tuple(_table_of(kind).values())


@cache
def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="oracle.proto", package="oracle", syntax="proto3")
    for kind in MESSAGES:
        described = file.message_type.add(name=kind.__name__)
        for field in fields_of(kind):
            line = described.field.add(name=field.name, number=field.number)
            line.type = _TYPES.get(field.type, line.TYPE_MESSAGE)
            line.label = line.LABEL_REPEATED if field.repeated else line.LABEL_OPTIONAL
            if issubclass(field.type, Message):
                line.type_name = f".oracle.{field.type.__name__}"
            elif field.optional:  # as of one that may be absent, such as those of a oneof
                line.proto3_optional = True
                line.oneof_index = len(described.oneof_decl)
                described.oneof_decl.add(name=f"_{field.name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        kind.__name__: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"oracle.{kind.__name__}"))
        for kind in MESSAGES
    }


def written_by_protobuf(message: Message) -> bytes:
    """What protobuf makes of it."""
    data: bytes = _to_protobuf(message).SerializeToString(deterministic=True)
    return data


def _to_protobuf(message: Message) -> Any:
    theirs = _classes()[type(message).__name__]()
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if field.repeated:
            getattr(theirs, field.name).extend([_to_protobuf(v) if isinstance(v, Message) else v for v in value])
        elif isinstance(value, Message):
            getattr(theirs, field.name).CopyFrom(_to_protobuf(value))
            getattr(theirs, field.name).SetInParent()
        elif value is not None:
            setattr(theirs, field.name, value)
    return theirs


def read_by_protobuf(kind: type[Message], data: bytes) -> Message:
    """What protobuf sees in these bytes, as a message of ours; raises what protobuf raises."""
    theirs = _classes()[kind.__name__]()
    theirs.ParseFromString(data)
    return _from_protobuf(kind, theirs)


def _from_protobuf(kind: type[Message], theirs: Any) -> Message:
    found: dict[str, Any] = {}
    for field in fields_of(kind):
        value, is_message = getattr(theirs, field.name), issubclass(field.type, Message)
        if field.repeated:
            found[field.name] = tuple(_from_protobuf(field.type, v) if is_message else v for v in value)
        elif field.optional and not theirs.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _from_protobuf(field.type, value) if is_message else value
    return kind(**found)
