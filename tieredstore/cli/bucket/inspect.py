"""``tieredstore inspect``: everything known about one segment, and a check that its objects are consistent."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import typer

from tieredstore.api.rows import index_type
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.stored import StoredSegment
from tieredstore.cli.app.options import Address, Output, Store
from tieredstore.cli.bucket.decoded_indexes import IndexName, decode_rows, row_of
from tieredstore.cli.terminal.output import (
    JsonValue,
    complain,
    human_ratio,
    human_time,
    iso_utc,
    leader_epoch_rows,
    print_json_line,
    print_lines,
    print_table,
    ratio_of,
)
from tieredstore.cli.terminal.rows import Row, T, attributes, column, field, time_fields
from tieredstore.cli.terminal.tables import number, text, word
from tieredstore.errors import ConfigError, CorruptDataError, excerpt
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex
from tieredstore.format.manifest import IndexEntry
from tieredstore.model import ByteRange, IndexType, RemoteLogSegmentMetadata, human_bytes
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.inspection import InspectedObject, StoredChunkSizes, inspect_objects

_EPOCHS_SHOWN: Final = 100


def inspect(
    address: Address,
    store: Store,
    index: IndexName = None,
    chunks: Annotated[
        bool, typer.Option("--chunks", help="Show the position of each chunk in the log and in the object.")
    ] = False,
    *,
    output: Output,
) -> None:
    """Show a segment: manifest, chunk map, key id, indexes, objects, metadata; --index shows an index's entries.

    An object that is missing, or differs in size from the manifest, is shown as damage, with exit code 4. The exit code
    is 3 if the segment was stored without the requested index. Only --index needs a key.

    Example: tieredstore inspect -c store.properties orders 0 0 --index timestamp
    """
    if index is not None and chunks:
        raise ConfigError("--index and --chunks exclude each other")
    kind = None if index is None else index_type("--index", index)
    with store.open() as bucket:
        segment = bucket.inspect(address.topic, address.partition, address.segment, topic_id=address.life)
        if kind is not None:
            with segment.index(kind.value) as stream:
                rows = decode_rows(kind, stream.read(), segment.base_offset)
            entries = row_of(rows)
            summary = {"entries": len(rows)}
            entries.show(rows, as_json=output.as_json, summary=summary, empty="no entries", wide=output.wide)
            return
        assert segment.stored is not None  # ``inspect`` always sets ``stored``
        view = SegmentView(segment.stored, bucket.opened())
    if output.as_json:
        print_json_line(view.as_json(chunks=chunks))
        print_json_line({"summary": {"damaged": len(view.damage)}})
    else:
        view.print(chunks=chunks, wide=output.wide)
    for sentence in view.damage:
        complain(sentence)
    if view.damage:
        raise typer.Exit(CorruptDataError.exit_code)


@dataclass(frozen=True, slots=True)
class SegmentView:
    """The output about one segment, for people and for scripts."""

    segment: StoredSegment
    bucket: Bucket

    @property
    def chunk_index(self) -> ChunkIndex:
        """The manifest's chunk map."""
        return self.segment.manifest.chunk_index

    @property
    def damage(self) -> list[str]:
        """Return each inconsistency as a sentence."""
        return [self._damage(obj) for obj in self._objects if obj.is_damaged]

    @property
    def _objects(self) -> tuple[InspectedObject, ...]:
        return inspect_objects(self.segment)

    def as_json(self, *, chunks: bool) -> JsonValue:
        """Return all facts about the segment, with snake_case names. Unknown values are null."""
        objects, metadata = self.segment.objects, self.segment.manifest.metadata
        row: dict[str, JsonValue] = {
            **_SEGMENT.json(objects),
            "size": self.chunk_index.original_file_size,
            "stored_size": objects.stored_size,
            "ratio": ratio_of(self.chunk_index.original_file_size, objects.stored_size),
            "manifest": self._manifest(),
            "metadata": None if metadata is None else _METADATA.json(metadata),
            "objects": [self._object.json(obj) for obj in self._objects],
            "damage": list(self.damage),
        }
        return {**row, "chunks": list(map(_CHUNK.json, self._chunks()))} if chunks else row

    def print(self, *, chunks: bool, wide: bool) -> None:
        """Print all facts about the segment as tables."""
        print_table((word("SEGMENT"), text("")), self._lines(), wide=wide)
        _print_rows(self._object, self._objects, wide=wide)
        _print_rows(_INDEX, self.segment.manifest.segment_indexes.entries(), wide=wide)
        if chunks:
            _print_rows(_CHUNK, self._chunks(), wide=wide)

    @property
    def _object(self) -> Row[InspectedObject]:
        return Row(
            column(word("OBJECT"), lambda obj: f".{obj.suffix.value}" if obj.info else f"(no .{obj.suffix.value})"),
            field("suffix", lambda obj: obj.suffix),
            field("object", lambda obj: None if obj.info is None else self.bucket.show_key(obj.info.key)),
            field("size", lambda obj: None if obj.info is None else obj.info.size, number("BYTES")),
            field("expected_size", lambda obj: obj.expected_size, number("EXPECTED")),
            field("modified_ms", lambda obj: None if obj.info is None else obj.info.modified_ms),
        )

    def _lines(self) -> Iterator[tuple[str, str]]:
        objects, wrapped = self.segment.objects, self.segment.manifest.encryption
        partition, size = objects.segment_id.topic_id_partition, self.chunk_index.original_file_size
        folder, _, name = self.bucket.show_key(objects.objects[0][1].key).rpartition("/")
        yield "topic", partition.topic
        yield "topic id", str(partition.topic_id)
        yield "partition", str(partition.partition)
        yield "segment id", str(objects.segment_id.id)
        yield "folder", f"{folder}/"
        yield "objects", f"{name.rpartition('.')[0]}.*"
        yield from self._metadata_lines()
        yield "size", _size(size)
        yield "stored", f"{_size(objects.stored_size)}, ratio {human_ratio(size, objects.stored_size)}"
        yield "compression", "zstd" if self.segment.manifest.compression else "none"
        yield "encryption", "none" if wrapped is None else f"AES-256-GCM, data key wrapped by {excerpt(wrapped.key_id)}"
        yield from self._chunk_lines()

    def _metadata_lines(self) -> Iterator[tuple[str, str]]:
        metadata = self.segment.manifest.metadata
        if metadata is None:
            yield "offsets", f"{self.segment.objects.start_offset} to ? (the manifest holds no segment metadata)"
            return
        recorded = metadata.segment_leader_epochs
        epochs = ", ".join(f"{epoch} from {start}" for epoch, start in recorded[:_EPOCHS_SHOWN])
        if len(recorded) > _EPOCHS_SHOWN:
            epochs += f", and {len(recorded) - _EPOCHS_SHOWN} more"
        yield "offsets", f"{self.segment.objects.start_offset} to {metadata.end_offset}"
        yield "leader epochs", epochs or "unknown"
        yield "last timestamp", _time(metadata.max_timestamp_ms)
        # The broker id is -1 if no broker copied the segment, or if the log directory did not name the broker.
        broker = "not by a broker" if metadata.broker_id < 0 else f"by broker {metadata.broker_id}"
        yield "copied", f"{_time(metadata.event_timestamp_ms)}, {broker}"
        yield "aborted transactions", {None: "unknown", True: "none", False: "some"}[metadata.txn_idx_empty]

    def _chunk_lines(self) -> Iterator[tuple[str, str]]:
        chunk_map = self._chunk_map()
        yield "chunks", f"{chunk_map['count']} of {chunk_map['original_chunk_size']} bytes ({chunk_map['type']})"
        sizes = StoredChunkSizes.of(self.chunk_index)
        if sizes is None:
            return
        if sizes.smallest == sizes.largest:
            yield "chunks stored", f"{sizes.largest} bytes"
        else:
            yield "chunks stored", f"{sizes.smallest} to {sizes.largest} bytes, {sizes.average} on average"

    def _manifest(self) -> JsonValue:
        manifest = self.segment.manifest
        wrapped = manifest.encryption
        key: JsonValue = (
            None if wrapped is None else {"key_id": wrapped.key_id, "wrapped_key_bytes": len(wrapped.wrapped)}
        )
        return {
            "compressed": manifest.compression,
            "encryption": key,
            "chunk_index": self._chunk_map(),
            "indexes": [_INDEX.json(index) for index in manifest.segment_indexes.entries()],
        }

    def _chunk_map(self) -> dict[str, JsonValue]:
        index = self.chunk_index
        sizes = StoredChunkSizes.of(index)
        return {
            "type": "fixed" if isinstance(index, FixedChunkIndex) else "variable",
            "original_chunk_size": index.original_chunk_size,
            "original_file_size": index.original_file_size,
            "stored_size": index.stored_size,
            "count": index.chunk_count,
            "min": None if sizes is None else sizes.smallest,
            "avg": None if sizes is None else sizes.average,
            "max": None if sizes is None else sizes.largest,
        }

    def _chunks(self) -> Iterator[_Chunk]:
        for chunk, (before, after) in enumerate(itertools.pairwise(self.chunk_index.positions())):
            yield chunk, self.chunk_index.original_range(chunk), ByteRange(before, after)

    def _damage(self, obj: InspectedObject) -> str:
        if obj.info is None:
            return f"damage: the .{obj.suffix.value} object is missing under a valid manifest"
        name, size = self.bucket.show_key(obj.info.key), obj.info.size
        return f"damage: {name} has {size} bytes where its manifest says {obj.expected_size}"


