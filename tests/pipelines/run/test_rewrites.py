"""Committed files that the store dropped, written again by a codec that packs otherwise: told before they are seen."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any, Final

import pytest
import zstandard

from tests.support.pipelines.pipeline_runs import listed, pipeline_of, run_once
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import DelegatingObjectStore, FaultyStore
from tests.support.stores.operation_sweep import DyingStore, Killed
from tieredstore.backends.base import ObjectStore, Prepared
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import StoreUnavailable
from tieredstore.pipelines.log.entries import OutputFile
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.inspection import verify_output
from tieredstore.pipelines.upkeep.output_files import read_records

TEXT: Final = pipeline_of(
    secor__file__reader__writer__factory="text", secor__compression__codec="zstd", max__file__records="100"
)
"""Three files, each with another beside it, which no level changes."""


def last_files(store: ObjectStore) -> dict[str, OutputFile]:
    """Those of the last entry that has files, by key."""
    log = commit_log_of(TEXT, store)
    return {file.key: file for file in log.entry(log.read().written).files}


def committed_and_dropped(topic: StoredTopic, store: ObjectStore) -> dict[str, OutputFile]:
    """The files of a batch that is committed, and whose uploads are gone but for the first one."""
    with pytest.raises(StoreUnavailable):
        run_once(topic, FaultyStore(store, lambda operation: operation.name == "publish"), TEXT)
    committed = last_files(store)
    for key, file in committed.items():
        if f"{0:020}" not in key:
            assert store.discard(file.prepared)
    assert listed(store) == []
    return committed


class Packing:
    """How files are packed from now on: ``other``, as another version of the library might, or as usual."""

    def __init__(self) -> None:
        self.other = False
        self._compressor: Any = zstandard.ZstdCompressor

    def __call__(self, level: int) -> Any:
        return self._compressor(level=level, write_checksum=self.other)


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> Packing:
    packing = Packing()
    monkeypatch.setattr(zstandard, "ZstdCompressor", packing)
    return packing


class Witness(DelegatingObjectStore):
    """Notes of each file that is published what the log says of it at that moment."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.said: dict[str, tuple[str, int, str]] = {}

    def publish(self, prepared: Prepared) -> None:
        log = commit_log_of(TEXT, self.inner)
        entry = log.entry(log.read().written)
        (file,) = (file for file in entry.files if file.prepared == prepared)
        self.said[file.key] = entry.kind, file.size, file.sha256
        super().publish(prepared)


def check_outcome(store: ObjectStore, committed: dict[str, OutputFile]) -> None:
    """All is there, is what the log says, and of other bytes where it was written again."""
    assert listed(store) == sorted(committed)
    for key, file in last_files(store).items():
        data = store.get(key)
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256)
        assert (file.sha256 == committed[key].sha256) == (f"{0:020}" in key or file.kind == "sidecar")
    assert list(verify_output(TEXT, store)) == []
    rows: list[Any] = [
        row for key in listed(store) if key.endswith(".zst") for one in read_records(TEXT, store, key)
        for row in one.to_pylist()
    ]  # fmt: skip
    assert [row["offset"] for row in rows] == list(range(300))


def test_other_bytes_get_an_entry_before_they_are_published(
    topic: StoredTopic, store: ObjectStore, packing: Packing
) -> None:
    committed = committed_and_dropped(topic, store)
    packing.other = True
    witness = Witness(store)
    run_once(topic, witness, TEXT)
    check_outcome(store, committed)
    assert witness.said == {
        key: ("batch" if f"{0:020}" in key else "rewrite", file.size, file.sha256)
        for key, file in last_files(store).items()
    }
    data = [key for key in committed if key.endswith(".zst") and f"{0:020}" not in key]
    assert len(data) == 2
    assert all(last_files(store)[key].size != committed[key].size for key in data)


def test_whoever_dies_in_the_midst_of_it_leaves_what_the_next_one_completes(
    topic: StoredTopic, packing: Packing
) -> None:
    """The next one packs as usual: what was entered meanwhile stands."""
    entered: list[bool] = []
    has_died = True
    while has_died:
        store, packing.other = MemoryObjectStore(), False
        committed = committed_and_dropped(topic, store)
        packing.other, has_died = True, False
        dying = DyingStore(store, len(entered), "after")
        with suppress(Killed):
            run_once(topic, dying, TEXT)
        has_died = bool(dying.failed)
        files = last_files(store)
        entered.append(any(file.sha256 != committed[key].sha256 for key, file in files.items()))
        for key in listed(store):
            assert hashlib.sha256(store.get(key)).hexdigest() == files[key].sha256
        packing.other = False
        run_once(topic, store, TEXT)
        assert listed(store) == sorted(committed)
        assert list(verify_output(TEXT, store)) == []
        packed = {key: file for key, file in last_files(store).items() if file.sha256 != committed[key].sha256}
        assert packed.keys() == ({key for key in files if files[key].sha256 != committed[key].sha256})
    assert set(entered) == {False, True}
