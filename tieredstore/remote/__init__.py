"""A segment up, a range down: the remote storage manager, with Kafka's verbs."""

from tieredstore.remote.base import RemoteStorageManagerBase
from tieredstore.remote.manager import RemoteStorageManager
from tieredstore.remote.source import NextSegment, SegmentSource
from tieredstore.remote.stream import SegmentStream

__all__ = ["NextSegment", "RemoteStorageManager", "RemoteStorageManagerBase", "SegmentSource", "SegmentStream"]
