"""A range down: the manifest, the chunks that overlap the range, their bytes in order."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable
from concurrent.futures import Executor, Future, wait
from typing import TYPE_CHECKING, BinaryIO

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import (
    CorruptData,
    IndexesCorrupt,
    IndexNotRecorded,
    InvalidRange,
    ManifestCorrupt,
    ObjectNotFound,
    RangeNotSatisfiable,
    SegmentCorrupt,
    SegmentNotFound,
    UnknownKey,
)
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import IndexEntry, SegmentManifest
from tieredstore.model import ByteRange, IndexType, RemoteLogSegmentMetadata, covering_range
from tieredstore.remote.layout import KeyLayout
from tieredstore.transform.chunks import ChunkDecoder, GrowingBuffer
from tieredstore.transform.encryption import DataKey, SegmentCipher
from tieredstore.transform.keyring import KeyRing

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class SegmentReader:
    """Reads segments of a store. Safe from several threads."""

    def __init__(self, store: ObjectStore, layout: KeyLayout, key_ring: KeyRing | None, *, pool: Executor) -> None:
        self._store = store
        self._layout = layout
        self._key_ring = key_ring
        self._pool = pool

    def manifest(self, metadata: RemoteLogSegmentMetadata) -> SegmentManifest:
        """The segment's manifest, by one request; SegmentNotFound without one."""
        key = self._layout.key(metadata, Suffix.MANIFEST)
        try:
            return SegmentManifest.from_bytes(self._store.get(key))
        except ObjectNotFound as error:
            raise SegmentNotFound(
                f"{metadata} is not in the store: {self._layout.shown(key)} does not exist"
            ) from error
        except ManifestCorrupt as error:
            raise ManifestCorrupt(f"{self._layout.shown(key)} is damaged: {error}") from error

    def open(self, metadata: RemoteLogSegmentMetadata, byte_range: ByteRange | None = None) -> SegmentStream:
        """The bytes of ``byte_range`` (all without one); the manifest is read here, chunks when they are read."""
        manifest = self.manifest(metadata)
        size = manifest.chunk_index.original_file_size
        wanted = byte_range or ByteRange(0, size)
        if wanted.stop > size:
            raise SegmentCorrupt(
                f"{metadata} has {size} bytes by its manifest and {metadata.segment_size_in_bytes} by its metadata"
            )
        return SegmentStream(_Chunks(self, metadata, manifest), wanted, self._pool)

    def indexes(self, metadata: RemoteLogSegmentMetadata, types: Iterable[IndexType]) -> dict[IndexType, BinaryIO]:
        """The indexes that were recorded, by one request for all of them (none if all are empty)."""
        manifest = self.manifest(metadata)
        entries = {kind: entry for kind in types if (entry := manifest.segment_indexes.entry(kind)) is not None}
        filled = [ByteRange(entry.position, entry.position + entry.size) for entry in entries.values() if entry.size]
        if not filled:
            return {kind: io.BytesIO() for kind in entries}
        span = covering_range(iter(filled))
        key = self._layout.data_key(metadata, Suffix.INDEXES)
        try:
            stored = self._store.get(key, span.start, span.stop)
        except (ObjectNotFound, RangeNotSatisfiable) as error:
            raise self.missing(metadata, key, error, IndexesCorrupt) from error
        cipher = self.cipher(manifest)
        return {
            kind: io.BytesIO(self._opened_index(cipher, stored, span.start, entry, f"{kind.value} index of {metadata}"))
            for kind, entry in entries.items()
        }

    def index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> BinaryIO:
        """One index; IndexNotRecorded if the segment was copied without it."""
        found = self.indexes(metadata, [index_type])
        if index_type not in found:
            raise IndexNotRecorded(f"{metadata} was copied without a {index_type.value} index")
        return found[index_type]

    def cipher(self, manifest: SegmentManifest) -> SegmentCipher | None:
        """What opens the segment's units; UnknownKey if the ring does not hold the pair."""
        wrapped = manifest.encryption
        if wrapped is None:
            return None
        if self._key_ring is None:
            raise UnknownKey(
                f"the segment is encrypted (key pair {wrapped.key_id!r}) and no key ring is configured; set "
                "encryption.enabled, encryption.key.pair.id and encryption.key.pairs"
            )
        return SegmentCipher(DataKey(self._key_ring.unwrap(wrapped.key_id, wrapped.wrapped), wrapped.aad))

    def read_stored(self, metadata: RemoteLogSegmentMetadata, position: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with stored bytes of the log, by one request."""
        key = self._layout.data_key(metadata, Suffix.LOG)
        try:
            self._store.get_into(key, position, buffer)
        except (ObjectNotFound, RangeNotSatisfiable) as error:
            raise self.missing(metadata, key, error, SegmentCorrupt) from error

    def missing(
        self,
        metadata: RemoteLogSegmentMetadata,
        key: str,
        error: ObjectNotFound | RangeNotSatisfiable,
        corrupt: type[CorruptData],
    ) -> CorruptData | SegmentNotFound:
        """Why an object that a manifest points to is missing or short: corruption, unless a delete went by."""
        try:
            self._store.head(self._layout.key(metadata, Suffix.MANIFEST))
        except ObjectNotFound:
            return SegmentNotFound(f"{metadata} was deleted while it was read")
        what = "is missing" if isinstance(error, ObjectNotFound) else "is shorter than its manifest says"
        return corrupt(f"{self._layout.shown(key)} {what}, and its manifest exists: the segment is damaged")

    @staticmethod
    def _opened_index(cipher: SegmentCipher | None, stored: bytes, offset: int, entry: IndexEntry, what: str) -> bytes:
        unit = stored[entry.position - offset : entry.position - offset + entry.size]
        if cipher is None or not unit:
            return unit
        try:
            return cipher.open(unit)
        except CorruptData as error:
            raise IndexesCorrupt(f"the {what} does not decrypt: {error}") from error


class _Scratch(threading.local):
    """One buffer a thread for stored chunks."""

    def __init__(self) -> None:
        self.stored = GrowingBuffer()


_scratch = _Scratch()


class _Chunks:
    """The chunks of one open segment."""

    def __init__(self, reader: SegmentReader, metadata: RemoteLogSegmentMetadata, manifest: SegmentManifest) -> None:
        self.index = manifest.chunk_index
        self._reader = reader
        self._metadata = metadata
        self._positions = manifest.chunk_index.positions()
        self._decoder = ChunkDecoder(manifest.compression, reader.cipher(manifest))

    def read_into(self, chunk: int, original: memoryview) -> None:
        """Fetch and decode one chunk into ``original``, which is exactly as long as the chunk."""
        position, end = self._positions[chunk], self._positions[chunk + 1]
        try:
            if self._decoder.is_identity:
                self._reader.read_stored(self._metadata, position, original)
                return
            stored = _scratch.stored.first(end - position)
            self._reader.read_stored(self._metadata, position, stored)
            self._decoder.decode_into(stored, original)
        except SegmentCorrupt:
            raise
        except CorruptData as error:
            raise SegmentCorrupt(f"chunk {chunk} of {self._metadata} is damaged: {error}") from error


class SegmentStream(io.RawIOBase):
    """The bytes of a range, in order; each chunk is fetched and decoded once.

    ``readinto`` a large buffer decodes the chunks that lie wholly inside it in parallel and straight into it. For one
    thread at a time; close it when done.
    """

    def __init__(self, chunks: _Chunks, byte_range: ByteRange, pool: Executor) -> None:
        super().__init__()
        self._chunks = chunks
        self._position = byte_range.start
        self._stop = byte_range.stop
        self._pool = pool
        self._partial = GrowingBuffer()
        self._partial_chunk = -1

    def readable(self) -> bool:
        """True."""
        return True

    @property
    def remaining(self) -> int:
        """Bytes of the range that were not read yet."""
        return self._stop - self._position

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes (all that remain if negative): as many as there are, ``b""`` only at the end."""
        data = bytearray(self.remaining if size < 0 else min(size, self.remaining))
        self.readinto(data)
        return bytes(data)

    def readall(self) -> bytes:
        """All bytes that remain."""
        return self.read()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill ``buffer`` as far as the range goes; the number of bytes, 0 only at the end."""
        if self.closed:
            raise ValueError("the stream is closed")
        wanted = memoryview(buffer).cast("B")[: self.remaining]
        whole: list[tuple[int, memoryview]] = []
        partial: list[tuple[ByteRange, memoryview]] = []
        for chunk in self._chunks.index.chunks_of(ByteRange(self._position, self._position + len(wanted))):
            place = self._chunks.index.original_range(chunk)
            inside = ByteRange(max(place.start, self._position), min(place.stop, self._position + len(wanted)))
            target = wanted[inside.start - self._position : inside.stop - self._position]
            if inside == place:
                whole.append((chunk, target))
            else:
                partial.append((inside, target))
        self._read_whole(whole)
        for inside, target in partial:
            self._read_partial(inside, target)
        self._position += len(wanted)
        return len(wanted)

    def _read_whole(self, pieces: list[tuple[int, memoryview]]) -> None:
        """Chunks into their places; returns, or raises, only after no thread writes into the caller's buffer."""
        if len(pieces) == 1:
            self._chunks.read_into(*pieces[0])
            return
        running: list[Future[None]] = []
        try:
            running.extend(self._pool.submit(self._chunks.read_into, *piece) for piece in pieces)
            for future in running:
                future.result()
        finally:
            for future in running:
                future.cancel()
            wait(running)

    def _read_partial(self, inside: ByteRange, target: memoryview) -> None:
        """A part of a chunk; the chunk is kept, since the next read starts where this one ended."""
        chunk = self._chunks.index.chunk_at(inside.start)
        place = self._chunks.index.original_range(chunk)
        original = self._partial.first(len(place))
        if self._partial_chunk != chunk:
            self._partial_chunk = -1  # not valid while it is being written
            self._chunks.read_into(chunk, original)
            self._partial_chunk = chunk
        target[:] = original[inside.start - place.start : inside.stop - place.start]


def requested_range(metadata: RemoteLogSegmentMetadata, start: int, end: int | None) -> ByteRange:
    """Kafka's inclusive ``start..end``, clamped to the segment's last byte, as a half-open range."""
    size = metadata.segment_size_in_bytes
    stop = size if end is None else min(end + 1, size)
    if size == 0 and start == 0:
        return ByteRange(0, 0)
    if not 0 <= start < stop:
        raise InvalidRange(f"bytes {start} to {'the end' if end is None else end} are not in {metadata}: it has {size}")
    return ByteRange(start, stop)
