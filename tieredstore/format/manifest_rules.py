"""What a reader knows of a segment before it reads its manifest, and what it demands of any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tieredstore.errors import ManifestCorruptError, SegmentCorruptError
from tieredstore.model import RemoteLogSegmentId

MIN_CHUNK_SIZE: Final = 1024
"""The smallest ``chunk.size`` of a log with many chunks, unless the settings say otherwise. The plugin's is 4 MiB."""

MAX_SMALL_CHUNKS: Final = 65_536
"""How many chunks a log may have whatever their size: what so many cost is not worth a rule."""


@dataclass(frozen=True, slots=True)
class ManifestRules:
    """Demands of the settings: ``fetch.chunk.min.size`` and ``encryption.required``."""

    min_chunk_size: int = MIN_CHUNK_SIZE
    encryption_required: bool = False

    def check_chunks(self, chunk_size: int, file_size: int, log_size: int | None) -> None:
        """ManifestCorruptError for more chunks than anybody writes, or than a ``.log`` of ``log_size`` bytes can hold.

        Before any of them is looked at: a manifest is a few bytes that can declare millions.
        """
        count = -(-file_size // max(chunk_size, 1))
        if count <= MAX_SMALL_CHUNKS or chunk_size < 1:  # a size of 0 contradicts itself, and is refused for that
            return
        if log_size is not None and count > log_size:  # each chunk stores a byte at least
            raise ManifestCorruptError(f"chunkIndex declares {count} chunks, and the .log object has {log_size} bytes")
        if chunk_size < self.min_chunk_size:
            raise ManifestCorruptError(
                f"originalChunkSize is {chunk_size} for {count} chunks: below {self.min_chunk_size} is not read; set "
                "fetch.chunk.min.size to what the chunks were written with, if they were"
            )

    def check_encryption(self, is_encrypted: bool) -> None:
        """SegmentCorruptError for a segment in plain where all are said to be encrypted."""
        if self.encryption_required and not is_encrypted:
            raise SegmentCorruptError("the segment is not encrypted, and encryption.required is true")


DEFAULT_RULES: Final = ManifestRules()
"""What is demanded where nobody set anything."""


@dataclass(frozen=True, slots=True)
class KnownSegment:
    """The segment that a manifest is read for: by its key, and by the listing if there was one.

    ``log_size`` is the listed size of the ``.log`` object, None where nobody listed it.
    """

    segment_id: RemoteLogSegmentId
    start_offset: int
    log_size: int | None = None
