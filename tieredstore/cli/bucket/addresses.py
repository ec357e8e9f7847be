"""TOPIC PARTITION BASE_OFFSET as arguments, and in the words of the command line where they name no one segment."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from tieredstore.catalog import SegmentObjects, StoredSegment
from tieredstore.errors import ConfigError, SegmentNotFoundError
from tieredstore.model import Uuid, human_bytes
from tieredstore.ops.addresses import (
    AmbiguousSegmentError,
    Candidate,
    SegmentAbsentError,
    SegmentAddress,
    find_objects,
    find_segment,
)
from tieredstore.ops.bucket import Bucket


def parse_address(
    topic: str, partition: int, base_offset: int, topic_id: str | None, segment_id: str | None
) -> SegmentAddress:
    """The address of a command's arguments; ConfigError for ids that are none."""
    ids = [None if text is None else Uuid.parse(text) for text in (topic_id, segment_id)]
    return SegmentAddress(topic, partition, base_offset, *ids)


def segment_at(bucket: Bucket, address: SegmentAddress) -> StoredSegment:
    """The one segment at ``address``, its manifest read; SegmentNotFoundError names near ones, ConfigError several."""
    with _in_words():
        return find_segment(bucket.store, bucket.prefix, address, bucket.manifest_rules)


def objects_at(bucket: Bucket, address: SegmentAddress) -> SegmentObjects:
    """The objects of the one segment at ``address``; with a segment id also what is left of an unfinished one."""
    with _in_words():
        return find_objects(bucket.store, bucket.prefix, address)


@contextlib.contextmanager
def _in_words() -> Generator[None]:
    """The errors of an address, with the options that help."""
    try:
        yield
    except SegmentAbsentError as error:
        leftovers = "an unfinished copy or delete left objects; --segment-id names it, see ls"
        raise SegmentNotFoundError(error.sentence(leftovers)) from error
    except AmbiguousSegmentError as error:
        raise ConfigError(_choice(error)) from error


def _choice(error: AmbiguousSegmentError) -> str:
    lines = [_line(candidate) for candidate in error.candidates]
    if error.count > len(lines):
        lines.append(f"… and {error.count - len(lines)} more")
    listing = "".join(f"\n  {line}" for line in lines)
    return f"{error.address} names {error.count} segments; choose one by --topic-id or --segment-id:{listing}"


def _line(candidate: Candidate) -> str:
    segment_id, metadata = candidate.objects.segment_id, candidate.metadata
    options = f"--topic-id={segment_id.topic_id_partition.topic_id} --segment-id={segment_id.id}"
    if metadata is None:
        return f"{options}  without a readable manifest, {human_bytes(candidate.objects.stored_size)} stored"
    last = "unknown" if metadata.end_offset < 0 else metadata.end_offset
    return f"{options}  last offset {last}, {metadata.segment_size_in_bytes} bytes"
