"""Tiered storage for Kafka's log, without the broker.

:func:`open` returns a :class:`Bucket`. Its methods are the rest of the API. Importing this package is fast, because
each name is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore import errors
    from tieredstore import types as types
    from tieredstore.api.bucket import Bucket
    from tieredstore.api.opening import open  # noqa: A004  named like Python's own
    from tieredstore.api.outcomes import Outcome, Plan
    from tieredstore.api.reads import Read
    from tieredstore.api.rows import Segment, Topic
    from tieredstore.config.settings import Settings
    from tieredstore.consumer import Consumer
    from tieredstore.errors import TieredStoreError
    from tieredstore.pubsub.consume.consumer import BatchConsumer
    from tieredstore.pubsub.produce.producer import BatchProducer
    from tieredstore.remote.manager import RemoteStorageManager
    from tieredstore.uploader.uploader import Uploader

__version__ = "0.1.0"

__all__ = [
    "BatchConsumer",
    "BatchProducer",
    "Bucket",
    "Consumer",
    "Outcome",
    "Plan",
    "Read",
    "RemoteStorageManager",
    "Segment",
    "Settings",
    "TieredStoreError",
    "Topic",
    "Uploader",
    "__version__",
    "errors",
    "open",
]


def __getattr__(name: str) -> object:  # noqa: C901  a table
    module: object
    match name:
        case "open":
            from tieredstore.api import opening as module  # noqa: PLC0415
        case "Bucket":
            from tieredstore.api import bucket as module  # noqa: PLC0415
        case "Topic" | "Segment":
            from tieredstore.api import rows as module  # noqa: PLC0415
        case "Read":
            from tieredstore.api import reads as module  # noqa: PLC0415
        case "Outcome" | "Plan":
            from tieredstore.api import outcomes as module  # noqa: PLC0415
        case "Settings":
            from tieredstore.config import settings as module  # noqa: PLC0415
        case "BatchConsumer" | "BatchProducer":
            from tieredstore import pubsub as module  # noqa: PLC0415
        case "Consumer":
            from tieredstore import consumer as module  # noqa: PLC0415
        case "Uploader":
            from tieredstore.uploader import uploader as module  # noqa: PLC0415
        case "RemoteStorageManager":
            from tieredstore.remote import manager as module  # noqa: PLC0415
        case "TieredStoreError":
            import tieredstore.errors as module  # noqa: PLC0415
        case "errors":
            # Do not write `from tieredstore import errors` here, because it looks up the name by this function, and
            # so recurses.
            import tieredstore.errors as errors  # noqa: PLC0415

            return errors
        case "types":
            import tieredstore.types as types  # noqa: PLC0415

            return types
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
