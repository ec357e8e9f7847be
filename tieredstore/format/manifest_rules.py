"""Values of a segment that are known before its manifest is read, and rules that manifests must obey."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tieredstore.errors import ManifestCorruptError, SegmentCorruptError
from tieredstore.model import RemoteLogSegmentId

MIN_CHUNK_SIZE: Final = 1024
"""The smallest ``chunk.size`` that is accepted in a log with many chunks, unless the settings change this limit. The
plugin's default is 4 MiB.
"""

MAX_SMALL_CHUNKS: Final = 65_536
"""Up to this number of chunks, any chunk size is accepted, because reading so few chunks costs little."""


@dataclass(frozen=True, slots=True)
class ManifestRules:
    """Rules from the settings ``fetch.chunk.min.size`` and ``encryption.required``."""

    min_chunk_size: int = MIN_CHUNK_SIZE
    encryption_required: bool = False

    def check_chunks(self, chunk_size: int, file_size: int, log_size: int | None) -> None:
        """Raise ManifestCorruptError if there are more chunks than any writer makes, or more than fit into ``log_size``
        bytes.

        Call this before any chunk is examined, because a manifest of a few bytes can declare millions of chunks.
        """
        count = -(-file_size // max(chunk_size, 1))
        if count <= MAX_SMALL_CHUNKS or chunk_size < 1:  # another check refuses a size below 1
            return
        if log_size is not None and count > log_size:  # each stored chunk has at least one byte
            raise ManifestCorruptError(
                f"chunkIndex states {count} chunks, but the .log object has only {log_size} bytes"
            )
        if chunk_size < self.min_chunk_size:
            raise ManifestCorruptError(
                f"originalChunkSize is {chunk_size} for {count} chunks, but so many chunks of less than "
                f"{self.min_chunk_size} bytes are refused; if {chunk_size} was the writer's chunk.size, set "
                f"fetch.chunk.min.size to {chunk_size}"
            )

    def check_encryption(self, is_encrypted: bool) -> None:
        """Raise SegmentCorruptError for an unencrypted segment if encryption is required."""
        if self.encryption_required and not is_encrypted:
            raise SegmentCorruptError("the segment is not encrypted, but encryption.required is true")


DEFAULT_RULES: Final = ManifestRules()
"""The rules without any settings."""


@dataclass(frozen=True, slots=True)
class KnownSegment:
    """The facts about a segment that are known before its manifest is read. They come from the manifest's key, and from
    a listing if there was one.

    ``log_size`` is the listed size of the ``.log`` object; None without a listing.
    """

    segment_id: RemoteLogSegmentId
    start_offset: int
    log_size: int | None = None
