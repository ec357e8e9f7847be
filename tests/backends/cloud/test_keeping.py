"""Retention of deleted objects in buckets, as their stores report it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from azure.storage.blob import BlobServiceClient, RetentionPolicy

from tests.support.servers.azurite_server import AzureServer
from tests.support.servers.fake_gcs import GcsServer
from tests.support.servers.s3_server import S3Server
from tests.support.stores.clouds import AZURE_KEYS, make_azure, make_container, make_gcs
from tests.support.stores.s3_stores import impatient_store, options_for
from tieredstore.backends.gcs.store import kept_sentences


def test_a_bucket_without_versions_keeps_nothing(minio: S3Server) -> None:
    with closing(impatient_store(options_for(minio, minio.make_bucket()))) as store:
        assert list(store.kept_after_delete()) == []
        assert store.now_ms() is not None


def test_a_server_that_knows_no_versions_says_nothing_of_them(seaweedfs: S3Server) -> None:
    with closing(impatient_store(options_for(seaweedfs, seaweedfs.make_bucket()))) as store:
        assert list(store.kept_after_delete()) == []
        assert store.now_ms() is not None


def test_versions_and_locks_of_s3_are_said(minio: S3Server) -> None:
    bucket = f"locked-{minio.make_bucket()}"
    client: Any = minio.plain
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 3}}
    client.put_object_lock_configuration(
        Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
    )
    with closing(impatient_store(options_for(minio, bucket))) as store:
        versions, lock = store.kept_after_delete()
        assert "versioning is enabled: deleted objects stay as older versions" in versions
        assert "Object Lock (GOVERNANCE, 3 days by default)" in lock
        store.put("locked", b"kept")
        store.delete(["locked"])
        assert list(store.list()) == []
    # The version still exists, so the lock was not bypassed.
    assert [version["Key"] for version in client.list_object_versions(Bucket=bucket)["Versions"]] == ["locked"]


def test_a_bucket_of_google_that_keeps_nothing(fake_gcs: GcsServer) -> None:
    with closing(make_gcs(fake_gcs.endpoint_url, fake_gcs.make_bucket())) as store:
        assert list(store.kept_after_delete()) == []
        assert store.now_ms() is not None


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"versioning": {"enabled": True}}, "noncurrent versions"),
        ({"softDeletePolicy": {"retentionDurationSeconds": "604800"}}, "for 7 days"),
        ({"retentionPolicy": {"retentionPeriod": "86400", "isLocked": True}}, "younger than 1 days cannot be deleted"),
    ],
)
def test_what_google_tells_of_a_bucket_is_said(properties: dict[str, Any], words: str) -> None:
    (sentence,) = kept_sentences(properties)
    assert words in sentence


def test_google_buckets_without_these_properties_keep_nothing() -> None:
    nothing = {"versioning": {"enabled": False}, "softDeletePolicy": {"retentionDurationSeconds": "0"}}
    assert kept_sentences(nothing) == []


def test_soft_deletes_of_azure_are_said(azurite: AzureServer) -> None:
    AZURE_KEYS[azurite.account_name] = azurite.account_key
    service: Any = BlobServiceClient.from_connection_string(azurite.connection_string)
    with closing(make_azure(azurite.endpoint_url, make_container(azurite))) as store, service:
        assert list(store.kept_after_delete()) == []
        assert store.now_ms() is not None
        service.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=True, days=5))
        try:
            assert [sentence.rpartition("for ")[2] for sentence in store.kept_after_delete()] == ["5 days"]
        finally:
            service.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=False))
