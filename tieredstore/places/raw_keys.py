"""Keys of Pinterest's layout: ``<prefix>[<bits>/]<cluster>/<topic>-<partition>/<base offset>.<ending>``.

The files of a segment have the endings ``index``, ``timeindex`` and ``log``. Each partition also has two other objects:
``offset.wm`` contains the base offset of the last stored segment, in 20 digits. ``_metadata`` lists the segments for
Pinterest's consumer (see ``raw_metadata``).

The layout stores no ids of topics and segments, so this module derives them from keys and listings.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectInfo
from tieredstore.format.keys import Suffix, main_path, object_key, padded_offset
from tieredstore.limits import MAX_INT32, MAX_INT64
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition, Uuid
from tieredstore.places.record import Layout, bits_folder, entropy_bits

INDEX: Final = "index"
TIME_INDEX: Final = "timeindex"
LOG: Final = "log"
FILES: Final = (INDEX, TIME_INDEX, LOG)
"""A segment's files, in the order in which they are written. The log is written last, because it commits the
segment."""

WATERMARK: Final = "offset.wm"

_FILE: Final = re.compile(r"([0-9]{20})\.(index|timeindex|log)")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class RawFile:
    """The parts of a segment file's key."""

    topic: str
    partition: int
    base_offset: int
    ending: str


@dataclass(frozen=True, slots=True)
class RawSegment:
    """The files of one segment, by their endings."""

    where: TopicIdPartition
    base_offset: int
    files: dict[str, ObjectInfo]

    @property
    def log_size(self) -> int:
        """Size of the log in bytes; 0 if there is none."""
        return self.files[LOG].size if LOG in self.files else 0

    def objects(self, prefix: str, cluster: str) -> list[ObjectInfo]:
        """Return the segment as the plugin's objects, sorted by key. If all files of the segment exist, include a
        manifest, which ``RawStore`` makes when a reader requests it."""
        digest = self.id(cluster)
        path = main_path(RemoteLogSegmentId(self.where, digest), self.base_offset)
        indexes = [self.files[ending] for ending in (INDEX, TIME_INDEX) if ending in self.files]
        seen: list[ObjectInfo] = []
        if indexes:
            times = [info.modified_ms for info in indexes if info.modified_ms is not None]
            size = sum(info.size for info in indexes)
            key = object_key(prefix, path, Suffix.INDEXES)
            seen.append(ObjectInfo(key, size, modified_ms=max(times, default=None)))
        log = self.files.get(LOG)
        if log is not None:
            seen.append(ObjectInfo(object_key(prefix, path, Suffix.LOG), log.size, log.etag, log.modified_ms))
        if log is not None and len(indexes) == 2:
            # The size is 0, because the manifest is not stored.
            seen.append(ObjectInfo(object_key(prefix, path, Suffix.MANIFEST), 0, log.etag, log.modified_ms))
        return seen

    def id(self, cluster: str) -> Uuid:
        """Derive the segment's id from its key and its log. The id changes if another log is stored under the same key,
        for example after the topic was re-created."""
        log = self.files.get(LOG)
        written_s = 0 if log is None or log.modified_ms is None else log.modified_ms // 1000
        return _make_id(
            "segment", cluster, self.where.topic, self.where.partition, self.base_offset, self.log_size, written_s
        )


@dataclass(frozen=True, slots=True)
class RawKeys:
    """Makes and parses the keys under a prefix."""

    prefix: str
    layout: Layout

    @property
    def cluster(self) -> str:
        """The cluster's name, which the raw layout requires."""
        assert self.layout.cluster is not None
        return self.layout.cluster

    def folder(self, where: TopicIdPartition) -> str:
        """Return the common prefix of a partition's keys."""
        bits = bits_folder(self.cluster, where, self.layout.bits)
        return f"{self.prefix}{bits}{self.cluster}/{where.topic}-{where.partition}/"

    def file(self, where: TopicIdPartition, base_offset: int, ending: str) -> str:
        """Return the key of one file."""
        return f"{self.folder(where)}{padded_offset(base_offset)}.{ending}"

    def parse(self, key: str) -> RawFile | None:
        """Parse a key. Return None if it is not the key of a segment's file."""
        parts = key[len(self.prefix) :].split("/") if key.startswith(self.prefix) else []
        depth = 3 + bool(self.layout.bits)
        if len(parts) != depth or parts[-3] != self.cluster:
            return None
        topic, _, number = parts[-2].rpartition("-")
        named = _FILE.fullmatch(parts[-1])
        if named is None or not topic or not _NUMBER.fullmatch(number) or int(number) > MAX_INT32:
            return None
        if self.layout.bits and parts[0] != entropy_bits(self.cluster, topic, int(number), self.layout.bits):
            return None
        base_offset = int(named[1])
        return RawFile(topic, int(number), base_offset, named[2]) if base_offset <= MAX_INT64 else None

    def where(self, file: RawFile) -> TopicIdPartition:
        """Return the file's partition, with the derived topic id."""
        return TopicIdPartition(raw_topic_id(self.cluster, file.topic), file.topic, file.partition)


def raw_topic_id(cluster: str, topic: str) -> Uuid:
    """Derive a topic's id from its name, so that a topic that is created again has the same id."""
    return _make_id("topic", cluster, topic)


def _make_id(*parts: object) -> Uuid:
    digest = bytearray(hashlib.md5("\0".join(map(str, parts)).encode(), usedforsecurity=False).digest())
    digest[0] &= 0x7F  # clear the first bit, so that the id's text does not begin with a dash
    return Uuid(bytes(digest))
