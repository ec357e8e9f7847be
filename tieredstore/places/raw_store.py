"""A store that shows the files of Pinterest's layout as the plugin's objects: log, indexes and a manifest, which is
created in memory.

This module is separate from ``layouts``, which chooses between ``RawStore`` and ``EntropyStore``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.backends.contract.checks import is_empty_request, resolved_range
from tieredstore.errors import (
    BatchCorruptError,
    ManifestCorruptError,
    ObjectNotFoundError,
    StoreError,
    TieredStoreError,
)
from tieredstore.format.chunk_index import FixedChunkIndex
from tieredstore.format.keys import ObjectKey, Suffix, parse_key, partition_of
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition
from tieredstore.places.mapped import LaidOutStore, is_behind
from tieredstore.places.raw_description import RawDescription, describe_raw
from tieredstore.places.raw_keys import FILES, INDEX, LOG, TIME_INDEX, WATERMARK, RawKeys, RawSegment, raw_topic_id
from tieredstore.places.raw_metadata import METADATA, MetadataKeeper
from tieredstore.places.record import STATE, Layout, all_folders
from tieredstore.process.bounded_map import BoundedMap

_MOST_KNOWN: Final = 20_000
_MOST_LISTINGS: Final = 256

_FILE: Final = re.compile(r"([0-9]{20})-.{22}\.(index|timeindex|log)")
_WATERMARKS: Final = f"{STATE}watermarks/"


class RawStore(LaidOutStore):
    """Shows each segment's ``.index``, ``.timeindex`` and ``.log`` as ``.indexes``, ``.log`` and ``.rsm-manifest``.

    Pinterest's layout stores no topic ids, so listed keys contain an id that is derived from the topic's name.
    Requests ignore the id in a key, because a key with another id leads to the same files. The keys of the uploader's
    watermarks have no topic id.

    To write a file, use the plugin's key with the file's own ending, such as ``.timeindex``. ``.indexes`` and manifests
    cannot be written. Deleting a manifest deletes the log, and thus the segment.
    """

    def __init__(self, inner: ObjectStore, prefix: str, layout: Layout, chunk_size: int = 1 << 22) -> None:
        super().__init__(inner, prefix, layout)
        self._chunk_size = chunk_size
        self._keys = RawKeys(prefix, layout)
        self._metadata = MetadataKeeper(self, prefix)
        self._known = BoundedMap[str, RawSegment](_MOST_KNOWN)
        self._described = BoundedMap[str, RawDescription](_MOST_KNOWN)

    def __reduce__(self) -> tuple[Callable[..., RawStore], tuple[ObjectStore, str, Layout, int]]:
        return RawStore, (self.inner, self.prefix, self.layout, self._chunk_size)

    # Keys

    def inner_key(self, key: str) -> str:
        """Return the stored key of a file. Return the keys of manifests and ``.indexes`` unchanged, because these
        objects are not stored."""
        path = key[len(self.prefix) :] if key.startswith(self.prefix) else ""
        if path.startswith(_WATERMARKS):
            return f"{self.prefix}{_WATERMARKS}{_without_id(path[len(_WATERMARKS) :])}"
        where = partition_of(path)
        if where is None:
            return key
        name = path.rpartition("/")[2]
        if name in (WATERMARK, METADATA):
            return f"{self._keys.folder(where)}{name}"
        named = _FILE.fullmatch(name)
        return key if named is None else self._keys.file(where, int(named[1]), named[2])

    def outer_key(self, key: str) -> str | None:
        """Return the plugin's key for a segment's file. The keys of this project's own state stay unchanged. For any
        other file, return None."""
        file = self._keys.parse(key)
        if file is None:
            return key if key.startswith(f"{self.prefix}{STATE}") else None
        segment = RawSegment(self._keys.where(file), file.base_offset, {file.ending: ObjectInfo(key, 0)})
        return segment.objects(self.prefix, self._keys.cluster)[0].key

    def _object(self, key: str) -> ObjectKey | None:
        parsed = parse_key(self.prefix, key)
        return None if parsed is None or parsed.suffix is Suffix.LOG else parsed

    def target(self, key: str, *, writes: bool = False) -> tuple[ObjectStore, str]:
        """Return the store and key of a file. Raise StoreError for a write of a manifest or ``.indexes``, which this
        layout does not store."""
        if writes and self._object(key) is not None:
            raise StoreError(
                f"{key!r} cannot be written: the raw layout stores no manifests, and stores each index as a file"
            )
        return super().target(key, writes=writes)

    # Reading

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read a stored file. For ``.indexes``, join both stored index files; for a manifest, make one from the
        segment's files.
        """
        parsed = self._object(key)
        if parsed is None:
            return super().get(key, start, stop)
        self.look_first(key, writes=False)
        if is_empty_request(start, stop):
            return b""
        data = self._make_object(key, parsed)
        asked = resolved_range(key, len(data), start, stop)
        return data[asked.start : asked.stop]

    def get_small(self, key: str, most: int) -> bytes | None:
        """Read as ``get`` does."""
        if self._object(key) is None:
            return super().get_small(key, most)
        data = self.get(key)
        return data if len(data) <= most else None

    @property
    def small_batch(self) -> int:
        """Return 1, because reading a manifest takes several requests."""
        return 1

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Read the objects one after the other."""
        return ObjectStore.get_small_batch(self, keys, most)

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Read as ``get`` does."""
        if self._object(key) is None:
            super().get_into(key, start, buffer)
            return
        target = memoryview(buffer).cast("B")
        target[:] = self.get(key, start, start + len(target))

    def head(self, key: str) -> ObjectInfo:
        """Return a file's metadata. For a manifest or ``.indexes``, return the metadata that a listing shows."""
        parsed = self._object(key)
        if parsed is None:
            return super().head(key)
        self.look_first(key, writes=False)
        segment = self._look_up(parsed)
        suffix = f".{parsed.suffix.value}"
        for info in segment.objects(self.prefix, self._keys.cluster):
            if info.key.endswith(suffix):
                return replace(info, key=key)
        raise ObjectNotFoundError(f"{key!r}: of its files only these exist: {', '.join(segment.files) or 'none'}")

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the files of these objects. The file of a manifest is the log.

        Before deleting a log, remove the log's entry from Pinterest's ``_metadata``.
        """
        every = list(keys)
        logs = self._base_offsets(every, {Suffix.MANIFEST, Suffix.LOG})
        for folder, base_offsets in logs.items():
            self._metadata.forget(folder, base_offsets)
        self.inner.delete(file for key in every for file in self._files(key))
        # Remove the deleted segments' entries once more, because a concurrent writer may have added them before the
        # files were deleted.
        for folder, base_offsets in self._base_offsets(every, {Suffix.MANIFEST}).items():
            self._metadata.forget(folder, base_offsets, are_deleted=True)

    def _base_offsets(self, keys: Iterable[str], suffixes: Collection[Suffix]) -> dict[str, set[int]]:
        """Return the base offsets of the keys with these suffixes, by the partition's folder."""
        known: defaultdict[str, set[int]] = defaultdict(set)
        for key in keys:
            parsed = parse_key(self.prefix, key)
            if parsed is not None and parsed.suffix in suffixes:
                known[f"{key.rpartition('/')[0]}/"].add(parsed.start_offset)
        return known

    # Listing

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List one partition page by page. For several partitions, load the whole listing into memory and sort it."""
        self.look_first(prefix, writes=False)
        path = prefix[len(self.prefix) :] if prefix.startswith(self.prefix) else ""
        if path.startswith(STATE):
            return self.inner.list(prefix, start_after)
        where = partition_of(path)
        segments = self._of_partition(where, path, start_after) if where is not None else self._of_many(path)
        objects = (info for segment in segments for info in segment.objects(self.prefix, self._keys.cluster))
        wanted = (info for info in objects if info.key.startswith(prefix))
        return (info for info in wanted if start_after is None or is_behind(info.key, start_after))

    def _of_partition(self, where: TopicIdPartition, path: str, start_after: str | None) -> Iterator[RawSegment]:
        folder = self._keys.folder(where)
        # The name after the two folders begins with the offset, of which the prefix may contain only the first digits.
        name = path.split("/", 2)[2].partition("-")[0]
        after: str | None = None
        in_folder = f"{self.prefix}{path.rpartition('/')[0]}/"
        if start_after is not None and start_after.startswith(in_folder):
            offset = start_after[len(in_folder) :].partition("-")[0]
            after = f"{folder}{offset}"
        yield from self._group_files(self.inner.list(f"{folder}{name}", after), where)

    def _of_many(self, path: str) -> Iterator[RawSegment]:
        if STATE.startswith(path) and path:
            return
        topic = path.partition("/")[0]
        # ``topic`` becomes a prefix of the raw folders' names. It may also match folders of other topics; ``list``
        # filters their entries out.
        if "/" in path:
            topic = _without_id(path).partition("/")[0] + "-"
        elif not topic.endswith("-"):
            topic = topic.partition("-")[0]  # the text after the dash may be the beginning of an id
        starts = [self.prefix]
        if 1 << self.layout.bits <= _MOST_LISTINGS:
            starts = [f"{self.prefix}{folder}{self._keys.cluster}/{topic}" for folder in all_folders(self.layout.bits)]
        listed: defaultdict[tuple[str, int], list[ObjectInfo]] = defaultdict(list)
        for start in starts:
            for info in self.inner.list(start):
                file = self._keys.parse(info.key)
                if file is not None:
                    listed[file.topic, file.partition].append(info)
        wheres = [TopicIdPartition(raw_topic_id(self._keys.cluster, topic), topic, number) for topic, number in listed]
        for where in sorted(wheres, key=lambda where: f"{where.topic}-{where.topic_id}/{where.partition}/".encode()):
            yield from self._group_files(iter(listed[where.topic, where.partition]), where)

    def _group_files(self, listed: Iterator[ObjectInfo], where: TopicIdPartition) -> Iterator[RawSegment]:
        files = ((file, info) for info in listed if (file := self._keys.parse(info.key)) is not None)
        for base_offset, group in groupby(files, key=lambda pair: pair[0].base_offset):
            segment = RawSegment(where, base_offset, {file.ending: info for file, info in group})
            self._known.put(self._name(segment), segment)
            yield segment

    # Objects that are made from a segment's files

    def _make_object(self, key: str, parsed: ObjectKey) -> bytes:
        segment = self._segment(parsed)
        try:
            if parsed.suffix is Suffix.MANIFEST:
                return self._manifest(segment, parsed)
            described = self._describe(segment)
        except BatchCorruptError as error:
            raise ManifestCorruptError(f"{key}: {error}") from error
        used = [(INDEX, described.index_fits), (TIME_INDEX, described.time_index_fits)]
        return b"".join(
            self._read_file(segment, ending, 0, segment.files[ending].size) for ending, fits in used if fits
        )

    def _manifest(self, segment: RawSegment, parsed: ObjectKey) -> bytes:
        described = self._describe(segment)
        log = segment.files[LOG]
        index_size = segment.files[INDEX].size if described.index_fits else 0
        time_index_size = segment.files[TIME_INDEX].size if described.time_index_fits else 0
        end = index_size + time_index_size
        metadata = RemoteLogSegmentMetadata(
            parsed.segment_id,
            segment.base_offset,
            described.end_offset,
            log.size,
            described.max_timestamp_ms,
            0,
            -1 if log.modified_ms is None else log.modified_ms,
            described.leader_epochs,
        )
        last = log.size % self._chunk_size or min(log.size, self._chunk_size)
        return SegmentManifest(
            FixedChunkIndex(self._chunk_size, log.size, self._chunk_size, last),
            SegmentIndexes(
                IndexEntry(0, index_size), IndexEntry(index_size, time_index_size), IndexEntry(end, 0),
                IndexEntry(end, 0), None,
            ),
            compression=False,
            metadata=metadata,
        ).to_bytes()  # fmt: skip

    def _describe(self, segment: RawSegment) -> RawDescription:
        name = self._name(segment)
        described = self._described.get(name)
        if described is None:
            described = describe_raw(segment, lambda ending, start, stop: self._read_file(segment, ending, start, stop))
            self._described.put(name, described)
        return described

    def _read_file(self, segment: RawSegment, ending: str, start: int, stop: int) -> bytes:
        return self.inner.get(segment.files[ending].key, start, stop)

    def _segment(self, parsed: ObjectKey) -> RawSegment:
        """Return the whole segment. Raise ObjectNotFoundError if a file is missing."""
        where = parsed.segment_id.topic_id_partition
        path = f"{where.topic}/{where.partition}/{parsed.start_offset}"
        segment = self._known.get(f"{path}/{parsed.segment_id.id}") or self._look_up(parsed)
        if len(segment.files) < len(FILES):
            missing = ", ".join(f".{ending}" for ending in FILES if ending not in segment.files)
            raise ObjectNotFoundError(f"{parsed.main_path}: there is no {missing}")
        return segment

    def _look_up(self, parsed: ObjectKey) -> RawSegment:
        where = parsed.segment_id.topic_id_partition
        files: dict[str, ObjectInfo] = {}
        for ending in FILES:
            try:
                files[ending] = self.inner.head(self._keys.file(where, parsed.start_offset, ending))
            except ObjectNotFoundError:
                continue
        segment = RawSegment(where, parsed.start_offset, files)
        if LOG in files and segment.id(self._keys.cluster) != parsed.segment_id.id:
            raise ObjectNotFoundError(f"{parsed.main_path}: another log has been written in its place")
        return segment

    def _name(self, segment: RawSegment) -> str:
        where = segment.where
        return f"{where.topic}/{where.partition}/{segment.base_offset}/{segment.id(self._keys.cluster)}"

    def _files(self, key: str) -> Iterator[str]:
        parsed = parse_key(self.prefix, key)
        if parsed is None:
            yield self.inner_key(key)
            return
        endings = (INDEX, TIME_INDEX) if parsed.suffix is Suffix.INDEXES else (LOG,)
        for ending in endings:
            yield self._keys.file(parsed.segment_id.topic_id_partition, parsed.start_offset, ending)


def _without_id(path: str) -> str:
    """Remove the topic id from the first folder of a path."""
    folder, slash, rest = path.partition("/")
    where = partition_of(f"{folder}/0/")
    return f"{where.topic}{slash}{rest}" if where is not None else path
