"""What a bucket keeps of objects that are deleted: their versions, some of them under a lock."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tieredstore.backends.s3.errors import NotSupported, translated
from tieredstore.errors import ObjectNotFound

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_VERSIONS: Final = (
    "the bucket's versioning is {}: what is deleted stays as older versions, and costs, until a lifecycle rule "
    "(NoncurrentVersionExpiration) or somebody removes these"
)
_LOCK: Final = "the bucket has Object Lock{}: versions under retention or legal hold cannot be removed before it ends"


def kept_sentences(client: S3Client, bucket: str) -> list[str]:
    """A sentence each; errors are ours. A server that knows no versions keeps nothing."""
    status = None
    with suppress(NotSupported), translated(bucket):
        status = client.get_bucket_versioning(Bucket=bucket).get("Status")
    if status is None:
        return []
    kept = [_VERSIONS.format(status.lower())]
    # Without a lock the answer is an error of its own, of status 404.
    with suppress(ObjectNotFound, NotSupported), translated(bucket):
        answer: Any = client.get_object_lock_configuration(Bucket=bucket)
        kept.append(_LOCK.format(_terms(answer["ObjectLockConfiguration"].get("Rule", {}).get("DefaultRetention"))))
    return kept


def _terms(default: Mapping[str, Any] | None) -> str:
    if default is None:
        return ""
    duration = f"{default['Days']} days" if default.get("Days") else f"{default['Years']} years"
    return f" ({default['Mode']}, {duration} by default)"
