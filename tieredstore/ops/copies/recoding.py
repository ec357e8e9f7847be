"""Decides how segments change when they are copied to a bucket with other settings.

A property changes only if the two buckets' settings differ in it. If the settings agree, the property stays unchanged
even in segments that were written with other settings. A ``Recoding`` decides about each segment, and a ``Transcoder``
writes the segments that change.

Only ``copying`` imports this module. ``copying`` itself copies the unchanged segments. Together the two modules would
be too long for one file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.stored import StoredSegment, load_segment
from tieredstore.config import Settings
from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    SegmentAlreadyExistsError,
    SegmentNotFoundError,
    UnknownKeyError,
    WrongKeyError,
    excerpt,
)
from tieredstore.format.keys import Suffix
from tieredstore.kafka.batches import CompressionType, read_first_compression
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.ops.inspection import inspect_objects
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote.copy.content import InOrder, SegmentContent
from tieredstore.remote.copy.writer import SegmentWriter, WriteOptions, count_threads
from tieredstore.remote.key_ring import key_ring_of
from tieredstore.remote.layout import KeyLayout

if TYPE_CHECKING:
    from tieredstore.format.manifest import SegmentManifest, WrappedDataKey
    from tieredstore.ops.bucket import Bucket
    from tieredstore.remote import RemoteStorageManager
    from tieredstore.transform.keyring import KeyRing

_LEVEL: Final = 3
"""The zstd level of Aiven's plugin. This level applies to segments that are recompressed only because another property
changes."""


class CopyWay(enum.StrEnum):
    """How a segment is copied."""

    VERBATIM = "verbatim"
    """The copy has the same bytes under the same keys."""

    REWRAPPED = "rewrapped"
    """Another key pair wraps the copy's data key. All other bytes and the keys are the same."""

    TRANSCODED = "transcoded"
    """The copy is decoded and written again, under a new segment id."""


