"""Segments that are decoded and written anew on their way from one bucket to another."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.stored import StoredSegment, load_segment
from tieredstore.errors import CorruptData, SegmentAlreadyExists, SegmentNotFound
from tieredstore.format.keys import Suffix
from tieredstore.kafka.batches import FRAME_SIZE, CompressionType, first_batch_compression, first_batch_size
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.ops.copies.recoding import Recoding
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote.copy.content import InOrder, SegmentContent
from tieredstore.remote.copy.writer import SegmentWriter
from tieredstore.remote.layout import KeyLayout

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket
    from tieredstore.remote import RemoteStorageManager


class Transcoder:
    """Writes segments of one bucket into another as a ``Recoding`` says. Safe from several threads; close it."""

    def __init__(
        self, source: Bucket, target: Bucket, recoding: Recoding, store: ObjectStore, *, clock: Callable[[], float]
    ) -> None:
        """``store`` is the target's, or one that proves what is written into it."""
        self._source = source
        self._target = target
        self._recoding = recoding
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._opened = contextlib.ExitStack()
        self._manager: RemoteStorageManager | None = None
        threads = target.settings.transform_thread_pool_size or os.cpu_count() or 1
        self._pool = self._opened.enter_context(ThreadPool(threads, "tieredstore-transcode"))

    def close(self) -> None:
        """End the threads."""
        self._opened.close()

    def is_uncompressed(self, segment: StoredSegment) -> bool:
        """Whether nobody has compressed the records of the first batch, which is read for it."""
        with self._reading().open(segment.metadata) as log:
            head = log.read(FRAME_SIZE)
            size = first_batch_size(head) or 0
            head += log.read(max(0, min(size, segment.manifest.chunk_index.original_file_size) - len(head)))
        return first_batch_compression(head) is CompressionType.NONE

    def existing(self, segment: StoredSegment, beside: Iterable[SegmentObjects]) -> Uuid | None:
        """The whole copy of the segment's records among what the target has at its offset.

        SegmentAlreadyExists if there is one that is written in another way than is wanted.
        """
        for objects in beside:
            if objects.missing:
                continue
            try:
                copy = load_segment(self._target.store, objects, self._target.manifest_rules)
            except (CorruptData, SegmentNotFound):
                continue
            if _identity(copy) != _identity(segment):
                continue
            if not self._is_as_wanted(segment, copy):
                raise SegmentAlreadyExists(
                    f"the target has the records of {segment.objects.main_path} as segment {objects.segment_id.id}, "
                    "written in another way than is wanted now; remove that one, or copy to another prefix"
                )
            return objects.segment_id.id
        return None

    def transcode(self, segment: StoredSegment) -> tuple[Uuid, int]:
        """Write the segment under a fresh id: that, and the bytes written."""
        manager = self._reading()
        metadata = segment.metadata
        options = self._recoding.options_of(segment.manifest, partial(self.is_uncompressed, segment))
        layout = KeyLayout(self._target.prefix, self._target.settings.key_prefix_mask)
        writer = SegmentWriter(self._store, layout, options, pool=self._pool, clock=self._clock)
        new_id = RemoteLogSegmentId(metadata.topic_id_partition, Uuid.random())
        copy = dataclasses.replace(metadata, remote_log_segment_id=new_id, custom_metadata=None)
        name = f"{segment.objects.main_path}.{Suffix.LOG.value}"
        with manager.open(metadata) as log:
            content = SegmentContent(
                name,
                metadata.segment_size_in_bytes,
                InOrder(log.readinto, name).read_into,
                lambda: False,  # of which the options do not ask
                lambda: _indexes(manager, segment),
            )
            return new_id.id, writer.copy_content(copy, content).total

    def _reading(self) -> RemoteStorageManager:
        """The source's manager, past all caches of chunks; the first that asks for it reads the keys."""
        with self._lock:
            if self._manager is None:
                settings = self._source.settings
                fetch = settings.fetch.model_copy(update={"chunk_cache": None})
                bucket = dataclasses.replace(self._source, settings=settings.model_copy(update={"fetch": fetch}))
                self._manager = self._opened.enter_context(bucket.manager())
            return self._manager

    def _is_as_wanted(self, segment: StoredSegment, copy: StoredSegment) -> bool:
        options = self._recoding.options_of(segment.manifest, partial(self.is_uncompressed, segment))
        manifest = copy.manifest
        return (
            manifest.chunk_index.original_chunk_size == options.chunk_size
            and manifest.compression == (options.compression_level is not None)
            and (manifest.encryption is None) == (options.key_ring is None)
        )


def _indexes(manager: RemoteStorageManager, segment: StoredSegment) -> tuple[bytes, ...]:
    kinds = [kind for kind, _ in segment.manifest.segment_indexes.recorded()]
    fetched = manager.fetch_indexes(segment.metadata, kinds)
    return tuple(fetched[kind].read() for kind in kinds)


def _identity(segment: StoredSegment) -> tuple[TopicIdPartition, int, int, tuple[tuple[int, int], ...], int]:
    """What a segment and its copy have in common, and no other segment has."""
    metadata: RemoteLogSegmentMetadata = segment.metadata
    return (
        metadata.topic_id_partition,
        metadata.start_offset,
        metadata.end_offset,
        metadata.segment_leader_epochs,
        metadata.segment_size_in_bytes,
    )
