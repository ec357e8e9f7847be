"""``tieredstore inspect``: all that is known of one segment, and whether its objects fit together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from tieredstore.catalog import StoredSegment
from tieredstore.cli.address import Address, resolve
from tieredstore.cli.arguments import BaseOffset, Json, Partition, SegmentId, SettingsPath, StoreUrl, Topic, TopicId
from tieredstore.cli.listing import leader_epoch_rows, partition_row
from tieredstore.cli.opened import opened
from tieredstore.cli.output import (
    JsonValue,
    complain,
    human_ratio,
    iso_utc,
    print_json,
    print_lines,
    print_table,
    ratio_of,
)
from tieredstore.errors import CorruptData
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex
from tieredstore.format.keys import Suffix
from tieredstore.model import RemoteLogSegmentMetadata, human_bytes
from tieredstore.remote.layout import KeyLayout


def inspect(
    topic: Topic,
    partition: Partition,
    base_offset: BaseOffset,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_id: TopicId = None,
    segment_id: SegmentId = None,
    chunks: Annotated[bool, typer.Option("--chunks", help="Every chunk: where it lies, before and after.")] = False,
    as_json: Json = False,
) -> None:
    """Show a segment: manifest, chunk map, key id, indexes, objects, metadata.

    Needs no key. An object that is missing, or whose size is not what the manifest says, is shown as damage, and the
    exit code is 4.

    Example: tieredstore inspect -c store.properties orders 0 0 --chunks
    """
    address = Address.parse(topic, partition, base_offset, topic_id, segment_id)
    with opened(settings, store) as place:
        view = SegmentView(resolve(place, address), place.layout)
    if as_json:
        print_json(view.as_json(chunks=chunks))
    else:
        view.print(chunks=chunks)
    for sentence in view.damage:
        complain(sentence)
    if view.damage:
        raise typer.Exit(CorruptData.exit_code)


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment, for a person and for scripts."""

    segment: StoredSegment
    layout: KeyLayout

    @property
    def chunk_index(self) -> ChunkIndex:
        """The manifest's chunk map."""
        return self.segment.manifest.chunk_index

    @property
    def damage(self) -> list[str]:
        """What does not fit together, one sentence each."""
        return [sentence for suffix in Suffix if (sentence := self._damage_of(suffix))]

    def as_json(self, *, chunks: bool) -> JsonValue:
        """All of it, snake_case; what is not known is null."""
        objects = self.segment.objects
        found: dict[str, JsonValue] = {
            **partition_row(objects.segment_id.topic_id_partition),
            "base_offset": objects.start_offset,
            "segment_id": str(objects.segment_id.id),
            "size": self.chunk_index.original_file_size,
            "stored_size": objects.stored_size,
            "ratio": ratio_of(self.chunk_index.original_file_size, objects.stored_size),
            "manifest": self._manifest(),
            "metadata": _metadata(self.segment.manifest.metadata),
            "objects": [self._object(suffix) for suffix in Suffix],
            "damage": list(self.damage),
        }
        return {**found, "chunks": list(self._chunks())} if chunks else found

    def print(self, *, chunks: bool) -> None:
        """All of it, as tables."""
        print_table(("SEGMENT", ""), self._lines())
        self._print_rows(("OBJECT", ">BYTES", ">EXPECTED"), self._object_rows())
        self._print_rows(("INDEX", ">POSITION", ">STORED BYTES"), self._indexes())
        if chunks:
            self._print_rows((">CHUNK", ">POSITION", ">BYTES", ">STORED AT", ">STORED BYTES"), self._chunks())

    @staticmethod
    def _print_rows(columns: Sequence[str], rows: Iterable[Mapping[str, JsonValue]]) -> None:
        print_lines([""])
        print_table(columns, (["-" if cell is None else str(cell) for cell in row.values()] for row in rows))

    def _object_rows(self) -> Iterator[Mapping[str, JsonValue]]:
        for row in map(self._object, Suffix):
            key = row["key"] or f"(no .{row['suffix']})"
            yield {"key": key, "size": row["size"], "expected_size": row["expected_size"]}

    def _lines(self) -> Iterator[tuple[str, str]]:
        objects, wrapped = self.segment.objects, self.segment.manifest.encryption
        where, size = objects.segment_id.topic_id_partition, self.chunk_index.original_file_size
        yield "topic", f"{where.topic} ({where.topic_id}), partition {where.partition}"
        yield "segment id", str(objects.segment_id.id)
        yield from self._metadata_lines()
        yield "size", f"{size} bytes ({human_bytes(size)})"
        yield "stored", f"{human_bytes(objects.stored_size)}, ratio {human_ratio(size, objects.stored_size)}"
        yield "compression", "zstd" if self.segment.manifest.compression else "none"
        yield "encryption", "none" if wrapped is None else f"AES-256-GCM, data key wrapped by {wrapped.key_id}"
        yield "chunks", self._chunk_line()

    def _metadata_lines(self) -> Iterator[tuple[str, str]]:
        metadata = self.segment.manifest.metadata
        if metadata is None:
            yield "offsets", f"{self.segment.objects.start_offset} to ? (the manifest holds no segment metadata)"
            return
        epochs = ", ".join(f"{epoch} from {start}" for epoch, start in metadata.segment_leader_epochs)
        yield "offsets", f"{self.segment.objects.start_offset} to {metadata.end_offset}"
        yield "leader epochs", epochs or "unknown"
        yield "last timestamp", _time(metadata.max_timestamp_ms)
        yield "copied", f"{_time(metadata.event_timestamp_ms)} by broker {metadata.broker_id}"
        yield "aborted transactions", {None: "unknown", True: "none", False: "some"}[metadata.txn_idx_empty]

    def _chunk_line(self) -> str:
        found = self._chunk_map()
        count = f"{found['count']} of {found['original_chunk_size']} bytes ({found['type']})"
        if found["min"] == found["max"]:
            return count if found["max"] is None else f"{count}, stored as {found['max']} bytes"
        return f"{count}, stored as {found['min']} to {found['max']} bytes, {found['avg']} on average"

    def _manifest(self) -> JsonValue:
        manifest = self.segment.manifest
        wrapped = manifest.encryption
        key: JsonValue = (
            None if wrapped is None else {"key_id": wrapped.key_id, "wrapped_key_bytes": len(wrapped.wrapped)}
        )
        return {
            "compression": manifest.compression,
            "encryption": key,
            "chunk_index": self._chunk_map(),
            "indexes": list(self._indexes()),
        }

    def _chunk_map(self) -> dict[str, JsonValue]:
        index = self.chunk_index
        smallest, largest = _stored_extremes(index)
        return {
            "type": "fixed" if isinstance(index, FixedChunkIndex) else "variable",
            "original_chunk_size": index.original_chunk_size,
            "original_file_size": index.original_file_size,
            "stored_size": index.stored_size,
            "count": index.chunk_count,
            "min": smallest,
            "avg": index.stored_size // index.chunk_count if index.chunk_count else None,
            "max": largest,
        }

    def _chunks(self) -> Iterator[dict[str, JsonValue]]:
        for chunk, (before, after) in enumerate(itertools.pairwise(self.chunk_index.positions())):
            place = self.chunk_index.original_range(chunk)
            yield {
                "chunk": chunk,
                "position": place.start,
                "size": len(place),
                "stored_position": before,
                "stored_size": after - before,
            }

    def _indexes(self) -> Iterator[dict[str, JsonValue]]:
        for kind, entry in self.segment.manifest.segment_indexes.recorded():
            yield {"type": kind.value, "position": entry.position, "stored_size": entry.size}

    def _object(self, suffix: Suffix) -> dict[str, JsonValue]:
        info = self.segment.objects.find(suffix)
        return {
            "suffix": suffix.value,
            "key": None if info is None else self.layout.shown(info.key),
            "size": None if info is None else info.size,
            "expected_size": self._expected_size(suffix),
            "modified_ms": None if info is None else info.modified_ms,
        }

    def _expected_size(self, suffix: Suffix) -> int | None:
        manifest = self.segment.manifest
        sizes = {Suffix.LOG: manifest.chunk_index.stored_size, Suffix.INDEXES: manifest.segment_indexes.total_size}
        return sizes.get(suffix)

    def _damage_of(self, suffix: Suffix) -> str | None:
        info, expected = self.segment.objects.find(suffix), self._expected_size(suffix)
        if info is None:
            return f"damage: the .{suffix.value} object is missing under a valid manifest"
        if expected is None or info.size == expected:
            return None
        return f"damage: {self.layout.shown(info.key)} has {info.size} bytes where its manifest says {expected}"


