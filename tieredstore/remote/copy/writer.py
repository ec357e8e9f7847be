"""Writer of segments: first the log, then the indexes, then the manifest, which commits the segment."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tieredstore.backends.base import Buffer, ObjectStore
from tieredstore.errors import (
    InvalidSegmentError,
    ObjectNotFoundError,
    SegmentAlreadyExistsError,
    SegmentTooLargeError,
)
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest, WrappedDataKey
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD, IV_SIZE
from tieredstore.limits import MAX_INT32
from tieredstore.model import LogSegmentData, RemoteLogSegmentMetadata
from tieredstore.process.deadline import boot_clock_s
from tieredstore.remote.copy.attempt import Attempt, AttemptAge
from tieredstore.remote.copy.content import SegmentContent, content_of_files
from tieredstore.remote.layout import KeyLayout
from tieredstore.transform.chunks import ChunkEncoder, TransformedChunks
from tieredstore.transform.encryption import DataKey, RandomBytes, SegmentCipher

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.transform.keyring import KeyRing


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options for writing segments.

    ``chunk_size`` is in bytes. ``compression_level`` is None for no compression. With ``heuristic``, a log is not
    compressed if its first batch is already compressed. ``key_ring`` is None for no encryption. A copy that takes
    longer than ``max_age_s`` fails without a commit.
    """

    chunk_size: int
    compression_level: int | None = None
    heuristic: bool = False
    key_ring: KeyRing | None = None
    chunks_in_flight: int = 4
    max_age_s: float = 43200.0

    @classmethod
    def of_settings(cls, settings: Settings, key_ring: KeyRing | None) -> Self:
        """Make the options from the settings."""
        return cls(
            chunk_size=settings.chunk_size,
            compression_level=settings.compression_level if settings.compression_enabled else None,
            heuristic=settings.compression_heuristic_enabled,
            key_ring=key_ring,
            # Keep more chunks in flight than there are threads, so that the threads stay busy while the store takes a
            # chunk.
            chunks_in_flight=count_threads(settings) + 2,
            max_age_s=settings.upload_max_age_ms / 1000,
        )


def count_threads(settings: Settings) -> int:
    """Return the number of threads that compress and encrypt."""
    return settings.transform_thread_pool_size or os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class StoredSizes:
    """Sizes in bytes of the three objects that a copy wrote."""

    log: int
    indexes: int
    manifest: int

    @property
    def total(self) -> int:
        """The sum of the sizes, which the custom metadata contains as ``REMOTE_SIZE``."""
        return self.log + self.indexes + self.manifest


@dataclass(frozen=True, slots=True)
class CopiedSegment:
    """Result of a copy. ``custom_metadata`` is None if ``custom.metadata.fields.include`` is empty."""

    sizes: StoredSizes
    custom_metadata: bytes | None


def _go_on() -> None:
    """Do nothing, so that the copy continues. This is the default of ``check``."""