@dataclass(frozen=True, slots=True)
class Recoding:
    """The differences between two buckets' settings. These differences decide what changes in copied segments.

    ``options`` are the target's options. A property that does not change comes from the segment's manifest.
    ``source_ring`` opens encrypted segments. If no key is needed, ``source_ring`` and the key ring of ``options`` are
    None.
    """

    options: WriteOptions
    source_ring: KeyRing | None = None
    changes_chunks: bool = False
    changes_compression: bool = False
    changes_level: bool = False
    changes_encryption: bool = False
    changes_data_keys: bool = False

    @classmethod
    def between(
        cls, source: Settings, target: Settings, *, decrypt: bool = False, new_data_keys: bool = False
    ) -> Recoding:
        """Compare the settings of source and target. Read key files only if the settings differ.

        Raise ConfigError if the copies would be decrypted, unless ``decrypt`` allows that. Also raise ConfigError if
        ``new_data_keys`` are wanted, but the target's settings do not encrypt.
        """
        if new_data_keys and target.encryption is None:
            raise ConfigError("new data keys need encryption: set encryption.enabled and keys for the target")
        if source.encryption is not None and target.encryption is None and not decrypt:
            raise ConfigError(
                "the source's settings have a key ring but the target's do not, so copies would be decrypted; set "
                "encryption.enabled and keys for the target, or pass --decrypt if that is what you want"
            )
        changes_chunks = source.chunk_size != target.chunk_size
        changes_compression = _compression(source) != _compression(target)
        changes_encryption = source.encryption != target.encryption
        needs_keys = changes_chunks or changes_compression or changes_encryption or new_data_keys
        return cls(
            WriteOptions.of_settings(target, key_ring_of(target) if needs_keys else None),
            key_ring_of(source) if needs_keys else None,
            changes_chunks,
            changes_compression,
            changes_compression
            and source.compression_enabled
            and target.compression_enabled
            and source.compression_level != target.compression_level,
            changes_encryption,
            new_data_keys,
        )

    def way_of(self, manifest: SegmentManifest, is_uncompressed: Callable[[], bool]) -> CopyWay:
        """Return how to copy a segment. ``is_uncompressed`` reads the segment's first batch; call it only if
        necessary."""
        if (
            (self.changes_chunks and manifest.chunk_index.original_chunk_size != self.options.chunk_size)
            or (self.changes_compression and self._compresses_otherwise(manifest, is_uncompressed))
            or (self.changes_encryption and (manifest.encryption is None) != (self.options.key_ring is None))
            or (self.changes_data_keys and manifest.encryption is not None)
        ):
            return CopyWay.TRANSCODED
        if self.changes_encryption and manifest.encryption is not None and not self.opens(manifest.encryption):
            return CopyWay.REWRAPPED
        return CopyWay.VERBATIM

    def opens(self, wrapped: WrappedDataKey) -> bool:
        """Return True if the target's key ring opens the data key."""
        ring = self.options.key_ring
        if ring is None:
            return False
        try:
            ring.unwrap(wrapped.key_id, wrapped.wrapped)
        except (UnknownKeyError, WrongKeyError):
            return False
        return True

    def rewrap(self, wrapped: WrappedDataKey) -> tuple[str, bytes]:
        """Wrap the data key by the target's active pair. Return the pair's id and the wrapped key.

        Raise UnknownKeyError or WrongKeyError if the source's ring does not open the data key.
        """
        ring = self.options.key_ring
        assert ring is not None
        if self.source_ring is None:
            raise UnknownKeyError(
                f"the data key is wrapped by key pair {excerpt(wrapped.key_id)!r}, and the source's settings have no "
                "key ring"
            )
        return ring.active_id, ring.wrap_and_prove(self.source_ring.unwrap(wrapped.key_id, wrapped.wrapped))

    def options_of(self, manifest: SegmentManifest, is_uncompressed: Callable[[], bool]) -> WriteOptions:
        """Return the options for writing a transcoded segment."""
        wanted = self.options
        compresses = manifest.compression
        if self.changes_compression:
            compresses = self._wants_compression(manifest, is_uncompressed)
        encrypts = self.changes_encryption or manifest.encryption is not None
        return dataclasses.replace(
            wanted,
            chunk_size=wanted.chunk_size if self.changes_chunks else manifest.chunk_index.original_chunk_size,
            compression_level=(wanted.compression_level or _LEVEL) if compresses else None,
            heuristic=False,  # ``compresses`` has decided
            key_ring=wanted.key_ring if encrypts else None,
        )

    def _compresses_otherwise(self, manifest: SegmentManifest, is_uncompressed: Callable[[], bool]) -> bool:
        wants = self._wants_compression(manifest, is_uncompressed)
        # Compare the settings, because a manifest does not record the compression level.
        return wants != manifest.compression or (wants and self.changes_level)

    def _wants_compression(self, manifest: SegmentManifest, is_uncompressed: Callable[[], bool]) -> bool:
        if self.options.compression_level is None or not manifest.chunk_index.original_file_size:
            return False
        return manifest.compression or not self.options.heuristic or is_uncompressed()


def _compression(settings: Settings) -> tuple[int, bool] | None:
    if not settings.compression_enabled:
        return None
    return settings.compression_level, settings.compression_heuristic_enabled


@dataclass(frozen=True, slots=True)
class Route:
    """Source and target of a copy, and what changes. ``store`` is the target's store, or a wrapper that verifies its
    writes.
    """

    source: Bucket
    target: Bucket
    recoding: Recoding
    store: ObjectStore
    clock: Callable[[], float]


