"""Support for tests of tools: stores that the plugin wrote, their content, and a process that dies during work."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.golden.segments import GoldenSegment
from tests.support.golden.stored import original_indexes
from tests.support.paths import GOLDEN
from tests.support.stores.doubles import FaultyStore, Moment
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.format.keys import Suffix
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.steps import Outcome, Step
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.selection import Level, Selection
from tieredstore.ops.verification.verification import CheckedSegment, verify
from tieredstore.remote import RemoteStorageManager


def golden_store(case: str) -> ObjectStore:
    """Return a store with the plugin's objects of a case."""
    store, folder = MemoryObjectStore(), GOLDEN / case / "store"
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put(str(path.relative_to(folder)), path.read_bytes())
    return store


def content(store: ObjectStore, suffix: str = "") -> dict[str, bytes]:
    """Return the store's objects by key; only keys with this suffix."""
    return {info.key: store.get(info.key) for info in store.list() if info.key.endswith(suffix)}


def outcomes(steps: Iterable[Step[Any]]) -> Counter[Outcome]:
    """Count the outcomes."""
    return Counter(step.outcome for step in steps)


def found_in(checked: Iterable[CheckedSegment]) -> list[Finding]:
    """Return all findings."""
    return [finding for segment in checked for finding in segment.findings]


def kinds_of(checked: Iterable[CheckedSegment]) -> list[FindingKind]:
    """Return the kinds of all findings."""
    return [finding.kind for finding in found_in(checked)]


def findings_of(bucket: Bucket, level: Level = Level.DATA) -> list[Finding]:
    """Return the findings of a level in a bucket."""
    return found_in(verify(bucket, selection=Selection(level)))


def assert_read_back(manager: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, segment: GoldenSegment) -> None:
    """Assert that the segment's log and indexes are the broker's."""
    with manager.open(metadata) as log:
        assert log.read() == segment.original("log").read_bytes()
    originals = original_indexes(segment)
    read = manager.fetch_indexes(metadata, originals)
    assert {kind: file.read() for kind, file in read.items()} == originals


def assert_no_half(store: ObjectStore) -> None:
    """Assert that each segment with a manifest is complete."""
    for objects in list_segments(store):
        assert objects.missing == () or Suffix.MANIFEST in objects.missing


def die_at(store: ObjectStore, number: int, moment: Moment, work: Callable[[ObjectStore], object]) -> None:
    """Run ``work`` in a child process that dies abruptly at one of its operations on the store."""

    def die() -> BaseException:
        os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            work(FaultyStore(store, number, moment=moment, error=die))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in {0, 9}
