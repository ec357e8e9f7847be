"""Which keys a segment's objects have."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.format.custom_metadata import CustomMetadata
from tieredstore.format.keys import Suffix, displayed_key, main_path, object_key
from tieredstore.model import RemoteLogSegmentMetadata


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The settings ``key.prefix`` and ``key.prefix.mask``.

    ``tells_transactions``: whether a manifest without a transaction index says that there is nothing for one.
    """

    prefix: str = ""
    masked: bool = False
    tells_transactions: bool = True

    def key(self, metadata: RemoteLogSegmentMetadata, suffix: Suffix) -> str:
        """The key under the current prefix: where an object is written, deleted, and a manifest is looked up."""
        return object_key(self.prefix, main_path(metadata.remote_log_segment_id, metadata.start_offset), suffix)

    def data_key(self, metadata: RemoteLogSegmentMetadata, suffix: Suffix) -> str:
        """The key where ``.log`` or ``.indexes`` are read: custom metadata, where it is recorded, goes first."""
        # A prefix that was changed since applies to new segments only: what was recorded leads to the old ones.
        recorded = CustomMetadata.from_bytes(metadata.custom_metadata or b"")
        prefix = self.prefix if recorded.object_prefix is None else recorded.object_prefix
        path = recorded.object_key or main_path(metadata.remote_log_segment_id, metadata.start_offset)
        return object_key(prefix, path, suffix)

    def shown(self, key: str) -> str:
        """The key as messages and logs show it."""
        return displayed_key(key, self.prefix, self.masked)
