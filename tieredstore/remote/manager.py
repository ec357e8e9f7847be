"""The remote storage manager: Kafka's interface (KIP-405) over a store, made from settings."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

from tieredstore.backends.base import ObjectStore
from tieredstore.format.custom_metadata import CustomMetadata, CustomMetadataField
from tieredstore.format.keys import Suffix, main_path
from tieredstore.format.manifest import ManifestRules, SegmentManifest
from tieredstore.metrics import counting
from tieredstore.model import IndexType, LogSegmentData, RemoteLogSegmentMetadata
from tieredstore.places.opening import open_places
from tieredstore.process.closing import Closer, Closing
from tieredstore.process.lifetime import Lifetime
from tieredstore.process.thread_pool import ThreadPool, ThreadsOfProcess
from tieredstore.remote.copy.writer import CopiedSegment, SegmentWriter, StoredSizes, WriteOptions, count_threads
from tieredstore.remote.fetch.cached_loads import CachedLoads
from tieredstore.remote.fetch.fetcher import Fetcher
from tieredstore.remote.fetch.indexes import Indexes
from tieredstore.remote.fetch.manifests import Manifests, weight_of_manifest
from tieredstore.remote.fetch.segment_logs import range_of_request
from tieredstore.remote.fetch.stream import SegmentStream
from tieredstore.remote.key_ring import key_ring_of
from tieredstore.remote.layout import KeyLayout
from tieredstore.remote.managed_store import ManagedStore, ManagerCalls
from tieredstore.remote.manifest_object import delete_manifest_first, rules_of
from tieredstore.remote.statistics import FetchStats
from tieredstore.remote.stores import StoreLike, resolve_store

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.remote.copy.raw_writer import RawSegmentWriter
    from tieredstore.remote.fetch.raw_indexes import RawIndexes
    from tieredstore.remote.stores import NamedStore
    from tieredstore.transform.encryption import RandomBytes
    from tieredstore.transform.keyring import KeyRing

CLOSE_S: Final = 2.0
"""Maximum time for closing a manager, in seconds."""

_REST_S: Final = 0.7
"""Seconds that ``close`` waits for running work, so that a copy can roll back."""

NextSegment: TypeAlias = Callable[[], RemoteLogSegmentMetadata | None]
"""Function that returns the segment after the current one, or None at the end. The reader calls the function once, on
its own thread, so the function must be fast.
"""


@dataclass(frozen=True, slots=True)
class Pools:
    """Threads of a manager: three pools, because a task must not wait for another task of the same pool.

    ``transform`` encodes and decodes chunks. ``fetch`` waits for ranged GETs of logs, ``lookup`` for manifests and
    indexes. A fetch task may wait for a lookup task. Tasks of the other pools wait for no task.
    """

    transform: Executor
    fetch: Executor
    lookup: Executor

    @classmethod
    def of_threads(cls, *, transform: int, fetch: int, lookup: int) -> Pools:
        """Make pools with at most these numbers of threads (0: one per processor). Threads start on demand."""
        sizes = {"transform": transform, "fetch": fetch, "lookup": lookup}
        return cls(
            **{name: ThreadPool(size or os.cpu_count() or 1, f"tieredstore-{name}") for name, size in sizes.items()}
        )

    def of_this_process(self) -> Pools:
        """Wrap the pools so that a forked child refuses to use them."""
        return Pools(*(ThreadsOfProcess(pool) for pool in (self.transform, self.fetch, self.lookup)))

    def bind(self, life: Lifetime) -> Pools:
        """Wrap the pools so that the futures of their tasks end with ``life``."""
        return Pools(life.bind(self.transform), life.bind(self.fetch), life.bind(self.lookup))

    def shutdown(self, wait: bool) -> None:
        """Drop queued tasks. Wait for running tasks if ``wait``, otherwise abandon them."""
        for pool in (self.lookup, self.fetch, self.transform):
            pool.shutdown(wait, cancel_futures=True)


class RemoteStorageManager(Closing):
    """Manager that copies, fetches and deletes segments, byte-compatible with Aiven's plugin. Safe from several
    threads.

    A manager holds thread pools and caches: close it, or use it as a context manager. After ``close``, its methods,
    streams and store raise AlreadyClosedError. Running calls raise it at once.

    The class has more than twelve fields, because it assembles the parts of a manager. Only the field ``_is_at_rest``
    changes.

    Example::

        segment = bucket.inspect("orders", 0, 0).metadata
        with tieredstore.RemoteStorageManager("store.properties") as manager:
            log = manager.fetch_log_segment(segment, 0).read()
    """

    def __init__(
        self,
        source: StoreLike,
        *,
        store: ObjectStore | None = None,
        random_bytes: RandomBytes = os.urandom,
        pools: Pools | None = None,
        shares_read_ahead: bool = False,
    ) -> None:
        """Open the store of ``source``, which may have any form that :func:`tieredstore.open` accepts.

        ``store`` replaces the store in the settings, and ``pools`` the threads. The caller closes both.
        ``random_bytes`` makes keys and IVs. With ``shares_read_ahead``, the settings' read-ahead limit applies to all
        readers of this manager together, not to each.
        """
        settings, named = resolve_store(source)
        self.settings: Settings = settings
        self.named: NamedStore | None = named
        """The origin of the settings, or None if the caller passed a settings object."""
        self.layout: KeyLayout = KeyLayout(
            settings.key_prefix,
            settings.key_prefix_mask,
            settings.endpoint.cluster if settings.endpoint.is_raw else None,
        )
        self.manifest_rules: ManifestRules = rules_of(settings)
        self.key_ring: KeyRing | None = key_ring_of(settings)
        self._fields = tuple(CustomMetadataField[name] for name in settings.custom_metadata_fields)
        with contextlib.ExitStack() as opened:  # closes everything if a later step fails
            owns_store = store is None
            if store is None:
                store = opened.enter_context(contextlib.closing(open_places(settings)))
            self._life = Lifetime("the remote storage manager")
            self._calls = ManagerCalls(self._life)
            self._is_at_rest = True  # if this constructor fails, ``close`` need not wait
            opened.callback(lambda: self._calls.shutdown(self._is_at_rest))
            self._store = store
            self._owns_store = owns_store
            self.store: ObjectStore = ManagedStore(store, self._calls)
            """The store, usable while the manager is open."""
            if pools is None:
                pools = Pools.of_threads(
                    transform=count_threads(settings),
                    fetch=settings.fetch.parallelism,
                    lookup=settings.fetch.manifest_cache.thread_pool_size,
                )
                own_pools = pools
                opened.callback(lambda: own_pools.shutdown(self._is_at_rest))
            else:
                pools = pools.of_this_process()
            fetch, life, bound = settings.fetch, self._life, pools.bind(self._life)
            loads = CachedLoads(
                fetch.manifest_cache, weight_of_manifest, "the segment's manifest", pool=bound.lookup, life=life
            )
            manifests = Manifests(store, self.layout, self.key_ring, loads=loads, rules=self.manifest_rules)
            self._fetcher = Fetcher.of_settings(fetch, manifests, bound, life, shares_read_ahead=shares_read_ahead)
            opened.callback(self._fetcher.close)
            self._fetcher.export(opened)
            self._indexes: Indexes | RawIndexes = self._fetcher.indexes
            options = WriteOptions.of_settings(settings, self.key_ring)
            self._writer: SegmentWriter | RawSegmentWriter = SegmentWriter(
                store, self.layout, options, pool=pools.transform, random_bytes=random_bytes
            )
            if settings.endpoint.is_raw:
                # Import these modules only when needed, because few buckets have the raw layout.
                from tieredstore.remote.copy.raw_writer import RawSegmentWriter  # noqa: PLC0415
                from tieredstore.remote.fetch.raw_indexes import RawIndexes  # noqa: PLC0415

                self._indexes = RawIndexes(self._fetcher.indexes, self._fetcher.logs.open, self._fetcher.manifests)
                self._writer = RawSegmentWriter(store, self.layout)
            self._opened = opened.pop_all()
        self._closer = Closer(self._life.end, self._close)

    def copy_log_segment_data(
        self,
        metadata: RemoteLogSegmentMetadata,
        log_segment_data: LogSegmentData,
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> bytes | None:
        """Copy a closed segment and return its custom metadata, or None if ``custom.metadata.fields.include`` is empty.

        This method is :meth:`copy_segment` with Kafka's name and parameters.
        """
        return self.copy_segment(metadata, log_segment_data, on_progress=on_progress).custom_metadata

    def copy_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        log_segment_data: LogSegmentData,
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> CopiedSegment:
        """Copy a closed segment and return its stored size and its custom metadata.

        The manifest is written last and commits the segment. ``on_progress`` is called on another thread, with the
        stored bytes of each chunk.

        Raise SegmentAlreadyExistsError if a segment was copied under the same id before. Raise InvalidSegmentError or
        SegmentTooLargeError before anything is written. After any error, nothing of the attempt is visible.
        """
        with counting.SEGMENT_COPY_ERRORS.count_exceptions():
            started = perf_counter()
            write = partial(self._writer.copy, metadata, log_segment_data, on_progress)
            sizes = self._calls.run_writing(str(metadata), write)
        counting.SEGMENT_COPY.observe(perf_counter() - started)
        return CopiedSegment(sizes, self._custom_metadata(metadata, sizes))

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
        *,
        next_segment: NextSegment | None = None,
    ) -> SegmentStream:
        """Open the log's bytes ``start_position..end_position``, the end **inclusive** and clamped to the last byte.

        Raise InvalidRangeError if the range is empty but the log is not. Raise SegmentNotFoundError if the segment has
        no manifest. For damaged bytes, this call or a read of the stream raises SegmentCorruptError.

        ``next_segment`` returns the segment that the caller will fetch next. Read-ahead then continues into the first
        bytes of that segment.
        """
        log_range = range_of_request(metadata, start_position, end_position)
        counting.SEGMENT_FETCH_REQUESTED_BYTES.add(len(log_range))
        return self._fetcher.logs.open(metadata, log_range, next_segment)

    def open(self, metadata: RemoteLogSegmentMetadata) -> SegmentStream:
        """Open the whole log as a seekable, read-only file."""
        return self._fetcher.logs.open(metadata)

    def fetch_manifest(self, metadata: RemoteLogSegmentMetadata) -> SegmentManifest:
        """Fetch the segment's manifest, without a private key."""
        return self._fetcher.manifests.get(metadata).manifest

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> BinaryIO:
        """Fetch one index; raise IndexNotRecordedError if the segment was copied without it."""
        return self._indexes.one(metadata, index_type)

    def fetch_indexes(
        self, metadata: RemoteLogSegmentMetadata, index_types: Iterable[IndexType]
    ) -> dict[IndexType, BinaryIO]:
        """Fetch the requested indexes that were recorded, by one request each for manifest and indexes."""
        return self._indexes.get(metadata, index_types)

    def fetch_all_indexes(self, metadata: RemoteLogSegmentMetadata) -> dict[IndexType, BinaryIO]:
        """Fetch every recorded index."""
        return self.fetch_indexes(metadata, IndexType)

    @property
    def fetch_stats(self) -> FetchStats:
        """Totals of all fetches by this manager so far."""
        return self._fetcher.counters.snapshot()

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the manifest, then the other objects, so that a half-deleted segment is never visible. Idempotent.

        As in the plugin, the deleted keys have the current prefix, even if the custom metadata contain another prefix.
        """
        # Drop cached entries first, so that they do not keep a deleted segment visible.
        self._fetcher.forget(metadata)
        with counting.SEGMENT_DELETE_ERRORS.count_exceptions():
            started = perf_counter()
            keys = [self.layout.key(metadata, suffix) for suffix in Suffix]
            self._calls.run(lambda: delete_manifest_first(self._store, keys))
        counting.SEGMENT_DELETE.observe(perf_counter() - started)
        counting.SEGMENT_DELETE_BYTES.add(metadata.segment_size_in_bytes)

    def on_this_thread(self) -> contextlib.AbstractContextManager[None]:
        """Within the block, run copies and store calls on this thread, not on a thread of the manager.

        If the store does not answer a call, this thread is blocked, even after the manager is closed. So use the block
        only on a thread that another thread watches and may abandon.
        """
        return self._calls.on_this_thread()

    def check_open(self) -> None:
        """Raise AlreadyClosedError if the manager was closed."""
        self._life.check()

    def close(self) -> None:
        """Stop running work and close the caches. Close the store too, unless the caller passed it. Idempotent.

        Closing takes at most about two seconds. If the store does not answer a call, the manager abandons the call and
        its thread. Several threads and a signal handler may call ``close``.
        """
        self._closer.close(CLOSE_S)

    def _close(self) -> None:
        self._is_at_rest = self._life.rest(_REST_S)
        self._opened.close()
        if not self._is_at_rest and self._owns_store:
            self._life.rest(None)
            self._store.close()  # abandoned calls may have opened the store again

    def _custom_metadata(self, metadata: RemoteLogSegmentMetadata, sizes: StoredSizes) -> bytes | None:
        if not self._fields:
            return None
        path = main_path(metadata.remote_log_segment_id, metadata.start_offset)
        return CustomMetadata(sizes.total, self.layout.prefix, path).only(self._fields).to_bytes()
