"""Kafka's ``RemoteStorageManager`` interface (KIP-405), with an additional fetch of several indexes."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import BinaryIO

from tieredstore.errors import IndexNotRecordedError
from tieredstore.model import IndexType, LogSegmentData, RemoteLogSegmentMetadata


class RemoteStorageManagerBase(ABC):
    """Interface of a remote storage manager. Safe from several threads."""

    @abstractmethod
    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, log_segment_data: LogSegmentData
    ) -> bytes | None:
        """Copy a closed segment. Return the segment's custom metadata if the settings request it. A failed copy leaves
        nothing visible."""

    @abstractmethod
    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> io.RawIOBase:
        """Fetch the log's bytes from ``start_position`` to ``end_position``, **inclusive**, clamped to the last
        byte.
        """

    @abstractmethod
    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> BinaryIO:
        """Fetch one index. Raise IndexNotRecordedError if the segment was copied without this index."""

    def fetch_indexes(
        self, metadata: RemoteLogSegmentMetadata, index_types: Iterable[IndexType]
    ) -> dict[IndexType, BinaryIO]:
        """Fetch the requested indexes. Leave out indexes that were not recorded.

        This default implementation fetches the indexes one by one. If a fetch fails, it closes the indexes that it has
        opened.
        """
        opened: dict[IndexType, BinaryIO] = {}
        try:
            for index_type in index_types:
                try:
                    opened[index_type] = self.fetch_index(metadata, index_type)
                except IndexNotRecordedError:
                    continue
        except BaseException:
            for stream in opened.values():
                stream.close()
            raise
        return opened

    def fetch_all_indexes(self, metadata: RemoteLogSegmentMetadata) -> dict[IndexType, BinaryIO]:
        """Fetch every recorded index."""
        return self.fetch_indexes(metadata, IndexType)

    @abstractmethod
    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the segment. Succeed if it is absent."""
