"""protobuf itself, as the judge of our codec: the same messages, built from the same table."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from rallypoint.etcd_client import messages
from rallypoint.etcd_client.wire import Message, fields_of

MESSAGES: tuple[type[Message], ...] = tuple(
    kind
    for _, kind in inspect.getmembers(messages, inspect.isclass)
    if issubclass(kind, Message) and kind is not Message
)
_TYPES = {
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "message": descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
}


@cache
def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="oracle.proto", package="oracle", syntax="proto3")
    for kind in MESSAGES:
        described = file.message_type.add(name=kind.__name__)
        unions: list[str] = []
        for field in fields_of(kind):
            line = described.field.add(name=field.name, number=field.number, type=_TYPES[field.kind])
            line.label = line.LABEL_REPEATED if field.repeated else line.LABEL_OPTIONAL
            if field.message is not None:
                line.type_name = f".oracle.{field.message.__name__}"
            if field.oneof:
                if field.oneof not in unions:
                    unions.append(field.oneof)
                    described.oneof_decl.add(name=field.oneof)
                line.oneof_index = unions.index(field.oneof)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        kind.__name__: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"oracle.{kind.__name__}"))
        for kind in MESSAGES
    }


def to_protobuf(message: Message) -> Any:
    """The same message as an object of protobuf's."""
    theirs = _classes()[type(message).__name__]()
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if field.repeated:
            getattr(theirs, field.name).extend([to_protobuf(v) if field.message else v for v in value])
        elif field.message is not None:
            if value is not None:
                getattr(theirs, field.name).CopyFrom(to_protobuf(value))
                getattr(theirs, field.name).SetInParent()
        elif value is not None:
            setattr(theirs, field.name, value)
    return theirs


def written_by_protobuf(message: Message) -> bytes:
    """What protobuf makes of it."""
    data: bytes = to_protobuf(message).SerializeToString(deterministic=True)
    return data


def read_by_protobuf(kind: type[Message], data: bytes) -> Message:
    """What protobuf sees in these bytes, as a message of ours; raises what protobuf raises."""
    theirs = _classes()[kind.__name__]()
    theirs.ParseFromString(data)
    return _from_protobuf(kind, theirs)


def _from_protobuf(kind: type[Message], theirs: Any) -> Message:
    found: dict[str, Any] = {}
    for field in fields_of(kind):
        value = getattr(theirs, field.name)
        if field.repeated:
            found[field.name] = tuple(_from_protobuf(field.message, v) if field.message else v for v in value)
        elif field.optional and not theirs.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _from_protobuf(field.message, value) if field.message else value
    return kind(**found)
