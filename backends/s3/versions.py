"""Objects that stay in a bucket after a deletion: older versions under delete markers, and objects under a lock.

To restore a deleted object, remove its delete markers instead of copying the version below them. Removal moves no
bytes, has no size limit, and keeps the object's etag, time and lock. The request names a marker by its id, so an object
written after the marker stays the latest.

A copy would need fewer permissions, but could overwrite a newer object: not all servers support a condition on a copy.

This module is separate from the store, its only user, to keep both files short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import BucketVersions, ObjectVersion
from tieredstore.backends.cloud.answers import require_ms, require_size, require_text
from tieredstore.backends.cloud.errors import NotSupportedError
from tieredstore.backends.s3.errors import translate_errors
from tieredstore.backends.s3.lifecycle import lifecycle_rules
from tieredstore.errors import AccessDeniedError, ObjectNotFoundError, StoreError

if TYPE_CHECKING:
    from types_boto3_s3 import type_defs

    from tieredstore.backends.s3.store import S3BucketClient, S3ObjectStore

_NO_ID: Final = "null"
"""The id of every object or delete marker that is written while versioning is off or suspended. The next such write to
a key replaces the version with this id.
"""

_OFF: Final = "versioning is off in the bucket, so deleted objects are gone"
_SUSPENDED: Final = "versioning is suspended in the bucket: objects that are written now are gone once they are deleted"


class S3Versions(BucketVersions):
    """The versions of one bucket."""

    def __init__(self, store: S3ObjectStore) -> None:
        self._store = store
        self._identity = store.identity

    def list(self, prefix: str) -> Iterator[ObjectVersion]:
        """List object versions with one request per page. This needs the permission ``s3:ListBucketVersions``."""
        what = f"the versions under {prefix!r} of {self._identity} (s3:ListBucketVersions)"
        versions = self._store.pages(what, partial(self._page, prefix))
        # Servers that list by folder add keys without the prefix, so leave those keys out.
        return (version for version in versions if version.key.startswith(prefix))

    def remove_marker(self, marker: ObjectVersion) -> None:
        """Remove the delete marker by its version id. This needs the permission ``s3:DeleteObjectVersion``."""
        what = f"the delete marker of {marker.key!r} in {self._identity} (s3:DeleteObjectVersion)"
        if not marker.is_marker:
            raise StoreError(f"{what}: {marker.id!r} is a version with data")
        if marker.id == _NO_ID:
            # Refuse a marker with the id null. A writer may replace the marker by an object with the same id, and this
            # request would then remove that object.
            raise StoreError(
                f"{what} has no id of its own, because versioning was suspended: copy the version below it by hand"
            )
        self._store.call(
            "delete",
            what,
            lambda client: client.sdk.delete_object(Bucket=client.options.bucket, Key=marker.key, VersionId=marker.id),
        )

    def obstacle(self) -> str | None:
        """Return a sentence that says why older versions cannot be used, or None if they can. Ask for the bucket's
        versioning, and list one version to test the permission."""
        try:
            status = self._store.call("look", self._identity, versioning_status)
            next(self.list(""), None)
        except (AccessDeniedError, NotSupportedError) as error:
            return str(error)
        if status is None:
            return _OFF
        return None if status == "Enabled" else _SUSPENDED

    def _page(
        self, prefix: str, markers: tuple[str, str] | None, client: S3BucketClient
    ) -> tuple[Sequence[ObjectVersion], tuple[str, str] | None]:
        asked: type_defs.ListObjectVersionsRequestTypeDef = {"Bucket": client.options.bucket, "Prefix": prefix}
        asked["MaxKeys"] = self._store.options.page_size
        if markers is not None:
            asked["KeyMarker"], asked["VersionIdMarker"] = markers
        answer = client.sdk.list_object_versions(**asked)
        versions = [_version_of(entry, is_marker=False) for entry in answer.get("Versions", ())]
        versions += [_version_of(entry, is_marker=True) for entry in answer.get("DeleteMarkers", ())]
        if not answer["IsTruncated"]:
            return versions, None
        next_key = require_text("the next page's marker", answer["NextKeyMarker"])
        return versions, (next_key, require_text("the next page's version", answer["NextVersionIdMarker"]))


def _version_of(
    entry: type_defs.ObjectVersionTypeDef | type_defs.DeleteMarkerEntryTypeDef, *, is_marker: bool
) -> ObjectVersion:
    if "IsLatest" not in entry:
        raise ValueError("a version does not say if it is the latest")
    return ObjectVersion(
        key=require_text("the key", entry.get("Key")),
        # Require the id, because a delete request without an id would add a delete marker.
        id=require_text("the version's id", entry.get("VersionId")),
        time_ms=require_ms(entry.get("LastModified")),
        size=0 if is_marker else require_size(entry.get("Size")),
        etag=None if is_marker else require_text("the etag", entry.get("ETag")),
        is_marker=is_marker,
        is_latest=entry["IsLatest"],
    )


def versioning_status(client: S3BucketClient) -> str | None:
    """Return ``Enabled`` or ``Suspended``; None if versioning was never switched on, or is not supported."""
    bucket = client.options.bucket
    with suppress(NotSupportedError), translate_errors(f"the versioning of {bucket} (s3:GetBucketVersioning)"):
        return client.sdk.get_bucket_versioning(Bucket=bucket).get("Status")
    return None


_VERSIONS: Final = "the bucket's versioning is {}: deleted objects stay as older versions, and are billed, {}"
_UNTIL: Final = "until a lifecycle rule (NoncurrentVersionExpiration) or a person removes them"
_LOCK: Final = "the bucket has Object Lock{}: versions under retention or legal hold cannot be removed before it ends"


def kept_sentences(client: S3BucketClient) -> list[str]:
    """Return one sentence for each way the bucket keeps deleted objects; none for a server without versioning."""
    status = versioning_status(client)
    if status is None:
        return []
    kept = [_VERSIONS.format(status.lower(), _until(client))]
    # Ignore status 404, with which S3 answers if there are no object locks.
    with suppress(ObjectNotFoundError, NotSupportedError), translate_errors(client.options.bucket):
        lock = client.sdk.get_object_lock_configuration(Bucket=client.options.bucket)["ObjectLockConfiguration"]
        kept.append(_LOCK.format(_terms(lock.get("Rule", {}).get("DefaultRetention"))))
    return kept


def _until(client: S3BucketClient) -> str:
    """Return the end of a sentence that says when lifecycle rules remove old versions. The text names rules only if the
    caller may read them.
    """
    ends: list[str] = []
    with suppress(AccessDeniedError):
        ends = [
            f"the rule {rule.get('ID') or '(without a name)'} removes them after {days} days"
            for rule in lifecycle_rules(client)
            if rule.get("Status") == "Enabled"
            and (days := rule.get("NoncurrentVersionExpiration", {}).get("NoncurrentDays")) is not None
        ]
    return f"and {', '.join(ends)}" if ends else _UNTIL


def _terms(default: type_defs.DefaultRetentionTypeDef | None) -> str:
    if default is None:
        return ""
    days = default.get("Days")
    duration = f"{days} days" if days else f"{default.get('Years')} years"
    return f" ({default.get('Mode')}, {duration} by default)"
