"""The store that receives the uploads, with the objects built from its settings. A reload replaces the whole
`Target`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.committed import CommittedSegments
from tieredstore.catalog.watermark import Watermark
from tieredstore.config import Settings
from tieredstore.config.endpoint import EndpointSettings
from tieredstore.errors import ConfigError
from tieredstore.kafka.logdir import LogSegment
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, Uuid
from tieredstore.ops.listing import QUARANTINE
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote import RemoteStorageManager
from tieredstore.uploader.tries import Tries, TryLimit, WatchedStore
from tieredstore.uploader.watermarks import WatermarkStore

_READERS: Final = 8
_STALL_MS: Final = 60_000
_LOOK_S: Final = 0.05
_QUARANTINE_CHUNK: Final = 1 << 20


@dataclass(slots=True)
class Target:
    """A store of segments: ``manager`` uploads segments, and ``store`` is for all other requests. Both share the
    settings."""

    settings: Settings
    manager: RemoteStorageManager
    store: ObjectStore
    committed: CommittedSegments
    watermarks: WatermarkStore
    pool: ThreadPool

    @classmethod
    def open(cls, settings: Settings, store: ObjectStore | None, tries: Tries, limit: TryLimit) -> Target:
        """Open the settings' store, or use ``store``, which the caller closes. Raise ConfigError if the store has no
        conditional writes.
        """
        if "upload_stall_timeout_ms" not in settings.model_fields_set:
            settings = settings.model_copy(update={"upload_stall_timeout_ms": _STALL_MS})
        with contextlib.ExitStack() as opened:
            manager = opened.enter_context(RemoteStorageManager(settings, store=store))
            if not manager.store.conditional_writes:
                raise ConfigError(
                    f"the store {manager.store.identity} has no conditional writes, which watermarks need: "
                    "choose another store"
                )
            pool = ThreadPool(_READERS, "tieredstore-watermarks")
            opened.pop_all()

        def watch(what: str, size: int) -> contextlib.AbstractContextManager[object]:
            return tries.under_way(what, limit.time_for(settings, size))

        watched = WatchedStore(manager.store, watch)
        committed = CommittedSegments(watched, settings.key_prefix, rules=manager.manifest_rules)
        watermarks = WatermarkStore(watched, manager.layout, pool, committed, manager.manifest_rules)
        return cls(settings, manager, watched, committed, watermarks, pool)

    def reach(self, watermark: Watermark) -> None:
        """In the raw layout, move the watermark of Pinterest's uploader up to ``watermark``. Call this after reading
        this package's watermark, and before moving it.

        Pinterest's readers know only the watermark of Pinterest's uploader. With this order of calls, that watermark
        never falls behind this package's watermark, even if the process is killed between the two writes.
        """
        segment = watermark.segment
        if segment is None or not self.settings.endpoint.is_raw:
            return
        # Import here, because few buckets are raw.
        from tieredstore.remote.copy.raw_writer import RawSegmentWriter  # noqa: PLC0415

        segment_id = RemoteLogSegmentId(watermark.where, Uuid.parse(segment.id))
        RawSegmentWriter(self.store, self.manager.layout).reach(segment_id, segment.base_offset)

    def quarantine(self, metadata: RemoteLogSegmentMetadata, log: LogSegment) -> str:
        """Store a segment's files unchanged under a separate prefix that readers do not list. Return the prefix.

        The files are stored in the plugin's format with the same encryption, so the same commands read them.
        """
        prefix = f"{self.settings.key_prefix}{QUARANTINE}"
        # Quarantined segments of a raw bucket are stored in the plugin's format too, because the raw layout has no
        # encryption, and no place for damaged segments.
        own = {"key_prefix": prefix, "chunk_size": min(self.settings.chunk_size, _QUARANTINE_CHUNK)}
        settings = self.settings.model_copy(update={**own, "endpoint": EndpointSettings()})
        with RemoteStorageManager(settings, store=self.store) as manager:
            manager.copy_log_segment_data(metadata, log.files)
        return prefix

    def close_later(self, is_used: Callable[[], bool], within_s: float) -> None:
        """Close the target in a thread as soon as it is unused. After ``within_s``, close it in any case."""

        def wait() -> None:
            end_s = time.monotonic() + within_s
            while is_used() and time.monotonic() < end_s:
                time.sleep(_LOOK_S)
            self.close()

        threading.Thread(target=wait, name="tieredstore-uploader-old", daemon=True).start()

    def close(self) -> None:
        """End running work. Close the store unless the caller gave it."""
        self.manager.close()
        self.pool.shutdown(wait=False, cancel_futures=True)