class Transcoder:
    """Decodes segments of one bucket and writes them into another by a ``Recoding``. Thread-safe; close it."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._lock = threading.Lock()
        self._opened = contextlib.ExitStack()
        self._manager: RemoteStorageManager | None = None
        threads = count_threads(route.target.settings)
        self._pool = self._opened.enter_context(ThreadPool(threads, "tieredstore-transcode"))

    def close(self) -> None:
        """End the threads and close the source's manager."""
        self._opened.close()

    def is_uncompressed(self, segment: StoredSegment) -> bool:
        """Read the segment's first batch. Return True if its records are not compressed."""
        with self._open_source().open(segment.metadata) as log:
            compression = read_first_compression(log.read, segment.manifest.chunk_index.original_file_size)
        return compression is CompressionType.NONE

    def find_existing(self, segment: StoredSegment, beside: Iterable[SegmentObjects]) -> Uuid | None:
        """Return the id of a complete copy among the target's segments at the same offset; None if there is no complete
        copy.

        Raise SegmentAlreadyExistsError if the existing copy is damaged, or was written with other settings than the
        present ones.
        """
        for objects in beside:
            if objects.missing:
                continue
            try:
                copy = load_segment(self._route.target.store, objects, self._route.target.manifest_rules)
            except (CorruptDataError, SegmentNotFoundError):
                continue
            if _identity(copy) != _identity(segment):
                continue
            if self._route.recoding.changes_data_keys and objects.segment_id == segment.objects.segment_id:
                raise SegmentAlreadyExistsError(
                    f"the target has {segment.objects.main_path} with the source's data key; copy to another prefix or "
                    "bucket, then delete this segment"
                )
            if damaged := [each.suffix.value for each in inspect_objects(copy) if each.is_damaged]:
                raise SegmentAlreadyExistsError(
                    f"the target has the records of {segment.objects.main_path} as segment {objects.segment_id.id}, "
                    f"but its .{' and .'.join(damaged)} has another size than its manifest says; remove that segment"
                )
            if not self._is_as_wanted(segment, copy):
                raise SegmentAlreadyExistsError(
                    f"the target has the records of {segment.objects.main_path} as segment {objects.segment_id.id}, "
                    "written with other settings; remove that segment, or copy to another prefix"
                )
            return objects.segment_id.id
        return None

    def transcode(self, segment: StoredSegment) -> tuple[Uuid, int]:
        """Write the segment under a new id. Return the id and the number of bytes written."""
        manager = self._open_source()
        metadata = segment.metadata
        options = self._route.recoding.options_of(segment.manifest, partial(self.is_uncompressed, segment))
        layout = KeyLayout(self._route.target.prefix, self._route.target.settings.key_prefix_mask)
        writer = SegmentWriter(self._route.store, layout, options, pool=self._pool, clock=self._route.clock)
        new_id = RemoteLogSegmentId(metadata.topic_id_partition, Uuid.random())
        copy = dataclasses.replace(metadata, remote_log_segment_id=new_id, custom_metadata=None)
        name = f"{segment.objects.main_path}.{Suffix.LOG.value}"
        with manager.open(metadata) as log:
            content = SegmentContent(
                name,
                metadata.segment_size_in_bytes,
                InOrder(log.readinto, name).read_into,
                lambda: False,  # never called, because only the compression heuristic asks this, and it is off
                lambda: _indexes(manager, segment),
            )
            return new_id.id, writer.copy_content(copy, content).total

    def _open_source(self) -> RemoteStorageManager:
        """Return the source's manager, without a chunk cache. The first call creates it and reads the keys."""
        with self._lock:
            if self._manager is None:
                self._manager = self._opened.enter_context(self._route.source.open_uncached_manager())
            return self._manager

    def _is_as_wanted(self, segment: StoredSegment, copy: StoredSegment) -> bool:
        options = self._route.recoding.options_of(segment.manifest, partial(self.is_uncompressed, segment))
        manifest = copy.manifest
        return (
            manifest.chunk_index.original_chunk_size == options.chunk_size
            and manifest.compression == (options.compression_level is not None)
            and (manifest.encryption is None) == (options.key_ring is None)
        )


def _indexes(manager: RemoteStorageManager, segment: StoredSegment) -> tuple[bytes, ...]:
    kinds = [kind for kind, _ in segment.manifest.segment_indexes.entries()]
    fetched = manager.fetch_indexes(segment.metadata, kinds)
    return tuple(fetched[kind].read() for kind in kinds)


def _identity(segment: StoredSegment) -> tuple[TopicIdPartition, int, int, tuple[tuple[int, int], ...], int]:
    """Return the properties that a segment and its copy share."""
    metadata: RemoteLogSegmentMetadata = segment.metadata
    return (
        metadata.topic_id_partition,
        metadata.start_offset,
        metadata.end_offset,
        metadata.segment_leader_epochs,
        metadata.segment_size_in_bytes,
    )