def _print_rows(row: Row[T], items: Iterable[T], *, wide: bool) -> None:
    print_lines([""])
    row.show(items, as_json=False, wide=wide)


_Chunk: TypeAlias = tuple[int, ByteRange, ByteRange]
"""A chunk's number, its range in the log, and its range in the stored object."""

_SEGMENT: Final[Row[SegmentObjects]] = Row(
    attributes("topic", "topic_id", "partition").of(lambda objects: objects.segment_id.topic_id_partition),
    field("base_offset", lambda objects: objects.start_offset),
    field("segment_id", lambda objects: objects.segment_id.id),
)
_INDEX: Final[Row[tuple[IndexType, IndexEntry]]] = Row(
    field("type", lambda index: index[0], word("INDEX")),
    field("position", lambda index: index[1].position, number("POSITION")),
    field("stored_size", lambda index: index[1].size, number("STORED BYTES")),
)
_CHUNK: Final[Row[_Chunk]] = Row(
    field("chunk", lambda chunk: chunk[0], number("CHUNK")),
    field("position", lambda chunk: chunk[1].start, number("POSITION")),
    field("size", lambda chunk: len(chunk[1]), number("BYTES")),
    field("stored_position", lambda chunk: chunk[2].start, number("STORED AT")),
    field("stored_size", lambda chunk: len(chunk[2]), number("STORED BYTES")),
)
_METADATA: Final[Row[RemoteLogSegmentMetadata]] = Row(
    attributes("start_offset"),
    field("last_offset", lambda recorded: recorded.end_offset),
    attributes("segment_size_in_bytes", "broker_id"),
    time_fields("max_timestamp", lambda recorded: recorded.max_timestamp_ms),
    time_fields("event_timestamp", lambda recorded: recorded.event_timestamp_ms),
    field("leader_epochs", lambda recorded: leader_epoch_rows(recorded.segment_leader_epochs)),
    attributes("txn_idx_empty"),
)


def _time(timestamp_ms: int) -> str:
    return "unknown" if iso_utc(timestamp_ms) is None else f"{human_time(timestamp_ms)} ({timestamp_ms} ms)"


def _size(count: int) -> str:
    return f"{count} bytes ({human_bytes(count)})" if count >= 1024 else f"{count} bytes"