def _stored_extremes(index: ChunkIndex) -> tuple[int | None, int | None]:
    """The sizes of the smallest and the largest stored chunk."""
    if not index.chunk_count:
        return None, None
    if isinstance(index, FixedChunkIndex):
        last = index.final_transformed_chunk_size
        return last, max(last, index.transformed_chunk_size) if index.chunk_count > 1 else last
    sizes = [after - before for before, after in itertools.pairwise(index.positions())]
    return min(sizes), max(sizes)


def _metadata(recorded: RemoteLogSegmentMetadata | None) -> JsonValue:
    if recorded is None:
        return None
    return {
        "start_offset": recorded.start_offset,
        "end_offset": recorded.end_offset,
        "segment_size_in_bytes": recorded.segment_size_in_bytes,
        "broker_id": recorded.broker_id,
        "max_timestamp_ms": recorded.max_timestamp_ms,
        "max_timestamp": iso_utc(recorded.max_timestamp_ms),
        "event_timestamp_ms": recorded.event_timestamp_ms,
        "event_timestamp": iso_utc(recorded.event_timestamp_ms),
        "leader_epochs": leader_epoch_rows(recorded.segment_leader_epochs),
        "txn_idx_empty": recorded.txn_idx_empty,
    }


def _time(timestamp_ms: int) -> str:
    found = iso_utc(timestamp_ms)
    return "unknown" if found is None else f"{found} ({timestamp_ms} ms)"