class SegmentWriter:
    """Writer that copies segments into a store. Safe from several threads. ``WriteOptions`` limit the writer's
    memory."""

    def __init__(
        self,
        store: ObjectStore,
        layout: KeyLayout,
        options: WriteOptions,
        *,
        pool: Executor,
        random_bytes: RandomBytes = os.urandom,
        clock: Callable[[], float] = boot_clock_s,
    ) -> None:
        self._store = store
        self._layout = layout
        self._options = options
        self._pool = pool
        self._random_bytes = random_bytes
        self._clock = clock

    def copy(
        self,
        metadata: RemoteLogSegmentMetadata,
        data: LogSegmentData,
        on_progress: Callable[[int], None] | None = None,
        check: Callable[[], None] = _go_on,
    ) -> StoredSizes:
        """Write the three objects. Call ``on_progress`` with the stored size of each chunk when the chunk is sent.

        The copy makes one HEAD and three PUTs. Before the last PUT it reads one byte of the log and one of the indexes,
        because the manifest must not commit objects that have been deleted.

        If one of the two objects is missing, or the attempt is older than ``max_age_s``, raise StoreUnavailableError.
        On any failure, delete the objects of this attempt, manifest first.

        ``check`` runs before each chunk and each put, and after the last put. If ``check`` raises an error, the copy
        fails.
        """
        with content_of_files(data) as content:
            return self.copy_content(metadata, content, on_progress, check)

    def copy_content(
        self,
        metadata: RemoteLogSegmentMetadata,
        content: SegmentContent,
        on_progress: Callable[[int], None] | None = None,
        check: Callable[[], None] = _go_on,
    ) -> StoredSizes:
        """Copy a segment from any source, as :meth:`copy` does."""
        compress = self._decide(metadata, content)
        # Use a new key for each copy, so that two objects never share a key and an IV.
        data_key = None if self._options.key_ring is None else DataKey.generate(self._random_bytes)
        # Check early, to save the long upload of a log that already exists. The check is only an optimization,
        # because each put succeeds only if its key is free.
        self._refuse_existing(metadata)
        age = AttemptAge(self._clock, self._options.max_age_s, metadata)
        with Attempt(self._store, self._layout, metadata, age) as attempt:
            upload = _Upload(self._options, metadata, compress, data_key, self._random_bytes)
            chunks = upload.chunks(content, self._pool)
            # Write the manifest last, when the log and the indexes are complete.
            attempt.put(Suffix.LOG, _count_chunks(chunks, metadata, on_progress, check))
            check()
            blobs, entries = upload.indexes(content.indexes())
            attempt.put(Suffix.INDEXES, b"".join(blobs))
            check()
            manifest = upload.manifest(chunks.stored_sizes, entries).to_bytes()
            attempt.require(Suffix.LOG, sum(chunks.stored_sizes))
            attempt.require(Suffix.INDEXES, sum(map(len, blobs)))
            attempt.put(Suffix.MANIFEST, manifest)
            # Check the age again. If the write of the manifest took long, a clean-up may have deleted the log or the
            # indexes meanwhile.
            age.check()
            # Roll back if the caller has already given up.
            check()
        return StoredSizes(sum(chunks.stored_sizes), sum(map(len, blobs)), len(manifest))

    def _decide(self, metadata: RemoteLogSegmentMetadata, content: SegmentContent) -> bool:
        """Return True if the log should be compressed. Raise an error, before any write, for a segment that no reader
        could read back.
        """
        size = content.size
        if size != metadata.segment_size_in_bytes:
            raise InvalidSegmentError(
                f"{content.name} has {size} bytes, but its metadata says {metadata.segment_size_in_bytes}: the "
                "segment is not closed, or it is another file"
            )
        self._refuse_too_large(metadata, size)
        if size == 0:
            return False
        if self._options.compression_level is None or not self._options.heuristic:
            return self._options.compression_level is not None
        return content.is_uncompressed()

    def _refuse_too_large(self, metadata: RemoteLogSegmentMetadata, size: int) -> None:
        chunk_size = self._options.chunk_size
        chunks = -(-size // chunk_size)
        if chunks * chunk_size > MAX_INT32:
            raise SegmentTooLargeError(
                f"{metadata}: {chunks} chunks of {chunk_size} bytes are more than 2^31-1 bytes together, so the "
                "plugin could not read the end of the segment; use a smaller chunk.size"
            )
        if self._options.key_ring is None:
            return
        if size == 0:
            raise InvalidSegmentError(
                f"{metadata}: the log is empty, and no known reader accepts an empty encrypted log; "
                "leave it out, or copy it with encryption.enabled=false"
            )
        if self._options.compression_level is None:
            _check_stored_size(metadata, size + chunks * ENCRYPTION_OVERHEAD)

    def _refuse_existing(self, metadata: RemoteLogSegmentMetadata) -> None:
        key = self._layout.key(metadata, Suffix.MANIFEST)
        with contextlib.suppress(ObjectNotFoundError):
            self._store.head(key)
            raise SegmentAlreadyExistsError(
                f"{self._layout.show(key)} exists: {metadata} was copied already; every attempt needs a new id"
            )


class _Upload:
    """Content of the three objects of one segment."""

    def __init__(
        self,
        options: WriteOptions,
        metadata: RemoteLogSegmentMetadata,
        compress: bool,
        data_key: DataKey | None,
        random_bytes: RandomBytes,
    ) -> None:
        self._options = options
        self._metadata = metadata
        self._compress = compress
        self._data_key = data_key
        self._cipher = None if data_key is None else SegmentCipher(data_key)
        self._random_bytes = random_bytes

    def chunks(self, content: SegmentContent, pool: Executor) -> TransformedChunks:
        level = self._options.compression_level if self._compress else None
        return TransformedChunks(
            content.read_into,
            self._metadata.segment_size_in_bytes,
            self._options.chunk_size,
            ChunkEncoder(level, self._cipher),
            pool=pool,
            chunks_in_flight=self._options.chunks_in_flight,
            random_bytes=self._random_bytes,
        )

    def indexes(self, plain: tuple[bytes, ...]) -> tuple[list[bytes], SegmentIndexes]:
        """Return the stored indexes in their fixed order, and the position and size of each."""
        blobs = [self._seal(index) for index in plain]
        entries: list[IndexEntry] = []
        position = 0
        for blob in blobs:
            entries.append(IndexEntry(position, len(blob)))
            position += len(blob)
        transaction = entries[4] if len(entries) > 4 else None
        return blobs, SegmentIndexes(entries[0], entries[1], entries[2], entries[3], transaction)

    def _seal(self, index: bytes) -> bytes:
        if self._cipher is None or not index:
            return index  # an empty index is stored empty, even with encryption
        return self._cipher.seal(self._random_bytes(IV_SIZE), index)

    def manifest(self, stored_sizes: array[int], indexes: SegmentIndexes) -> SegmentManifest:
        return SegmentManifest(
            chunk_index=self._chunk_index(stored_sizes),
            segment_indexes=indexes,
            compression=self._compress,
            encryption=self._wrap_data_key(),
            metadata=self._metadata,
        )

    def _chunk_index(self, stored_sizes: array[int]) -> ChunkIndex:
        chunk_size, file_size = self._options.chunk_size, self._metadata.segment_size_in_bytes
        if self._compress:
            return VariableChunkIndex.from_sizes(chunk_size, file_size, stored_sizes)
        overhead = 0 if self._cipher is None else ENCRYPTION_OVERHEAD
        last = stored_sizes[-1] if stored_sizes else 0
        return FixedChunkIndex(chunk_size, file_size, chunk_size + overhead, last)

    def _wrap_data_key(self) -> WrappedDataKey | None:
        ring = self._options.key_ring
        if ring is None or self._data_key is None:
            return None
        return WrappedDataKey(ring.active_id, ring.wrap(self._data_key.key), self._data_key.aad)


def _count_chunks(
    chunks: TransformedChunks,
    metadata: RemoteLogSegmentMetadata,
    on_progress: Callable[[int], None] | None,
    check: Callable[[], None],
) -> Iterator[Buffer]:
    """Yield the chunks. Raise SegmentTooLargeError once their stored size exceeds the format's limit."""
    total = 0
    with contextlib.closing(iter(chunks)) as stored_chunks:
        for stored in stored_chunks:
            total += len(stored)
            _check_stored_size(metadata, total)
            check()
            yield stored
            if on_progress is not None:
                on_progress(len(stored))


def _check_stored_size(metadata: RemoteLogSegmentMetadata, stored_size: int) -> None:
    if stored_size > MAX_INT32:
        raise SegmentTooLargeError(
            f"{metadata}: its stored form is larger than 2^31-1 bytes, so no reader of this format can read it "
            "whole; use a larger chunk.size, compress, or make smaller segments (segment.bytes)"
        )
