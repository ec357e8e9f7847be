"""Further types of the API, for annotations: rows, totals, and types of keys and values.

Each name is imported on first use, like the names of ``tieredstore`` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.api.bucket import By
    from tieredstore.api.opening import BrokerLike
    from tieredstore.api.outcomes import OnOutcome, Status, Totals
    from tieredstore.api.reading import ReadOptions
    from tieredstore.api.reads import Record
    from tieredstore.api.rows import KeyUse, Partition, Table, Usage
    from tieredstore.api.scopes import Which
    from tieredstore.api.verifying import Finding, Level, Verification
    from tieredstore.consumer.client import Received as Message
    from tieredstore.model import (
        AtTime,
        IndexType,
        LogSegmentData,
        RemoteLogSegmentId,
        RemoteLogSegmentMetadata,
        SettingValue,
        TopicIdPartition,
        Uuid,
    )
    from tieredstore.ops.doctor.checkup import Check
    from tieredstore.ops.garbage.holds import LegalHold
    from tieredstore.query.arguments import Partitions
    from tieredstore.query.positions import GivenPlace as Place
    from tieredstore.remote.fetch.stream import SegmentStream
    from tieredstore.remote.stores import StoreLike
    from tieredstore.values import Avro, Binary, Json, Text, ValueType

__all__ = [
    "AtTime",
    "Avro",
    "Binary",
    "BrokerLike",
    "By",
    "Check",
    "Finding",
    "IndexType",
    "Json",
    "KeyUse",
    "LegalHold",
    "Level",
    "LogSegmentData",
    "Message",
    "OnOutcome",
    "Partition",
    "Partitions",
    "Place",
    "ReadOptions",
    "Record",
    "RemoteLogSegmentId",
    "RemoteLogSegmentMetadata",
    "SegmentStream",
    "SettingValue",
    "Status",
    "StoreLike",
    "Table",
    "Text",
    "TopicIdPartition",
    "Totals",
    "Usage",
    "Uuid",
    "ValueType",
    "Verification",
    "Which",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.installation import Extra  # noqa: PLC0415

    with Extra(f"tieredstore.types.{name}"):
        return _load(name)


def _load(name: str) -> object:  # noqa: C901  a table
    module: object
    match name:
        case "Avro" | "Binary" | "Json" | "Text" | "ValueType":
            from tieredstore import values as module  # noqa: PLC0415
        case "By":
            from tieredstore.api import bucket as module  # noqa: PLC0415
        case "BrokerLike":
            from tieredstore.api import opening as module  # noqa: PLC0415
        case "OnOutcome" | "Status" | "Totals":
            from tieredstore.api import outcomes as module  # noqa: PLC0415
        case "Place":
            from tieredstore.query.positions import GivenPlace  # noqa: PLC0415

            return GivenPlace
        case "ReadOptions":
            from tieredstore.api import reading as module  # noqa: PLC0415
        case "Record":
            from tieredstore.api import reads as module  # noqa: PLC0415
        case "KeyUse" | "Partition" | "Table" | "Usage":
            from tieredstore.api import rows as module  # noqa: PLC0415
        case "Partitions" | "Which":
            from tieredstore.api import scopes as module  # noqa: PLC0415
        case "Finding" | "Level" | "Verification":
            from tieredstore.api import verifying as module  # noqa: PLC0415
        case "Check":
            from tieredstore.ops.doctor import checkup as module  # noqa: PLC0415
        case "LegalHold":
            from tieredstore.ops.garbage import holds as module  # noqa: PLC0415
        case "Message":
            from tieredstore.consumer.client import Received  # noqa: PLC0415

            return Received
        case "SegmentStream":
            from tieredstore.remote.fetch import stream as module  # noqa: PLC0415
        case "StoreLike":
            from tieredstore.remote import stores as module  # noqa: PLC0415
        case _:
            from tieredstore import model as module  # noqa: PLC0415
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
