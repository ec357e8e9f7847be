"""What a catalog keeps of one segment between two plannings."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.backends.base import ObjectInfo
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.model import RemoteLogSegmentMetadata


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which version of a manifest was read: its etag where listings tell it, else its size and time."""

    size: int
    etag: str | None
    modified_ms: int | None

    @classmethod
    def of(cls, info: ObjectInfo) -> Stamp:
        """The version that a listing tells of."""
        return cls(info.size, info.etag, info.modified_ms)

    def matches(self, listed: Stamp) -> bool:
        """Whether ``listed`` is surely this version; a store that tells neither etag nor time never is."""
        if self.etag is not None and listed.etag is not None:
            return self.etag == listed.etag and self.size == listed.size
        return self.modified_ms is not None and (self.modified_ms, self.size) == (listed.modified_ms, listed.size)


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One segment that counts.

    ``path`` is the main path of its objects as it was listed. ``history`` is its leader-epoch index, read only of
    segments that rule a partition. ``is_proven`` says that end and epochs were held against what the segment holds.
    """

    path: str
    stamp: Stamp
    metadata: RemoteLogSegmentMetadata
    history: LeaderEpochs | None = None
    is_proven: bool = False
