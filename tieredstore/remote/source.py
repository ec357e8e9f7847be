"""The part of a remote storage manager that readers of stored segments need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeAlias

from tieredstore.model import IndexType, RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.format.manifest import SegmentManifest
    from tieredstore.format.manifest_rules import ManifestRules
    from tieredstore.remote.fetch.stream import SegmentStream
    from tieredstore.remote.layout import KeyLayout

NextSegment: TypeAlias = Callable[[], RemoteLogSegmentMetadata | None]
"""Function that returns the segment after the current one, or None at the end. The reader calls the function once, on
its own thread, so the function must be fast.
"""


class SegmentSource(Protocol):
    """Source of stored segments, which ``RemoteStorageManager`` implements. Safe from several threads.

    Users of a source only read from it. The source's owner closes it.
    """

    def check_open(self) -> None:
        """Raise AlreadyClosedError if the owner has closed this source. Every read then raises the same error."""
        ...

    @property
    def store(self) -> ObjectStore:
        """The store, for listings and manifests."""
        ...

    @property
    def layout(self) -> KeyLayout:
        """The keys of segments' objects."""
        ...

    @property
    def manifest_rules(self) -> ManifestRules:
        """The settings' limits on manifests."""
        ...

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
        *,
        next_segment: NextSegment | None = None,
    ) -> SegmentStream:
        """Open the log's bytes ``start_position..end_position``, the end **inclusive** and clamped to the last byte."""
        ...

    def open(self, metadata: RemoteLogSegmentMetadata) -> SegmentStream:
        """Open the whole log as a seekable, read-only file."""
        ...

    def fetch_manifest(self, metadata: RemoteLogSegmentMetadata) -> SegmentManifest:
        """Fetch the segment's manifest, without a private key."""
        ...

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> BinaryIO:
        """Fetch one index. Raise IndexNotRecordedError if the segment was copied without this index."""
        ...

    def fetch_indexes(
        self, metadata: RemoteLogSegmentMetadata, index_types: Iterable[IndexType]
    ) -> dict[IndexType, BinaryIO]:
        """Fetch the requested indexes. Leave out indexes that were not recorded."""
        ...
