"""``tieredstore fetch`` and ``index``: a segment's bytes, or one of its indexes."""

from __future__ import annotations

import contextlib
import re
from typing import Annotated, BinaryIO, Final

import typer

from tieredstore.catalog import StoredSegment
from tieredstore.cli.app.arguments import (
    BaseOffset,
    Json,
    OutputPath,
    Partition,
    SegmentId,
    SettingsPath,
    StoreUrl,
    Topic,
    TopicId,
)
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.bucket.addresses import parse_address, segment_at
from tieredstore.cli.bucket.decoded_indexes import decode_rows
from tieredstore.cli.terminal.output import json_array, table_of_rows, terminal_width
from tieredstore.cli.terminal.output_file import binary_output_to, output_to, write_all
from tieredstore.cli.terminal.progress import progress
from tieredstore.errors import ConfigError
from tieredstore.model import ByteRange, IndexType
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.log_ranges import range_of_slice, read_range

_KAFKAS_NAMES: Final = {
    "index": IndexType.OFFSET,
    "timeindex": IndexType.TIMESTAMP,
    "snapshot": IndexType.PRODUCER_SNAPSHOT,
    "leader-epoch-checkpoint": IndexType.LEADER_EPOCH,
    "txnindex": IndexType.TRANSACTION,
}
_RANGE: Final = re.compile(r"([+-]?\d{1,40})?:([+-]?\d{1,40})?", re.ASCII)


def fetch(
    topic: Topic,
    partition: Partition,
    base_offset: BaseOffset,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    byte_range: Annotated[
        str, typer.Option("--range", metavar="A:B", help="Bytes A up to but not B of the log, as a Python slice.")
    ] = ":",
    output: OutputPath = None,
    topic_id: TopicId = None,
    segment_id: SegmentId = None,
) -> None:
    """Fetch a segment's log, or a range of its bytes, exactly as the broker wrote them.

    Either bound of a range may be left out, negative ones count from the end, and those past the end are cut.

    Example: tieredstore fetch -c store.properties orders 0 0 --range=-1000: -o tail.log
    """
    bounds = parse_range(byte_range)
    target = binary_output_to(output)
    address = parse_address(topic, partition, base_offset, topic_id, segment_id)
    with open_chosen_bucket(settings, store) as bucket:
        segment = segment_at(bucket, address)
        inside = range_of_slice(bounds, segment.metadata.segment_size_in_bytes)
        with target as file:
            _fetch_range(bucket, segment, inside, file)


def index(
    topic: Topic,
    partition: Partition,
    base_offset: BaseOffset,
    index_name: Annotated[
        str,
        typer.Argument(
            metavar="INDEX",
            help="One of: " + ", ".join(kind.value for kind in IndexType) + "; or as Kafka's files are called: index, "
            "timeindex, snapshot, leader-epoch-checkpoint, txnindex.",
        ),
    ],
    settings: SettingsPath = None,
    store: StoreUrl = None,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as the broker wrote them, not decoded.")] = False,
    output: OutputPath = None,
    as_json: Json = False,
    topic_id: TopicId = None,
    segment_id: SegmentId = None,
) -> None:
    """Show one index of a segment, decoded; --raw for its bytes.

    The exit code is 3 if the segment was copied without that index.

    Example: tieredstore index -c store.properties orders 0 0 timestamp
    """
    if raw and as_json:
        raise ConfigError("--raw and --json exclude each other")
    kind = _index_type(index_name)
    target = binary_output_to(output) if raw else output_to(output)
    address = parse_address(topic, partition, base_offset, topic_id, segment_id)
    with open_chosen_bucket(settings, store) as bucket:
        segment = segment_at(bucket, address)
        with bucket.manager() as manager, manager.fetch_index(segment.metadata, kind) as stream:
            content = stream.read()
    if raw:
        data = content
    else:
        data = _shown(kind, content, base_offset, as_json=as_json, width=None if output else terminal_width())
    with target as file:
        write_all(file, data)


def _index_type(name: str) -> IndexType:
    """The index that is called so, by us or by the ending of Kafka's file."""
    with contextlib.suppress(ValueError):
        return IndexType(name)
    try:
        return _KAFKAS_NAMES[name.removeprefix(".")]
    except KeyError:
        known = ", ".join([*(kind.value for kind in IndexType), *_KAFKAS_NAMES])
        raise ConfigError(f"{name!r} is no index: {known} are") from None


def parse_range(text: str) -> slice:
    """The slice that ``A:B`` writes; ConfigError for anything else."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--range {text!r} is not a range: A:B is expected, as a Python slice of bytes (100:, :-1, 5:9)"
        )
    return slice(*(None if bound is None else int(bound) for bound in match.groups()))


def _fetch_range(bucket: Bucket, segment: StoredSegment, inside: ByteRange, file: BinaryIO) -> None:
    if not len(inside):
        return  # without a key file being read
    with (
        bucket.manager() as manager,
        progress("fetch", len(inside)) as bar,
        contextlib.closing(read_range(manager, segment, inside)) as pieces,
    ):
        for piece in pieces:
            write_all(file, piece)
            bar.advance(len(piece))


def _shown(kind: IndexType, content: bytes, base_offset: int, *, as_json: bool, width: int | None) -> bytes:
    rows = decode_rows(kind, content, base_offset)
    return ("".join(json_array(rows)) if as_json else table_of_rows(rows, width=width)).encode()
