"""``tieredstore ls``: which segments a store holds."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import typer

from tieredstore.catalog import SegmentObjects, StoredSegment, list_segments, load_segments
from tieredstore.cli.arguments import Json, SettingsPath, StoreUrl, TopicId
from tieredstore.cli.opened import OpenedStore, opened
from tieredstore.cli.output import (
    JsonValue,
    complain,
    human_ratio,
    iso_utc,
    json_array,
    print_table,
    ratio_of,
)
from tieredstore.errors import ManifestCorrupt, SegmentNotFound
from tieredstore.format.keys import Suffix
from tieredstore.model import TopicIdPartition, Uuid, human_bytes

_READERS: Final = 16  # manifests are small: a listing waits for round trips, not for bytes

Loaded: TypeAlias = StoredSegment | ManifestCorrupt | None
"""A segment, the damage of its manifest, or None where there is no manifest."""


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """One segment of a listing, with what its manifest says, if it has one."""

    objects: SegmentObjects
    loaded: Loaded

    @property
    def where(self) -> TopicIdPartition:
        """The partition it is of."""
        return self.objects.segment_id.topic_id_partition

    @property
    def whole(self) -> StoredSegment | None:
        """The segment if nothing of it is missing or damaged."""
        return self.loaded if isinstance(self.loaded, StoredSegment) and not self.objects.missing else None

    @property
    def max_timestamp_ms(self) -> int | None:
        """The greatest timestamp of its batches, where it is known."""
        known = isinstance(self.loaded, StoredSegment) and self.loaded.metadata.max_timestamp_ms >= 0
        return self.loaded.metadata.max_timestamp_ms if known and isinstance(self.loaded, StoredSegment) else None

    @property
    def fault(self) -> str:
        """What keeps it from being read, for a person."""
        if isinstance(self.loaded, ManifestCorrupt):
            return str(self.loaded)
        return "no " + ", no ".join(f".{suffix.value}" for suffix in self.objects.missing)


def ls(
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this topic.")] = None,
    partition: Annotated[
        int | None, typer.Argument(metavar="PARTITION", min=0, help="Only this partition, segment by segment.")
    ] = None,
    topic_id: TopicId = None,
    as_json: Json = False,
) -> None:
    """List topics, partitions and segments: offsets, sizes, ratio, time span.

    Reads the manifest of every segment listed, and needs no key. With PARTITION each segment has a line. Segments that
    lack an object (of an unfinished copy or delete, or lost) are named on stderr; in JSON they have "complete": false.

    Example: tieredstore ls -c store.properties orders 0
    """
    wanted_id = None if topic_id is None else Uuid.parse(topic_id)
    with opened(settings, store) as place:
        found = list_segments(place.store, place.layout.prefix, topic=topic, topic_id=wanted_id, partition=partition)
        damage: list[ManifestCorrupt] = []
        listed = _noting(damage, load_listing(place, found))
        if as_json:
            sys.stdout.writelines(json_array(segment_row(segment) for segment in listed))
        elif partition is None:
            _print_partitions(listed)
        else:
            _print_segments(listed)
    if damage:
        raise typer.Exit(ManifestCorrupt.exit_code)


def load_listing(place: OpenedStore, found: Iterable[SegmentObjects]) -> Iterator[ListedSegment]:
    """The segments in the order of (topic, topic id, partition, base offset, segment id), their manifests read.

    The listing is held, manifests are not. A segment that is deleted meanwhile is left out.
    """
    ordered = sorted(found, key=_order)
    with_manifest = [segment for segment in ordered if segment.find(Suffix.MANIFEST) is not None]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="tieredstore-ls") as pool:
        loaded = load_segments(place.store, with_manifest, pool)
        for segment in ordered:
            manifest = next(loaded) if segment.find(Suffix.MANIFEST) is not None else None
            if not isinstance(manifest, SegmentNotFound):
                yield ListedSegment(segment, manifest)


def segment_row(segment: ListedSegment) -> dict[str, JsonValue]:
    """One segment for scripts; what is not known is null."""
    objects, loaded = segment.objects, segment.loaded
    row: dict[str, JsonValue] = {
        **partition_row(segment.where),
        "base_offset": objects.start_offset,
        "end_offset": None,
        "segment_id": str(objects.segment_id.id),
        "size": None,
        "stored_size": objects.stored_size,
        "ratio": None,
        "compressed": None,
        "encrypted": None,
        "key_id": None,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "max_timestamp": iso_utc(segment.max_timestamp_ms),
        "leader_epochs": None,
        "complete": segment.whole is not None,
        "missing": [suffix.value for suffix in objects.missing],
        "damage": str(loaded) if isinstance(loaded, ManifestCorrupt) else None,
    }
    return {**row, **_manifest_row(loaded)} if isinstance(loaded, StoredSegment) else row


def partition_row(where: TopicIdPartition) -> dict[str, JsonValue]:
    """Which partition, for scripts."""
    return {"topic": where.topic, "topic_id": str(where.topic_id), "partition": where.partition}


def leader_epoch_rows(epochs: Iterable[tuple[int, int]]) -> list[JsonValue]:
    """Leader epochs for scripts."""
    return [{"epoch": epoch, "start_offset": start} for epoch, start in epochs]


def _manifest_row(loaded: StoredSegment) -> dict[str, JsonValue]:
    manifest, metadata = loaded.manifest, loaded.metadata
    return {
        "end_offset": None if metadata.end_offset < 0 else metadata.end_offset,
        "size": metadata.segment_size_in_bytes,
        "ratio": ratio_of(metadata.segment_size_in_bytes, loaded.objects.stored_size),
        "compressed": manifest.compression,
        "encrypted": manifest.encryption is not None,
        "key_id": None if manifest.encryption is None else manifest.encryption.key_id,
        "leader_epochs": None if manifest.metadata is None else leader_epoch_rows(metadata.segment_leader_epochs),
    }


def _order(objects: SegmentObjects) -> tuple[str, str, int, int, str]:
    where = objects.segment_id.topic_id_partition
    return where.topic, str(where.topic_id), where.partition, objects.start_offset, str(objects.segment_id.id)


def _noting(damage: list[ManifestCorrupt], listed: Iterable[ListedSegment]) -> Iterator[ListedSegment]:
    """``listed``, with the damaged manifests gathered on the way."""
    for segment in listed:
        if isinstance(segment.loaded, ManifestCorrupt):
            damage.append(segment.loaded)
        yield segment


def _print_partitions(listed: Iterable[ListedSegment]) -> None:
    rows: list[list[str]] = []
    total = _Totals()
    for where, group in itertools.groupby(listed, key=lambda segment: segment.where):
        totals = _Totals()
        for segment in group:
            if segment.whole is None:
                _report(segment)
            else:
                totals.add(segment, segment.whole)
                total.add(segment, segment.whole)
        rows.append([where.topic, str(where.topic_id), str(where.partition), *totals.cells()])
    if not rows:
        complain("no segments found")
        return
    rows.append(["total", "", "", *total.cells(offsets=False)])
    columns = ("TOPIC", "TOPIC ID", ">PARTITION", ">SEGMENTS", "OFFSETS", ">SIZE", ">STORED", ">RATIO", "LAST RECORDS")
    print_table(columns, rows, total=True)


def _print_segments(listed: Iterable[ListedSegment]) -> None:
    rows: list[list[str]] = []
    total = _Totals()
    for segment in listed:
        if segment.whole is None:
            _report(segment)
            continue
        total.add(segment, segment.whole)
        rows.append(_segment_cells(segment, segment.whole))
    if not rows:
        complain("no segments found")
        return
    _, _, size, stored, ratio, _ = total.cells(offsets=False)
    rows.append(["total", "", size, stored, ratio, "", "", "", ""])
    columns = (">OFFSET", ">END", ">SIZE", ">STORED", ">RATIO", "FORM", "LAST RECORD", "TOPIC ID", "SEGMENT ID")
    print_table(columns, rows, total=True)


def _segment_cells(segment: ListedSegment, whole: StoredSegment) -> list[str]:
    metadata, stored = whole.metadata, segment.objects.stored_size
    return [
        str(metadata.start_offset),
        "?" if metadata.end_offset < 0 else str(metadata.end_offset),
        human_bytes(metadata.segment_size_in_bytes),
        human_bytes(stored),
        human_ratio(metadata.segment_size_in_bytes, stored),
        _form(whole),
        iso_utc(segment.max_timestamp_ms) or "?",
        str(segment.where.topic_id),
        str(segment.objects.segment_id.id),
    ]


def _form(whole: StoredSegment) -> str:
    """How the segment is stored: ``zstd key1``, ``plain``."""
    wrapped = whole.manifest.encryption
    forms = ["zstd"] if whole.manifest.compression else []
    return " ".join([*forms, *([] if wrapped is None else [wrapped.key_id])]) or "plain"


def _report(segment: ListedSegment) -> None:
    where, objects = segment.where, segment.objects
    complain(
        f"segment {objects.segment_id.id} of {where} at offset {objects.start_offset} cannot be read: {segment.fault}"
    )


class _Totals:
    """Sums over segments."""

    def __init__(self) -> None:
        self._segments = self._size = self._stored = 0
        self._offsets: list[int] = []
        self._timestamps: list[int] = []

    def add(self, segment: ListedSegment, whole: StoredSegment) -> None:
        self._segments += 1
        self._size += whole.metadata.segment_size_in_bytes
        self._stored += segment.objects.stored_size
        self._offsets += [whole.metadata.start_offset, max(whole.metadata.start_offset, whole.metadata.end_offset)]
        if segment.max_timestamp_ms is not None:
            self._timestamps.append(segment.max_timestamp_ms)

    def cells(self, *, offsets: bool = True) -> list[str]:
        """Segments, offsets, original and stored size, ratio, and the time span of the segments' last records."""
        span = [iso_utc(bound(self._timestamps)) or "?" for bound in (min, max)] if self._timestamps else ["?"]
        return [
            str(self._segments),
            f"{min(self._offsets)} … {max(self._offsets)}" if offsets and self._offsets else "",
            human_bytes(self._size),
            human_bytes(self._stored),
            human_ratio(self._size, self._stored),
            " … ".join(dict.fromkeys(span)),
        ]
