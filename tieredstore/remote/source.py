"""What readers of stored segments need of a remote storage manager, and no more."""

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
"""Says which segment follows the one being read, None at the end. Called once, on the reading thread: be quick."""


class SegmentSource(Protocol):
    """Where segments are listed and read; ``RemoteStorageManager`` is one. Safe from several threads.

    Whoever is given a source neither copies nor deletes, and leaves closing it to its owner.
    """

    def check_open(self) -> None:
        """AlreadyClosedError if its owner has closed it, as every read then says too."""
        ...

    @property
    def store(self) -> ObjectStore:
        """The objects, for listings and manifests."""
        ...

    @property
    def layout(self) -> KeyLayout:
        """Which keys the objects of a segment have."""
        ...

    @property
    def manifest_rules(self) -> ManifestRules:
        """What the settings demand of manifests."""
        ...

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
        *,
        next_segment: NextSegment | None = None,
    ) -> SegmentStream:
        """The log's bytes ``start_position..end_position``, the end **inclusive** and clamped to the last byte."""
        ...

    def open(self, metadata: RemoteLogSegmentMetadata) -> SegmentStream:
        """The whole log as a seekable, read-only file."""
        ...

    def fetch_manifest(self, metadata: RemoteLogSegmentMetadata) -> SegmentManifest:
        """The segment's manifest; needs no private key."""
        ...

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> BinaryIO:
        """One index, opened; IndexNotRecordedError if the segment was copied without it."""
        ...

    def fetch_indexes(
        self, metadata: RemoteLogSegmentMetadata, index_types: Iterable[IndexType]
    ) -> dict[IndexType, BinaryIO]:
        """The indexes asked for; one that was not recorded is absent from the map."""
        ...
