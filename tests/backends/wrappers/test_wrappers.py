"""The wrappers around every store made from settings: counted calls, and limited bytes."""

from __future__ import annotations

import pickle
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.records.small_segments import MODES, memory_settings, new_metadata, write_segment
from tests.support.servers.process import free_port
from tests.support.stores.doubles import FaultyStore
from tieredstore import metrics
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.wrappers.stack import (
    LimitedStore,
    MeteredStore,
    TokenBucket,
    open_wrapped,
    shared_bucket,
    wrap,
)
from tieredstore.config import settings_from
from tieredstore.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreThrottledError,
    StoreUnavailableError,
)
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.object_store_tests import ObjectStoreTests

LIMITS = {"upload.rate.limit.bytes.per.second": "1048576", "fetch.rate.limit.bytes.per.second": "2097152"}


class FakeTime:
    """Seconds that pass only in sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def bucket(self, rate: int) -> TokenBucket:
        return TokenBucket(rate, monotonic=self.monotonic, sleep=self.sleep)


class TestWrappedStore(ObjectStoreTests):
    """A wrapped store is a store like any other."""

    picklable = False

    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        fast = FakeTime()
        inner = MeteredStore(MemoryObjectStore())
        with_limits = LimitedStore(inner, fast.bucket(1 << 20), fast.bucket(1 << 20))
        yield with_limits
        with_limits.close()


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def grown() -> Callable[..., float]:
    """Return a function that gives the growth of a sample since the test began."""
    before: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for metric in metrics.REGISTRY.collect():
        for metric_sample in metric.samples:
            before[metric_sample.name, tuple(sorted(metric_sample.labels.items()))] = metric_sample.value

    def growth(name: str, **labels: str) -> float:
        return sample(name, **labels) - before.get((name, tuple(sorted(labels.items()))), 0.0)

    return growth


def test_calls_objects_and_bytes_are_counted(grown: Callable[..., float]) -> None:
    store = MeteredStore(MemoryObjectStore())
    store.put("a", [b"12", b"345"])
    store.get("a")
    store.get("a", 1, 1)
    store.get_into("a", 2, bytearray(3))
    store.replace("a", b"1234567", store.head("a").etag or "")
    assert len(list(store.list())) == 1
    store.delete(["a", "b"])
    calls = "tieredstore_store_request_seconds_count"
    expected = {"put": 1, "get": 2, "replace": 1, "head": 1, "list": 1, "delete": 1}
    assert {name: grown(calls, store="memory", operation=name) for name in expected} == expected
    moved = {"up": (2, 12), "down": (2, 8), "deleted": (2, 0)}
    for how, (objects, byte_count) in moved.items():
        assert grown("tieredstore_store_objects_total", store="memory", how=how) == objects
        assert grown("tieredstore_store_bytes_total", store="memory", how=how) == byte_count


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreThrottledError("slow down"), "throttled"),
        (StoreUnavailableError("lost"), "transient"),
        (AccessDeniedError("no"), "denied"),
        (ObjectNotFoundError("gone"), "missing"),
        (PreconditionFailedError("taken"), "precondition"),
        (ValueError("a bug"), "other"),
    ],
)
def test_errors_are_counted_by_class(grown: Callable[..., float], error: Exception, kind: str) -> None:
    store = MeteredStore(FaultyStore(MemoryObjectStore(), lambda _: True, error=lambda: error))
    for name, call in (("get", lambda: store.get("a")), ("head", lambda: store.head("a"))):
        with pytest.raises(type(error)):
            call()
        assert grown("tieredstore_store_errors_total", store="memory", operation=name, kind=kind) == 1
        assert grown("tieredstore_store_request_seconds_count", store="memory", operation=name) == 1


def test_a_failed_put_moved_no_object(grown: Callable[..., float]) -> None:
    store = MeteredStore(MemoryObjectStore())

    def broken() -> Iterator[bytes]:
        yield b"123"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        store.put("a", broken())
    assert grown("tieredstore_store_objects_total", store="memory", how="up") == 0


def test_segments_and_readers_are_counted(grown: Callable[..., float], tmp_path: Path) -> None:
    log = bytes(range(256)) * 5
    cache = {"fetch.chunk.cache.class": "memory", "fetch.chunk.cache.size": "-1"}
    with RemoteStorageManager(memory_settings(mode=MODES["zstd+enc"], cache=cache)) as manager:
        metadata = new_metadata(len(log))
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, log))
        for _ in range(2):
            manager.fetch_log_segment(metadata, 0).read()
        assert grown("tieredstore_fetch_chunk_loads_total") == 13
        assert grown("tieredstore_chunk_cache_hits_total") == 13
        assert sample("tieredstore_chunk_cache_entries") == 13
        manager.delete_log_segment_data(metadata)
    assert grown("tieredstore_segment_copy_seconds_count") == 1
    assert grown("tieredstore_segment_fetch_requested_bytes_total") == 2 * len(log)
    assert grown("tieredstore_segment_delete_bytes_total") == len(log)
    # A closed manager's totals stay; its gauges disappear.
    assert grown("tieredstore_fetch_chunk_loads_total") == 13
    assert sample("tieredstore_chunk_cache_entries") == 0


def test_a_failed_copy_is_counted(grown: Callable[..., float], tmp_path: Path) -> None:
    store = FaultyStore(MemoryObjectStore(), 2)
    with RemoteStorageManager(memory_settings(), store=store) as manager, pytest.raises(StoreUnavailableError):
        manager.copy_log_segment_data(new_metadata(10), write_segment(tmp_path, b"x" * 10))
    assert grown("tieredstore_segment_copy_errors_total") == 1
    assert grown("tieredstore_segment_copy_seconds_count") == 0


def test_uploads_keep_to_the_limit_together() -> None:
    time = FakeTime()
    bucket = time.bucket(1000)
    stores = [LimitedStore(MemoryObjectStore(), up=bucket) for _ in range(2)]
    for number in range(10):
        stores[number % 2].put(str(number), [b"x" * 300, b"y" * 200])
    # 5,000 bytes, minus a first second's worth that was available at the start.
    assert time.now == pytest.approx(4.0)
    assert stores[0].get("0") == b"x" * 300 + b"y" * 200
    assert time.now == pytest.approx(4.0)


def test_downloads_keep_to_the_limit() -> None:
    time = FakeTime()
    store = LimitedStore(MemoryObjectStore(), down=time.bucket(1000))
    store.put("a", bytes(4000))
    store.get("a")
    store.get_into("a", 0, bytearray(2000))
    store.get("a", 1000, 2000)
    store.get("a", 5, 5)
    assert time.now == pytest.approx(6.0)


def test_every_store_of_the_settings_is_counted_and_limited_ones_are_limited(tmp_path: Path) -> None:
    texts = {"storage.backend.class": "filesystem", "storage.root": str(tmp_path), "chunk.size": "100"}
    plain = open_wrapped(settings_from(texts))
    assert isinstance(plain, MeteredStore)
    limit_rate = open_wrapped(settings_from(texts | LIMITS))
    assert isinstance(limit_rate, LimitedStore)
    assert limit_rate.identity == plain.identity == FilesystemObjectStore(tmp_path).identity
    again = pickle.loads(pickle.dumps(limit_rate))
    again.put("a", b"123")
    assert again.get("a") == plain.get("a") == b"123"


def test_one_limit_is_one_bucket_for_the_process() -> None:
    assert shared_bucket("up", None) is None
    assert shared_bucket("up", 5_000_000) is shared_bucket("up", 5_000_000)
    assert shared_bucket("up", 5_000_000) is not shared_bucket("down", 5_000_000)
    assert shared_bucket("up", 5_000_000) is not shared_bucket("up", 6_000_000)


@pytest.mark.slow
def test_the_exporter_serves_the_metrics_and_stops() -> None:
    port = free_port()
    wrap(MemoryObjectStore(), memory_settings()).put("a", b"1")
    stop = metrics.serve_metrics(port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert b"tieredstore_store_request_seconds_count" in answer.read()
    finally:
        stop()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)


def test_small_reads_together_are_counted_as_one_call_of_several_objects(
    grown: Callable[..., float], tmp_path: Path
) -> None:
    fast = FakeTime()
    store = LimitedStore(MeteredStore(FilesystemObjectStore(tmp_path), "batches"), None, fast.bucket(10))
    store.put("a", b"12")
    store.put("b", b"345")
    *read, absent = store.get_small_batch(["a", "b", "absent"], 3)
    assert read == [b"12", b"345"]
    assert isinstance(absent, ObjectNotFoundError)
    assert grown("tieredstore_store_request_seconds_count", store="batches", operation="get") == 1
    assert grown("tieredstore_store_errors_total", store="batches", operation="get", kind="missing") == 1
    assert grown("tieredstore_store_objects_total", store="batches", how="down") == 2
    assert grown("tieredstore_store_bytes_total", store="batches", how="down") == 5
    store.get_small_batch(["a", "b", "a", "b", "a"], 3)
    assert fast.now > 0
