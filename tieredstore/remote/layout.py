"""The keys of a segment's objects."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.format.custom_metadata import CustomMetadata
from tieredstore.format.keys import Suffix, displayed_key, main_path, object_key
from tieredstore.model import RemoteLogSegmentMetadata, TopicId, Uuid
from tieredstore.places.raw_keys import raw_topic_id


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The settings ``key.prefix`` and ``key.prefix.mask``.

    ``raw_cluster`` is the cluster's name in the raw layout, which stores no topic ids and no transaction indexes; None
    for the plugin's keys.
    """

    prefix: str = ""
    masked: bool = False
    raw_cluster: str | None = None

    @property
    def tells_transactions(self) -> bool:
        """True if a manifest without a transaction index proves that the segment aborts no transaction."""
        return self.raw_cluster is None

    def derived_id(self, topic: str) -> Uuid | None:
        """Return the id derived from a topic's name in a layout without topic ids; None in one that has them."""
        return None if self.raw_cluster is None else raw_topic_id(self.raw_cluster, topic)

    def topic_id(self, topic: str, value: Uuid) -> TopicId:
        """Wrap an id of a topic, from a bucket, a broker or a checkpoint; it is real unless this layout derives it."""
        return TopicId.of(value, self.derived_id(topic))

    def key(self, metadata: RemoteLogSegmentMetadata, suffix: Suffix) -> str:
        """Return the key under the current prefix: for writes, deletions, and look-ups of manifests."""
        return object_key(self.prefix, main_path(metadata.remote_log_segment_id, metadata.start_offset), suffix)

    def data_key(self, metadata: RemoteLogSegmentMetadata, suffix: Suffix) -> str:
        """Return the key from which ``.log`` or ``.indexes`` are read: recorded custom metadata take precedence."""
        # A later prefix applies to new segments only: the recorded one leads to the old ones.
        recorded = CustomMetadata.from_bytes(metadata.custom_metadata or b"")
        prefix = self.prefix if recorded.object_prefix is None else recorded.object_prefix
        path = recorded.object_key or main_path(metadata.remote_log_segment_id, metadata.start_offset)
        return object_key(prefix, path, suffix)

    def show(self, key: str) -> str:
        """Return the key as messages and logs show it."""
        return displayed_key(key, self.prefix, self.masked)
