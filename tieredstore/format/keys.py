"""Object keys: made from a segment's id, and parsed from a listing.

A segment has three objects, distinguished by their suffixes::

    <prefix><topic>-<topicId>/<partition>/<start offset>-<segmentId>.<suffix>
                    22 chars   decimal     20 digits       22 chars

The prefix is used unchanged, so a prefix that is a folder ends in ``/``. The part between prefix and suffix is the main
path. Topics and ids may contain ``-``, so the parts are separated by their widths, never at a ``-``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from tieredstore.errors import ConfigError, excerpt
from tieredstore.limits import MAX_INT32, MAX_INT64
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition, Uuid

_OFFSET_DIGITS: Final = 20
_MAX_OFFSET_DIGITS: Final = 40  # real offsets have at most 19 digits; this limits the text that int() parses
_UUID_LENGTH: Final = 22
_MASK: Final = "<prefix>/"


class Suffix(enum.Enum):
    """One of a segment's three objects. The value is the end of the object's key, after the last dot."""

    LOG = "log"
    INDEXES = "indexes"
    MANIFEST = "rsm-manifest"


_SUFFIXES: Final = {suffix.value: suffix for suffix in Suffix}


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The parts of an object's key."""

    segment_id: RemoteLogSegmentId
    start_offset: int
    suffix: Suffix
    _found_path: str | None = field(default=None, repr=False, compare=False)

    @property
    def main_path(self) -> str:
        """The path between prefix and suffix, exactly as in the key. A JVM may have written the offset in the digits of
        its locale."""
        return self._found_path or main_path(self.segment_id, self.start_offset)


def main_path(segment_id: RemoteLogSegmentId, start_offset: int) -> str:
    """Return the path of a segment's objects, without prefix and suffix. Raise ConfigError for an invalid topic
    name.
    """
    where = segment_id.topic_id_partition
    if not where.topic or "/" in where.topic:
        raise ConfigError(f"{excerpt(where.topic, 249)!r} is not a topic name: it must not be empty or hold a slash")
    if not 0 <= where.partition <= MAX_INT32:
        raise ConfigError(f"partition {where.partition} of {where.topic} is outside of 0..{MAX_INT32}")
    if not 0 <= start_offset <= MAX_INT64:
        raise ConfigError(f"start offset {start_offset} of {where} is outside of 0..{MAX_INT64}")
    return f"{where.topic}-{where.topic_id}/{where.partition}/{padded_offset(start_offset)}-{segment_id.id}"


def padded_offset(start_offset: int) -> str:
    """Return the offset as in keys. All have the same width, so that keys sort by offset."""
    return f"{start_offset:0{_OFFSET_DIGITS}d}"


def object_key(prefix: str, main_path: str, suffix: Suffix) -> str:
    """Return the whole key of one object."""
    return f"{prefix}{main_path}.{suffix.value}"


def parse_key(prefix: str, key: str) -> ObjectKey | None:
    """Parse ``key``. Return None if it is not the key of a segment's object under ``prefix``.

    The start offset may use any decimal digits of Unicode, because the plugin formats it in its JVM's locale.
    """
    if not key.startswith(prefix):
        return None
    # The suffix comes after the last dot. Other dots can only be in the topic, which is before the last slashes.
    path, _, ending = key[len(prefix) :].rpartition(".")
    folder, _, name = path.rpartition("/")
    if (suffix := _SUFFIXES.get(ending)) is None or (where := partition_of_folder(folder)) is None:
        return None
    # A key of another form is no error: a bucket may contain objects of other programs.
    digits, segment_id = _cut_uuid(name)
    start_offset = _parse_offset(digits)
    if segment_id is None or start_offset is None:
        return None
    return ObjectKey(RemoteLogSegmentId(where, segment_id), start_offset, suffix, path)


def listing_prefix(
    prefix: str, topic: str | None = None, topic_id: Uuid | None = None, partition: int | None = None
) -> str:
    """Return the longest prefix that all keys of the topic have in common. If a topic id or a partition is given,
    return the common prefix of its keys.

    Keys of other topics may start with the same prefix, so the caller must parse and compare the listed keys. For
    example, a listing of topic ``a`` without its id also has keys of topic ``a-b``. A partition requires a topic id.
    """
    if topic is None:
        return prefix
    if topic_id is None:
        return f"{prefix}{topic}-"
    if partition is None:
        return f"{prefix}{topic}-{topic_id}/"
    return f"{prefix}{topic}-{topic_id}/{partition}/"


def displayed_key(key: str, prefix: str, masked: bool) -> str:
    """Return ``key`` as logs and messages may show it. If ``masked``, ``<prefix>/`` replaces the prefix.

    If the key has another prefix (an older prefix, from custom metadata), show only the key's last component.
    """
    if not masked:
        return key
    if key.startswith(prefix):
        return _MASK + key[len(prefix) :]
    return _MASK + key.rpartition("/")[2]


def partition_of(path: str) -> TopicIdPartition | None:
    """Return the partition named by the first two folders of a path (a key without prefix), or None."""
    folder, slash, rest = path.partition("/")
    number, second_slash, _ = rest.partition("/")
    return partition_of_folder(f"{folder}/{number}") if slash and second_slash else None


@lru_cache(maxsize=256)  # a partition can have a hundred thousand segments, all in the same folder
def partition_of_folder(folder: str) -> TopicIdPartition | None:
    """Return the partition of a path ``<topic>-<topic id>/<partition>``; None for any other path."""
    named, slash, number = folder.partition("/")
    topic, topic_id = _cut_uuid(named)
    partition = _parse_partition(number)
    if not slash or not topic or topic_id is None or partition is None:
        return None
    return TopicIdPartition(topic_id, topic, partition)


def _cut_uuid(text: str) -> tuple[str, Uuid | None]:
    """Split ``-<uuid>`` off the end of ``text``. The UUID is None if the text does not end in one."""
    head, dash, tail = text[: -_UUID_LENGTH - 1], text[-_UUID_LENGTH - 1 : -_UUID_LENGTH], text[-_UUID_LENGTH:]
    if dash != "-":
        return head, None
    # Only Kafka's own spelling of an id is accepted, because keys that are made here have no other spelling.
    return head, Uuid.parse_canonical(tail)


def _parse_partition(text: str) -> int | None:
    # Each number has only one accepted spelling, because with leading zeros, two keys could name the same partition.
    if not (text.isascii() and text.isdecimal() and len(text) <= 10) or (text[0] == "0" and text != "0"):
        return None
    return partition if (partition := int(text)) <= MAX_INT32 else None


def _parse_offset(digits: str) -> int | None:
    # Accept digits outside of ASCII, because the plugin writes the digits of its JVM's locale. int() reads all digits
    # that isdecimal() accepts.
    if not digits.isdecimal() or not _OFFSET_DIGITS <= len(digits) <= _MAX_OFFSET_DIGITS:
        return None
    return offset if (offset := int(digits)) <= MAX_INT64 else None
