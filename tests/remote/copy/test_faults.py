"""The store fails at each operation of copy, fetch and delete: nothing partial is visible, nothing leaks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.records.small_segments import MODES, memory_settings, new_metadata, write_segment
from tests.support.stores.doubles import CountingStore, FaultyStore, Moment, Operation
from tests.support.stores.operation_sweep import OperationSweep
from tests.support.waiting import wait_until
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import AccessDeniedError, StoreUnavailableError, TieredStoreError
from tieredstore.format.keys import Suffix
from tieredstore.model import IndexType, LogSegmentData, RemoteLogSegmentMetadata
from tieredstore.remote import RemoteStorageManager

LOG = bytes(range(256)) * 5
MOMENTS: list[Moment] = ["before", "during", "after"]
ERRORS: list[Callable[[], BaseException]] = [
    lambda: StoreUnavailableError("throttled"),
    lambda: AccessDeniedError("denied"),
    KeyboardInterrupt,
]
COPY_OPERATIONS = ["head", "put", "put", "get", "get", "put"]
# Leave out a failure after the first head. The first head finds no object of the new segment id, so it raises an error,
# and has no answer to lose.
FAILURES: list[tuple[int, Moment]] = [
    (number, moment) for number in range(len(COPY_OPERATIONS)) for moment in MOMENTS if (number, moment) != (0, "after")
]


@pytest.fixture(params=["none", "zstd+enc"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def files(tmp_path: Path) -> LogSegmentData:
    return write_segment(tmp_path, LOG)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    # Compare sets, because threads of earlier tests may end during the test.
    before = set(threading.enumerate())
    yield
    # A thread that has finished its work may take a moment to end.
    wait_until(lambda: set(threading.enumerate()) <= before)


def manager_of(store: ObjectStore, mode: str) -> RemoteStorageManager:
    return RemoteStorageManager(memory_settings(mode=MODES[mode]), store=store)


def keys(store: MemoryObjectStore) -> list[str]:
    return [info.key.rpartition(".")[2] for info in store.list()]


def assert_whole_or_invisible(store: MemoryObjectStore, metadata: RemoteLogSegmentMetadata, mode: str) -> None:
    """Assert that a manifest exists only together with all objects that it points to."""
    if "rsm-manifest" in keys(store):
        with manager_of(store, mode) as manager:
            assert manager.fetch_log_segment(metadata, 0).read() == LOG
            assert len(manager.fetch_all_indexes(metadata)) == 5


def test_a_copy_is_one_head_three_puts_and_two_looks_before_the_last(mode: str, files: LogSegmentData) -> None:
    store = CountingStore(MemoryObjectStore())
    with manager_of(store, mode) as manager:
        manager.copy_log_segment_data(new_metadata(len(LOG)), files)
    assert [operation.name for operation in store.operations] == COPY_OPERATIONS
    assert [key.rpartition(".")[2] for key in store.keys_of("put")] == ["log", "indexes", "rsm-manifest"]


@pytest.mark.parametrize("error", ERRORS, ids=["unavailable", "denied", "interrupted"])
@pytest.mark.parametrize(("number", "moment"), FAILURES)
def test_a_copy_that_fails_anywhere_leaves_nothing(
    mode: str, files: LogSegmentData, number: int, moment: Moment, error: Callable[[], BaseException]
) -> None:
    inner = MemoryObjectStore()
    store = FaultyStore(inner, number, error=error, moment=moment)
    with manager_of(store, mode) as manager:
        expected = error()
        with pytest.raises(type(expected)) as raised:
            manager.copy_log_segment_data(new_metadata(len(LOG)), files)
        assert str(raised.value).endswith(str(expected))
        if isinstance(raised.value, TieredStoreError):
            assert raised.value.retryable is isinstance(expected, StoreUnavailableError)
        assert len(store.failed) == 1
        assert keys(inner) == []
        # The failed attempt's remains do not obstruct the next attempt, which has another id.
        metadata = new_metadata(len(LOG))
        manager.copy_log_segment_data(metadata, files)
        assert manager.fetch_log_segment(metadata, 0).read() == LOG


@pytest.mark.slow
@pytest.mark.parametrize(("number", "moment"), FAILURES)
def test_a_clean_up_that_fails_too_never_shows_half_a_segment(
    files: LogSegmentData, number: int, moment: Moment
) -> None:
    for second in itertools.product(range(1, 10), MOMENTS):
        inner, metadata = MemoryObjectStore(), new_metadata(len(LOG))
        store = FaultyStore(FaultyStore(inner, number, moment=moment), second[0], moment=second[1])
        with manager_of(store, "zstd+enc") as manager, pytest.raises(StoreUnavailableError) as raised:
            manager.copy_log_segment_data(metadata, files)
        assert_whole_or_invisible(inner, metadata, "zstd+enc")
        left = set(keys(inner))
        notes = " ".join(getattr(raised.value, "__notes__", []))
        assert all(f".{suffix}" in notes for suffix in left), second  # remaining objects are named


@pytest.mark.slow
def test_a_store_that_dies_for_good_never_shows_half_a_segment(mode: str, files: LogSegmentData) -> None:
    for dies_at, moment in FAILURES:
        inner, metadata = MemoryObjectStore(), new_metadata(len(LOG))

        def dead(operation: Operation, since: int = dies_at) -> bool:
            return operation.number >= since

        with manager_of(FaultyStore(inner, dead, moment=moment), mode) as manager, pytest.raises(StoreUnavailableError):
            manager.copy_log_segment_data(metadata, files)
        assert_whole_or_invisible(inner, metadata, mode)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_fetch_that_fails_says_so_and_goes_on_when_tried_again(
    mode: str, files: LogSegmentData, moment: Moment
) -> None:
    inner, metadata = MemoryObjectStore(), new_metadata(len(LOG))
    with manager_of(inner, mode) as manager:
        manager.copy_log_segment_data(metadata, files)

    def fetch(store: ObjectStore) -> None:
        with manager_of(store, mode) as manager:
            assert manager.fetch_log_segment(metadata, 0).read() == LOG

    for _, _, store in OperationSweep(lambda: inner, fetch, numbers=slice(1, None)).fail(moment):
        with manager_of(store, mode) as manager:
            stream = manager.fetch_log_segment(metadata, 0)
            with pytest.raises(StoreUnavailableError) as raised:
                stream.read()
            assert raised.value.retryable
            assert stream.read() == LOG  # the failed read consumed nothing
    reads: list[Callable[[RemoteStorageManager], object]] = [
        lambda manager: manager.fetch_log_segment(metadata, 0),
        lambda manager: manager.fetch_index(metadata, IndexType.OFFSET),
        lambda manager: manager.fetch_all_indexes(metadata),
    ]
    for read in reads:
        with manager_of(FaultyStore(inner, 0, moment=moment), mode) as manager, pytest.raises(StoreUnavailableError):
            read(manager)


def test_all_indexes_cost_one_request_beside_the_manifest(mode: str, files: LogSegmentData) -> None:
    store, metadata = CountingStore(MemoryObjectStore()), new_metadata(len(LOG))
    with manager_of(store, mode) as manager:
        manager.copy_log_segment_data(metadata, files)
        store.reset()
        assert len(manager.fetch_all_indexes(metadata)) == 5
    assert [operation.keys[0].rpartition(".")[2] for operation in store.operations] == ["rsm-manifest", "indexes"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_delete_that_fails_leaves_a_whole_segment_or_none_and_can_be_repeated(
    mode: str, files: LogSegmentData, number: int, moment: Moment
) -> None:
    inner, metadata = MemoryObjectStore(), new_metadata(len(LOG))
    with manager_of(inner, mode) as manager:
        manager.copy_log_segment_data(metadata, files)
    with manager_of(FaultyStore(inner, number, moment=moment), mode) as manager:
        with pytest.raises(StoreUnavailableError):
            manager.delete_log_segment_data(metadata)
        assert_whole_or_invisible(inner, metadata, mode)
        manager.delete_log_segment_data(metadata)
    assert keys(inner) == []


def test_the_manifest_goes_first(files: LogSegmentData) -> None:
    store, metadata = CountingStore(MemoryObjectStore()), new_metadata(len(LOG))
    with manager_of(store, "none") as manager:
        manager.copy_log_segment_data(metadata, files)
        store.reset()
        manager.delete_log_segment_data(metadata)
        expected = [manager.layout.key(metadata, suffix) for suffix in (Suffix.MANIFEST, Suffix.LOG, Suffix.INDEXES)]
        assert [operation.keys for operation in store.operations] == [tuple(expected[:1]), tuple(expected[1:])]
