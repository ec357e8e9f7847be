"""Protocol Buffers messages without a compiler: the descriptor set is written as JSON."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from tieredstore.values.protobuf import message_class

EVENT = "events.Event"
_FILE = {
    "name": "event.proto",
    "package": "events",
    "syntax": "proto3",
    "dependency": ["google/protobuf/timestamp.proto"],
    "messageType": [
        {
            "name": "Event",
            "field": [
                {"name": "id", "number": 1, "type": "TYPE_UINT64", "label": "LABEL_OPTIONAL"},
                {"name": "at", "number": 2, "type": "TYPE_MESSAGE", "typeName": ".google.protobuf.Timestamp",
                 "label": "LABEL_OPTIONAL"},
                {"name": "name", "number": 3, "type": "TYPE_STRING", "label": "LABEL_OPTIONAL", "proto3Optional": True,
                 "oneofIndex": 0},
                {"name": "kind", "number": 4, "type": "TYPE_ENUM", "typeName": ".events.Kind",
                 "label": "LABEL_OPTIONAL"},
                {"name": "tags", "number": 5, "type": "TYPE_STRING", "label": "LABEL_REPEATED"},
                {"name": "meta", "number": 6, "type": "TYPE_MESSAGE", "typeName": ".events.Meta",
                 "label": "LABEL_OPTIONAL"},
                {"name": "counts", "number": 7, "type": "TYPE_MESSAGE", "typeName": ".events.Event.CountsEntry",
                 "label": "LABEL_REPEATED"},
                {"name": "body", "number": 8, "type": "TYPE_BYTES", "label": "LABEL_OPTIONAL"},
            ],
            "oneofDecl": [{"name": "_name"}],
            "nestedType": [{
                "name": "CountsEntry",
                "field": [
                    {"name": "key", "number": 1, "type": "TYPE_STRING", "label": "LABEL_OPTIONAL"},
                    {"name": "value", "number": 2, "type": "TYPE_INT32", "label": "LABEL_OPTIONAL"},
                ],
                "options": {"mapEntry": True},
            }],
        },
        {
            "name": "Meta",
            "field": [
                {"name": "millis", "number": 1, "type": "TYPE_INT64", "label": "LABEL_OPTIONAL"},
                {"name": "small", "number": 2, "type": "TYPE_UINT32", "label": "LABEL_OPTIONAL"},
            ],
        },
        {
            "name": "Tree",
            "field": [{"name": "child", "number": 1, "type": "TYPE_MESSAGE", "typeName": ".events.Tree",
                       "label": "LABEL_OPTIONAL"}],
        },
        {"name": "Empty"},
    ],
    "enumType": [{"name": "Kind", "value": [{"name": "NONE", "number": 0}, {"name": "CLICK", "number": 1}]}],
}  # fmt: skip


@functools.cache
def descriptor_set() -> bytes:
    """Return the output of ``protoc --include_imports --descriptor_set_out``."""
    return _set_of(_FILE)


def _set_of(file: dict[str, Any]) -> bytes:
    pb2: Any = importlib.import_module("google.protobuf.descriptor_pb2")
    timestamps: Any = importlib.import_module("google.protobuf.timestamp_pb2")
    formats: Any = importlib.import_module("google.protobuf.json_format")
    files = pb2.FileDescriptorSet()
    timestamps.DESCRIPTOR.CopyToProto(files.file.add())
    formats.ParseDict(file, files.file.add())
    data: bytes = files.SerializeToString()
    return data


def event(**fields: Any) -> bytes:
    """Encode an event with these fields; ``at`` is in milliseconds."""
    message = message_class(descriptor_set(), EVENT)()
    at_ms = fields.pop("at", None)
    if at_ms is not None:
        message.at.FromMilliseconds(at_ms)
    formats: Any = importlib.import_module("google.protobuf.json_format")
    formats.ParseDict(fields, message)
    data: bytes = message.SerializeToString()
    return data


def doubling_set(messages: int) -> bytes:
    """Return messages that each contain the previous one twice: few messages, but 2^n columns."""
    label = "LABEL_OPTIONAL"
    kinds: list[dict[str, Any]] = [
        {"name": "M0", "field": [{"name": "n", "number": 1, "type": "TYPE_INT32", "label": label}]}
    ]
    for at in range(1, messages):
        fields = [
            {"name": name, "number": number, "type": "TYPE_MESSAGE", "typeName": f".doubling.M{at - 1}", "label": label}
            for number, name in enumerate("ab", 1)
        ]
        kinds.append({"name": f"M{at}", "field": fields})
    return _set_of({"name": "doubling.proto", "package": "doubling", "syntax": "proto3", "messageType": kinds})
