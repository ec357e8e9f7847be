"""Which keys a segment's objects have."""

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
        """Whether a manifest without a transaction index says that there is nothing for one."""
        return self.raw_cluster is None

    def derived_id(self, topic: str) -> Uuid | None:
        """The id that stands for a topic in a layout without topic ids; None in one that has them."""
        return None if self.raw_cluster is None else raw_topic_id(self.raw_cluster, topic)

    def topic_id(self, topic: str, value: Uuid) -> TopicId:
        """An id of a topic, from a bucket, a broker or a checkpoint, which is real unless this layout derives it."""
        return TopicId.of(value, self.derived_id(topic))

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

    def show(self, key: str) -> str:
        """The key as messages and logs show it."""
        return displayed_key(key, self.prefix, self.masked)
