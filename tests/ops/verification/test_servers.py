"""Tests of planted faults on servers of three clouds: verification finds the same as in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.damage.planted_bucket import PlantedBucket
from tests.support.damage.planted_faults import PLANTED_FAULTS, PlantedFault
from tests.support.ops.tools import findings_of
from tests.support.stores.clouds import Cloud, shared_cloud
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.ops.verification.findings import Finding, FindingKind

pytestmark = pytest.mark.server

NAMES = {
    "log is gone", "log is a byte short", "segment is gone",
    "bit of an encrypted index", "bit of a record", "bit of a compressed and encrypted chunk",
}  # fmt: skip
SOME = [fault for fault in PLANTED_FAULTS if fault.name in NAMES]
assert len(SOME) == 6


@pytest.fixture(params=["s3", "gcs", "azure"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    return shared_cloud(request)


@pytest.fixture
def store(cloud: Cloud) -> Iterator[ObjectStore]:
    with closing(cloud.make(cloud.endpoint_url, cloud.make_place())) as store:
        yield store


def planted_in(store: ObjectStore, faults: list[PlantedFault]) -> list[Finding]:
    """Plant the faults one after another, each in an emptied store; return all findings."""
    findings: list[Finding] = []
    for fault in faults:
        store.delete([info.key for info in store.list()])
        findings += findings_of(fault.planted(store).bucket, fault.level)
    return findings


def test_the_findings_of_a_server_are_those_of_a_folder(store: ObjectStore, tmp_path: Path) -> None:
    on_a_server = planted_in(store, SOME)
    assert [finding.kind for finding in on_a_server] == [fault.kind for fault in SOME]
    assert on_a_server == planted_in(FilesystemObjectStore(tmp_path), SOME)


def test_a_clean_bucket_on_a_server_has_no_findings(store: ObjectStore) -> None:
    assert findings_of(PlantedBucket.of("zstd+enc", store).bucket) == []


@pytest.mark.soak
def test_all_planted_faults_on_a_server_are_those_of_a_folder(store: ObjectStore, tmp_path: Path) -> None:
    # Leave out keys with foreign digits, because the emulators of Google and Azure do not accept them.
    faults = [fault for fault in PLANTED_FAULTS if fault.kind is not FindingKind.FOREIGN_DIGITS]
    assert planted_in(store, faults) == planted_in(FilesystemObjectStore(tmp_path), faults)
