"""A copy commits only whole segments, and only while it is younger than a clean-up's minimum age."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.records.small_segments import new_metadata, write_segment
from tests.support.simulated_time import SimulatedClock
from tests.support.stores.doubles import CountingStore, ScriptedStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import AccessDeniedError, StoreError, StoreUnavailableError
from tieredstore.format.keys import Suffix
from tieredstore.model import LogSegmentData
from tieredstore.process.deadline import boot_clock_s
from tieredstore.remote.copy.writer import SegmentWriter, WriteOptions
from tieredstore.remote.layout import KeyLayout

LOG = bytes(range(256)) * 5
MAX_AGE_S = 100.0


def acting(inner: ObjectStore, suffix: Suffix, act: Callable[[ObjectStore, str], None]) -> ObjectStore:
    """Return a store that runs ``act`` right after a put of an object with one suffix."""
    put = f"*.{suffix.value}"
    return ScriptedStore(inner).on("put", put, lambda operation: act(inner, operation.keys[0]), moment="after")


@pytest.fixture
def files(tmp_path: Path) -> LogSegmentData:
    return write_segment(tmp_path, LOG)


@pytest.fixture
def pool() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def copy(store: ObjectStore, files: LogSegmentData, pool: ThreadPoolExecutor, clock: Callable[[], float]) -> None:
    options = WriteOptions(chunk_size=1024, max_age_s=MAX_AGE_S)
    writer = SegmentWriter(store, KeyLayout("", False), options, pool=pool, clock=clock)
    writer.copy(new_metadata(len(LOG)), files)


def keys(store: ObjectStore) -> list[str]:
    return [info.key.rpartition(".")[2] for info in store.list()]


@pytest.mark.parametrize("slow", list(Suffix))
def test_an_attempt_that_took_too_long_leaves_nothing(
    files: LogSegmentData, pool: ThreadPoolExecutor, slow: Suffix
) -> None:
    inner, clock = MemoryObjectStore(), SimulatedClock()

    def wait(_store: ObjectStore, _key: str) -> None:
        clock.now += MAX_AGE_S + 1

    counted = CountingStore(inner)
    with pytest.raises(StoreUnavailableError, match=r"longer than 100 s \(upload.max.age.ms\)"):
        copy(acting(counted, slow, wait), files, pool, clock)
    assert keys(inner) == []
    # The age is checked even after the write of the manifest. A clean-up that listed the segment before this write may
    # be deleting the other objects.
    assert counted.requests["put"] == list(Suffix).index(slow) + 1


def test_an_attempt_at_the_very_limit_commits(files: LogSegmentData, pool: ThreadPoolExecutor) -> None:
    inner, clock = MemoryObjectStore(), SimulatedClock()

    def wait(_store: ObjectStore, _key: str) -> None:
        clock.now += MAX_AGE_S

    copy(acting(inner, Suffix.LOG, wait), files, pool, clock)
    assert len(keys(inner)) == 3


@pytest.mark.parametrize("gone", [Suffix.LOG, Suffix.INDEXES])
def test_no_manifest_is_written_over_what_was_deleted(
    files: LogSegmentData, pool: ThreadPoolExecutor, gone: Suffix
) -> None:
    inner = MemoryObjectStore()

    def delete(store: ObjectStore, key: str) -> None:
        store.delete([f"{key.rpartition('.')[0]}.{gone.value}"])

    counted = CountingStore(inner)
    with pytest.raises(StoreUnavailableError, match=rf"{gone.value} was deleted before its manifest was written"):
        copy(acting(counted, Suffix.INDEXES, delete), files, pool, SimulatedClock())
    assert keys(inner) == []
    assert not any(key.endswith("manifest") for key in counted.keys_of("put"))


@pytest.mark.parametrize("change", [b"", b"short", LOG + b"x"])
def test_no_manifest_is_written_over_an_object_of_another_size(
    files: LogSegmentData, pool: ThreadPoolExecutor, change: bytes
) -> None:
    inner = MemoryObjectStore()
    with pytest.raises(StoreError, match="does not have the expected 1280 bytes"):
        copy(acting(inner, Suffix.LOG, lambda store, key: store.put(key, change)), files, pool, SimulatedClock())
    assert keys(inner) == []


@pytest.mark.parametrize("denied", list(Suffix))
def test_a_denied_write_is_the_cause_and_only_earlier_objects_are_named(
    files: LogSegmentData, pool: ThreadPoolExecutor, denied: Suffix, caplog: pytest.LogCaptureFixture
) -> None:
    inner = MemoryObjectStore()
    refusal = AccessDeniedError("the store answered AccessDenied")
    store = ScriptedStore(inner).on("put", f"*.{denied.value}", refusal).on("delete", do=refusal)
    with pytest.raises(AccessDeniedError, match=r"^writing was denied: the store answered") as caught:
        copy(store, files, pool, boot_clock_s)
    named = [suffix for suffix in Suffix if f".{suffix.value}" in caplog.text]
    assert named == list(Suffix)[: list(Suffix).index(denied)]
    assert len(getattr(caught.value, "__notes__", ())) == len(caplog.messages) == bool(named)


def test_the_looks_cost_two_reads_of_a_byte(tmp_path: Path, files: LogSegmentData, pool: ThreadPoolExecutor) -> None:
    (tmp_path / "store").mkdir()
    counted = CountingStore(FilesystemObjectStore(tmp_path / "store"))
    copy(counted, files, pool, boot_clock_s)
    assert (counted.requests["get"], counted.bytes_down) == (2, 2)


def test_the_boot_clock_goes_on() -> None:
    first = boot_clock_s()
    assert 0 < first <= boot_clock_s()
