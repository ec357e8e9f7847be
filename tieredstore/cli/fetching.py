"""``tieredstore fetch`` and ``index``: a segment's bytes, or one of its indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, BinaryIO, Final

import typer

from tieredstore.catalog import StoredSegment
from tieredstore.cli.address import Address, resolve
from tieredstore.cli.arguments import (
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
from tieredstore.cli.decoded_indexes import decoded_rows
from tieredstore.cli.opened import OpenedStore, opened
from tieredstore.cli.output import json_array, output_to, table_of_rows, write_all
from tieredstore.cli.progress import progress
from tieredstore.errors import ConfigError
from tieredstore.model import ByteRange, IndexType

_RANGE: Final = re.compile(r"([+-]?\d{1,40})?:([+-]?\d{1,40})?", re.ASCII)
_CHUNKS_AT_ONCE: Final = 8
_BUFFER_SIZE: Final = 64 << 20


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
    wanted = parse_range(byte_range)
    address = Address.parse(topic, partition, base_offset, topic_id, segment_id)
    with opened(settings, store) as place:
        segment = resolve(place, address)
        inside = slice_of(wanted, segment.metadata.segment_size_in_bytes)
        with output_to(output) as file:
            _fetch_range(place, segment, inside, file)


def index(
    topic: Topic,
    partition: Partition,
    base_offset: BaseOffset,
    kind: Annotated[
        IndexType, typer.Argument(metavar="INDEX", help="One of: " + ", ".join(k.value for k in IndexType))
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
    address = Address.parse(topic, partition, base_offset, topic_id, segment_id)
    with opened(settings, store) as place:
        segment = resolve(place, address)
        with place.manager() as manager, manager.fetch_index(segment.metadata, kind) as stream:
            content = stream.read()
    data = content if raw else _shown(kind, content, base_offset, as_json=as_json)
    with output_to(output) as file:
        write_all(file, data)


def parse_range(text: str) -> slice:
    """The slice that ``A:B`` writes; ConfigError for anything else."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--range {text!r} is not a range: A:B is expected, as a Python slice of bytes (100:, :-1, 5:9)"
        )
    return slice(*(None if bound is None else int(bound) for bound in match.groups()))


def slice_of(wanted: slice, size: int) -> ByteRange:
    """The bytes that ``wanted`` takes of ``size``; where Python's slice is empty so is the range."""
    start, stop, _ = wanted.indices(size)
    return ByteRange(start, max(start, stop))


def read_sizes(inside: ByteRange, chunk_size: int) -> Iterator[int]:
    """How many bytes each read takes: up to a chunk's border, several whole chunks at once, but never the last of all.

    Whole chunks are decoded in parallel, and none twice; what is in memory is bounded by one chunk or 64 MiB.
    """
    step = chunk_size * max(1, min(_CHUNKS_AT_ONCE, _BUFFER_SIZE // chunk_size))
    position = inside.start
    while position < inside.stop:
        stop = min(inside.stop, position - position % chunk_size + step)
        yield stop - position
        position = stop


def _fetch_range(place: OpenedStore, segment: StoredSegment, inside: ByteRange, file: BinaryIO) -> None:
    sizes = list(read_sizes(inside, segment.manifest.chunk_index.original_chunk_size))
    if not sizes:
        return
    buffer = memoryview(bytearray(max(sizes)))
    with (
        place.manager() as manager,
        manager.fetch_log_segment(segment.metadata, inside.start, inside.stop - 1) as stream,
        progress("fetch", len(inside)) as bar,
    ):
        for size in sizes:
            stream.readinto(buffer[:size])
            write_all(file, buffer[:size])
            bar.advance(size)


def _shown(kind: IndexType, content: bytes, base_offset: int, *, as_json: bool) -> bytes:
    rows = decoded_rows(kind, content, base_offset)
    return ("".join(json_array(rows)) if as_json else table_of_rows(rows)).encode()
