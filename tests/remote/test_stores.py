"""Golden segments are copied to each object store and read back; the plugin's own objects are read from each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.golden.segments import GoldenSegment, segments
from tests.support.golden.stored import files_of, metadata_of, original_indexes, settings_of
from tests.support.servers.azurite_server import AzureServer
from tests.support.servers.fake_gcs import GcsServer
from tests.support.servers.s3_server import S3Server
from tests.support.stores.clouds import azure_cloud, gcs_cloud
from tests.support.stores.s3_stores import options_for
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.s3.options import Compatibility
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.stored import load_segment
from tieredstore.errors import ResourceNotFoundError
from tieredstore.model import IndexType, RemoteLogSegmentMetadata
from tieredstore.remote import RemoteStorageManager

CASES = ["07-zstd-enc-txn", "10-prefix-masked-custommeta", "11-single-record"]
"""Cases with zstd, encryption and transactions; with a blank in the prefix and custom metadata; with single records
(empty indexes).
"""

ON_S3 = {"minio": Compatibility.AWS, "seaweedfs": Compatibility.S3_COMPATIBLE}


pytestmark = pytest.mark.server


@pytest.fixture(params=[*ON_S3, "gcs", "azure"])
def store(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    """Yield an empty store on a real server."""
    with closing(new_store(request.param, request)) as store:
        yield store


def new_store(name: str, request: pytest.FixtureRequest) -> ObjectStore:
    if name in ON_S3:
        server: S3Server = request.getfixturevalue(name)
        return S3ObjectStore(options_for(server, server.make_bucket(), compatibility=ON_S3[name]))
    if name == "gcs":
        fake_gcs: GcsServer = request.getfixturevalue("fake_gcs")
        cloud = gcs_cloud(fake_gcs)
    else:
        azurite: AzureServer = request.getfixturevalue("azurite")
        cloud = azure_cloud(azurite)
    return cloud.make(cloud.endpoint_url, cloud.make_place())


def check_reads(manager: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, segment: GoldenSegment) -> None:
    """Check that the log, a range of it, and all indexes, together and one by one, are the broker's."""
    log = segment.original("log").read_bytes()
    with manager.fetch_log_segment(metadata, 0) as stream:
        assert stream.read() == log
    with manager.fetch_log_segment(metadata, len(log) // 3, len(log) // 2) as stream:
        assert stream.read() == log[len(log) // 3 : len(log) // 2 + 1]
    expected = original_indexes(segment)
    assert {kind: stream.read() for kind, stream in manager.fetch_all_indexes(metadata).items()} == expected
    for kind, content in expected.items():
        assert manager.fetch_index(metadata, kind).read() == content


def stored_metadata(manager: RemoteStorageManager) -> list[RemoteLogSegmentMetadata]:
    """Return the segments that the catalog finds by its listing and the manifests."""
    listed = list(list_segments(manager.store, manager.layout.prefix))
    assert [objects.missing for objects in listed] == [()] * len(listed)
    return [load_segment(manager.store, objects).metadata for objects in listed]


@pytest.mark.parametrize("case", CASES)
def test_segments_go_up_are_listed_come_back_and_are_deleted(case: str, store: ObjectStore) -> None:
    originals = segments(case)
    with RemoteStorageManager(settings_of(case), store=store) as manager:
        for segment in originals:
            manager.copy_log_segment_data(metadata_of(segment), files_of(segment))
        listed = stored_metadata(manager)
        assert {metadata.remote_log_segment_id for metadata in listed} == {
            metadata_of(segment).remote_log_segment_id for segment in originals
        }
        by_id = {metadata.remote_log_segment_id: metadata for metadata in listed}
        for segment in originals:
            metadata = by_id[metadata_of(segment).remote_log_segment_id]
            assert (metadata.start_offset, metadata.end_offset) == (
                segment.base_offset,
                segment.end_offset,
            )
            check_reads(manager, metadata, segment)
        gone, kept = metadata_of(originals[0]), [metadata_of(segment) for segment in originals[1:]]
        manager.delete_log_segment_data(gone)
        manager.delete_log_segment_data(gone)
        with pytest.raises(ResourceNotFoundError):
            manager.fetch_log_segment(gone, 0).read()
        assert {metadata.remote_log_segment_id for metadata in stored_metadata(manager)} == {
            metadata.remote_log_segment_id for metadata in kept
        }
        for metadata in kept:
            manager.delete_log_segment_data(metadata)
    assert list(store.list()) == []


@pytest.mark.parametrize("case", [*CASES, "08-keyring"])
def test_segments_that_the_plugin_wrote_are_read_from_every_store(case: str, store: ObjectStore) -> None:
    originals = segments(case)
    for segment in originals:
        for suffix in ("log", "indexes", "rsm-manifest"):
            store.put(f"{segment.main_path}.{suffix}", segment.stored(suffix).read_bytes())
    with RemoteStorageManager(settings_of(case), store=store) as manager:
        assert len(stored_metadata(manager)) == len(originals)
        for segment in originals:
            check_reads(manager, metadata_of(segment), segment)


def test_the_cases_have_what_they_are_here_for() -> None:
    assert any(IndexType.TRANSACTION in original_indexes(segment) for segment in segments(CASES[0]))
    assert all(" " in segment.main_path for segment in segments(CASES[1]))
    assert all(original_indexes(segment)[IndexType.OFFSET] == b"" for segment in segments(CASES[2]))
