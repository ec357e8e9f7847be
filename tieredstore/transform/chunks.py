"""The transformation of chunks: ``original -> [zstd frame] -> [IV | ciphertext | tag] -> stored``, and back.

The stored format requires one zstd frame (RFC 8878) for each chunk, with the content size in its header and no
dictionary. docs/reference/format.md describes which frames Aiven's decoder can read.

In :class:`TransformedChunks`, several threads transform a segment's chunks, the caller gets them in order, and memory
is bounded.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

import zstandard

from tieredstore.errors import CorruptDataError
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD, IV_SIZE
from tieredstore.transform.encryption import RandomBytes, SegmentCipher

DEFAULT_LEVEL: Final = 3
"""zstd's own default level, which the plugin uses too."""

ReadInto: TypeAlias = Callable[[int, memoryview], None]
"""A function that fills a whole buffer with the source's bytes from a position on, or raises an error. It must be
thread-safe.
"""


class ReadsInto(Protocol):
    """The method of zstandard's reader that is missing in its type stubs."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer and return the number of bytes."""
        ...


class _Contexts(threading.local):
    """One compressor and one decompressor per thread, because creating one takes as long as processing a small
    chunk."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self.level = DEFAULT_LEVEL
        self.compressor = zstandard.ZstdCompressor(level=DEFAULT_LEVEL)


_contexts = _Contexts()


def compress(data: bytes | bytearray | memoryview, level: int = DEFAULT_LEVEL) -> bytes:
    """Return ``data`` as one frame with its content size and no checksum. Releases the GIL."""
    if _contexts.level != level:
        _contexts.compressor = zstandard.ZstdCompressor(level=level)
        _contexts.level = level
    return _contexts.compressor.compress(data)


def decompress_into(frame: bytes | bytearray | memoryview, out: memoryview, wanted: int | None = None) -> None:
    """Decompress one frame into ``out``, which must be exactly as large as the content. Releases the GIL.

    Raise CorruptDataError unless ``frame`` is one whole frame that declares ``len(out)`` bytes of content. The header
    is checked first, so that a damaged header cannot make this function allocate memory.

    If ``wanted`` is given, the function may decompress only that many bytes. Then the rest of the frame is not checked,
    and the rest of ``out`` is undefined.
    """
    size = len(out) if wanted is None else wanted
    try:
        declared = zstandard.get_frame_parameters(frame).content_size
        if declared != len(out):
            raise CorruptDataError(
                f"the zstd frame declares {_describe_size(declared)}, not the {len(out)} bytes expected"
            )
        # If the buffer has room for the whole content, libzstd decodes in one pass, straight into `out`. That is 1.7
        # times as fast as ZstdDecompressor.decompress, which allocates fresh memory.
        with _contexts.decompressor.stream_reader(frame, closefd=False) as reader:
            written = cast("ReadsInto", reader).readinto(out[:size]) if size else 0
    except zstandard.ZstdError as error:
        raise CorruptDataError(f"zstd cannot decompress it: {error}") from error
    if written != size:
        raise CorruptDataError(f"the zstd frame ends after {written} of {size} bytes")


def _describe_size(content_size: int) -> str:
    if content_size == zstandard.CONTENTSIZE_UNKNOWN:
        return "no content size"
    return f"{content_size} bytes"


# Buffers of this size or more get their own pages. For smaller buffers, malloc is faster.
_PAGES: Final = 1 << 20
_HUGE_PAGE: Final = 2 << 20


def fresh_memory(size: int) -> memoryview:
    """Return ``size`` writable bytes of zeros.

    Large buffers get their own pages, which return to the system when nothing refers to them. malloc would keep 20 MiB
    and more of freed buffers in an arena for each thread. With huge pages, the first write to 2 MiB of memory takes one
    page fault instead of 512.
    """
    if size < _PAGES:
        return memoryview(bytearray(size))
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # the kernel may have been built without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


class GrowingBuffer:
    """A buffer for repeated use. The page faults in a fresh buffer of 4 MiB would take longer than the decryption of a
    chunk."""

    def __init__(self) -> None:
        self._memory = fresh_memory(0)

    def first(self, size: int) -> memoryview:
        """Return ``size`` writable bytes with undefined content. They are valid until the next call."""
        if len(self._memory) < size:
            # Round up, because the stored sizes of equally large chunks differ, and each new maximum needs fresh
            # memory.
            self._memory = fresh_memory(size if size < _PAGES else -(-size // _HUGE_PAGE) * _HUGE_PAGE)
        return self._memory[:size]


@dataclass(frozen=True, slots=True)
class ChunkEncoder:
    """Turns original chunks into stored chunks.

    ``compression_level`` is None for uncompressed segments, and ``cipher`` is None for unencrypted segments.
    """

    compression_level: int | None = None
    cipher: SegmentCipher | None = None

    def encode(self, original: memoryview, iv: bytes, buffer: GrowingBuffer) -> bytes | memoryview:
        """Return the stored chunk. It may be a view of ``original`` or ``buffer``, so use it before these two
        change."""
        data = original if self.compression_level is None else compress(original, self.compression_level)
        if self.cipher is None:
            return data
        unit = buffer.first(len(data) + ENCRYPTION_OVERHEAD)
        self.cipher.seal_into(iv, data, unit)
        return unit


class _Scratch(threading.local):
    """One buffer per thread for chunks that are decrypted but not yet decompressed."""

    def __init__(self) -> None:
        self.decrypted = GrowingBuffer()


@dataclass(frozen=True, slots=True)
class ChunkDecoder:
    """Turns stored chunks into original chunks. Safe from several threads."""

    compressed: bool
    cipher: SegmentCipher | None
    _scratch = _Scratch()

    @property
    def is_identity(self) -> bool:
        """True if the stored chunks have the same bytes as the original chunks."""
        return not self.compressed and self.cipher is None

    def decode_into(self, stored: memoryview, original: memoryview, wanted: int | None = None) -> None:
        """Write the original chunk. Raise CorruptDataError unless its size is ``len(original)``.

        If the decoder stops early, ``original`` is undefined after ``wanted`` bytes.
        """
        if not self.compressed:
            self._open_into(stored, original)
            return
        frame = stored
        if self.cipher is not None:
            # Decrypt the zstd frame into another buffer. A frame of incompressible bytes is longer than its content, so
            # it would not fit into `original`.
            frame = self._scratch.decrypted.first(max(0, len(stored) - ENCRYPTION_OVERHEAD))
            self.cipher.open_into(stored, frame)
        decompress_into(frame, original, wanted)

    def _open_into(self, stored: memoryview, original: memoryview) -> None:
        if self.cipher is not None:
            self.cipher.open_into(stored, original)
        elif len(stored) != len(original):
            raise CorruptDataError(f"{len(stored)} stored bytes instead of {len(original)}")
        else:
            original[:] = stored


class _Slot(NamedTuple):
    """The memory of one chunk in flight."""

    original: GrowingBuffer
    stored: GrowingBuffer


class TransformedChunks:
    """The stored chunks of one segment, in order. They can be iterated only once.

    For a segment of any size, memory is at most ``chunks_in_flight`` times the size of an original and a stored chunk.
    A yielded chunk is valid until the next chunk is requested. Initialization vectors are made in the order of the
    chunks, on the caller's thread. ``stored_sizes`` grows with each yielded chunk and is complete at the end.
    """

    def __init__(
        self,
        read_into: ReadInto,
        size: int,
        chunk_size: int,
        encoder: ChunkEncoder,
        *,
        pool: Executor,
        chunks_in_flight: int,
        random_bytes: RandomBytes = os.urandom,
    ) -> None:
        self._read_into = read_into
        self._size = size
        self._chunk_size = chunk_size
        self._encoder = encoder
        self._pool = pool
        self._chunks_in_flight = chunks_in_flight
        self._random_bytes = random_bytes
        self.stored_sizes: array[int] = array("q")

    def __iter__(self) -> Generator[bytes | memoryview, None, None]:
        free = [_Slot(GrowingBuffer(), GrowingBuffer()) for _ in range(self._chunks_in_flight)]
        running: deque[tuple[_Slot, Future[bytes | memoryview]]] = deque()
        positions = self._positions()
        try:
            while True:
                # Fill every free slot before waiting for the oldest chunk, so that the pool does not idle while the
                # consumer works.
                while free and (position := next(positions, None)) is not None:
                    slot = free.pop()
                    running.append((slot, self._submit(position, slot)))
                if not running:
                    return
                slot, future = running.popleft()
                stored = future.result()
                self.stored_sizes.append(len(stored))
                yield stored
                # Free the slot only now, because the consumer may read its memory until it requests the next chunk.
                free.append(slot)
        finally:
            # Wait for running tasks, because none may write into this segment's memory or read its file after the
            # iteration. Do not wait for cancelled tasks, because they stay pending until a thread takes them from the
            # queue, perhaps forever.
            wait([future for _, future in running if not future.cancel()])

    def _positions(self) -> Iterator[int]:
        return iter(range(0, self._size, self._chunk_size))

    def _submit(self, position: int, slot: _Slot) -> Future[bytes | memoryview]:
        # Make the IV here, in the order of the chunks, and not on threads of the pool. So a test that injects the
        # plugin's random bytes gets the same object as the plugin.
        iv = self._random_bytes(IV_SIZE) if self._encoder.cipher is not None else b""
        return self._pool.submit(self._transform, position, iv, slot)

    def _transform(self, position: int, iv: bytes, slot: _Slot) -> bytes | memoryview:
        original = slot.original.first(min(self._chunk_size, self._size - position))
        self._read_into(position, original)
        return self._encoder.encode(original, iv, slot.stored)
