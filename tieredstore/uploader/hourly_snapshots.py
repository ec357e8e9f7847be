"""The cluster's hourly snapshot: all uploaders of the cluster try to write it, and one succeeds.

This is a separate module because snapshots use their own client for the brokers, and a failed snapshot never stops an
upload.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tieredstore.config.properties import read_properties
from tieredstore.errors import TieredStoreError
from tieredstore.ops.snapshots.storing import Snapshots
from tieredstore.ops.snapshots.taking import write_hourly
from tieredstore.process.closing import Closing

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager
    from tieredstore.uploader.metrics import Counts
    from tieredstore.uploader.settings import UploaderSettings

_logger: Final = logging.getLogger(__name__)


class HourlySnapshots(Closing):
    """Writes the present hour's snapshot unless another uploader has written it. Deletes snapshots older than
    ``uploader.snapshots.retention.ms``.

    ``client`` has the properties of the Kafka client. ``manager`` returns the manager of the store in use now.
    """

    def __init__(
        self,
        own: UploaderSettings,
        client: Mapping[str, str],
        manager: Callable[[], RemoteStorageManager],
        counts: Counts,
    ) -> None:
        """Set up the clients; nothing connects yet. Raise ConfigError for an invalid configuration file of the schema
        registry."""
        # These modules import librdkafka and an HTTP client, which an uploader without snapshots does not need.
        from tieredstore.live.cluster_state import ClusterState  # noqa: PLC0415

        self._retention_ms = own.snapshots_retention_ms
        self._manager, self._counts = manager, counts
        self._cluster = ClusterState(client)
        self._registry = None
        if own.snapshots_registry_config is not None:
            from tieredstore.schema_registry import SchemaRegistry  # noqa: PLC0415

            self._registry = SchemaRegistry(properties=read_properties(own.snapshots_registry_config))
        self._has_failed = False

    def write(self) -> None:
        """Write the snapshot and delete old snapshots. Count each failure, but log only the first of consecutive
        failures.
        """
        try:
            snapshots = Snapshots.of(self._manager())
            if write_hourly(snapshots, self._cluster, self._registry):
                self._counts.snapshots += 1
                if self._retention_ms >= 0:
                    snapshots.expire(self._retention_ms, int(time.time() * 1000))
        except Exception as error:
            self._counts.failed_snapshots += 1
            if not self._has_failed:
                trace = None if isinstance(error, TieredStoreError) else error
                _logger.warning(
                    "the cluster's snapshot cannot be written; it is retried, and uploads go on: %s",
                    error,
                    exc_info=trace,
                )
            self._has_failed = True
        else:
            self._has_failed = False

    def close(self) -> None:
        """Close the clients."""
        self._cluster.close()
        if self._registry is not None:
            self._registry.close()
