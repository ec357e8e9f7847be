"""Keys of a segment's objects."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.format.custom_metadata import CustomMetadata
from tieredstore.format.keys import Suffix, displayed_key, main_path, object_key
from tieredstore.model import RemoteLogSegmentMetadata, TopicId, Uuid
from tieredstore.places.raw_keys import raw_topic_id


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """Key layout given by the settings ``key.prefix`` and ``key.prefix.mask``.

    ``raw_cluster`` is the cluster's name in the raw layout, and None in the plugin's layout. The raw layout stores no
    topic ids and no transaction indexes.
    """

    prefix: str = ""
    masked: bool = False
    raw_cluster: str | None = None

    @property
    def tells_transactions(self) -> bool:
        """True if a segment without a transaction index certainly has no aborted transaction."""
        return self.raw_cluster is None

    def derived_id(self, topic: str) -> Uuid | None:
        """If the layout stores no topic ids, return the id that is derived from the topic's name. Otherwise, return
        None."""
        return None if self.raw_cluster is None else raw_topic_id(self.raw_cluster, topic)

    def topic_id(self, topic: str, value: Uuid) -> TopicId:
        """Wrap a topic id from a bucket, a broker or a checkpoint. Mark the id as derived if this layout stores
        no ids."""
        return TopicId.of(value, self.derived_id(topic))

    def key(self, metadata: RemoteLogSegmentMetadata, suffix: Suffix) -> str:
        """Return an object's key under the current prefix. Use it to write, to delete, and to read manifests."""
        return object_key(self.prefix, main_path(metadata.remote_log_segment_id, metadata.start_offset), suffix)

    def data_key(self, metadata: RemoteLogSegmentMetadata, suffix: Suffix) -> str:
        """Return the key from which to read ``.log`` or ``.indexes``. A key in the custom metadata takes precedence."""
        # Take the prefix from the segment's custom metadata, because a change of the setting applies only to new
        # segments.
        recorded = CustomMetadata.from_bytes(metadata.custom_metadata or b"")
        prefix = self.prefix if recorded.object_prefix is None else recorded.object_prefix
        path = recorded.object_key or main_path(metadata.remote_log_segment_id, metadata.start_offset)
        return object_key(prefix, path, suffix)

    def show(self, key: str) -> str:
        """Return the key as messages and logs show it."""
        return displayed_key(key, self.prefix, self.masked)
