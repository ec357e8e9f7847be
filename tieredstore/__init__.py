"""Tiered storage for Kafka's log, without the broker.

:func:`open` returns a :class:`Bucket`. Its methods are the rest of the API. Importing this package is fast, because
each name is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore import errors
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
    match name:
        case "open":
            from tieredstore.api import opening  # noqa: PLC0415

            return opening.open
        case "Bucket":
            from tieredstore.api import bucket  # noqa: PLC0415

            return bucket.Bucket
        case "Topic" | "Segment":
            from tieredstore.api import rows  # noqa: PLC0415

            return getattr(rows, name)
        case "Read":
            from tieredstore.api import reads  # noqa: PLC0415

            return reads.Read
        case "Outcome" | "Plan":
            from tieredstore.api import outcomes  # noqa: PLC0415

            return getattr(outcomes, name)
        case "Settings":
            from tieredstore.config import settings  # noqa: PLC0415

            return settings.Settings
        case "BatchConsumer" | "BatchProducer":
            from tieredstore import pubsub  # noqa: PLC0415

            return getattr(pubsub, name)
        case "Consumer":
            from tieredstore import consumer  # noqa: PLC0415

            return consumer.Consumer
        case "Uploader":
            from tieredstore.uploader import uploader  # noqa: PLC0415

            return uploader.Uploader
        case "RemoteStorageManager":
            from tieredstore.remote import manager  # noqa: PLC0415

            return manager.RemoteStorageManager
        case "errors" | "TieredStoreError":
            # Do not write `from tieredstore import errors` here, because it looks up the name by this function, and
            # so recurses.
            import tieredstore.errors as errors  # noqa: PLC0415

            return errors if name == "errors" else errors.TieredStoreError
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
