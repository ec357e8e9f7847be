"""One read of the bucket that goes on behind a consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tieredstore.errors import CorruptData, TieredStoreError, UnknownKey, WrongKey
from tieredstore.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.catalog.lineage import Lineage
    from tieredstore.records import LostOffsets

UNREADABLE: Final = (CorruptData, UnknownKey, WrongKey)
"""What no trying again reads."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one partition, all of which before ``next_offset`` are given with them."""

    records: pa.RecordBatch
    next_offset: int
    size: int


@dataclass(eq=False, slots=True)
class StoredStream:
    """A read of the offsets ``position`` up to ``stop`` (half-open) of one partition's log in the bucket.

    What was read waits in ``pieces``. Then either ``is_ended``, or ``error`` says what went wrong at ``position``.
    """

    where: TopicPartition
    lineage: Lineage
    position: int
    stop: int
    pieces: deque[Piece] = field(default_factory=deque[Piece])
    lost: list[LostOffsets] = field(default_factory=list["LostOffsets"])
    """What no segment holds though it is said to, in front of the end."""
    skipped: list[LostOffsets] = field(default_factory=list["LostOffsets"])
    """Damaged batches that were left out, each by its first offset; they were logged."""
    error: TieredStoreError | None = None
    is_ended: bool = False
    is_dropped: bool = False
    waiting_bytes: int = 0
    is_queued: bool = False
    reading: Generator[Piece, None, None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self.is_ended or self.error is not None

    @property
    def has_news(self) -> bool:
        """Whether whoever waits for it has something to do."""
        return bool(self.pieces) or self.is_done
