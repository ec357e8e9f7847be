"""Amazon S3 and the stores that speak its protocol, by boto3 (the extra ``s3``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from tieredstore.backends.base import AbandonedWrite, ObjectInfo, Prepared
from tieredstore.backends.cloud.answers import stated
from tieredstore.backends.cloud.client import Answer
from tieredstore.backends.cloud.holding import HoldingStore
from tieredstore.backends.http.ranges import answered_size, range_header
from tieredstore.backends.s3.body import S3Answer
from tieredstore.backends.s3.client import open_client
from tieredstore.backends.s3.credentials import described
from tieredstore.backends.s3.deletion import Deletion, check_key
from tieredstore.backends.s3.errors import NotSupported, translated
from tieredstore.backends.s3.lifecycle import S3Lifecycle, kept_sentences, rule_sentences
from tieredstore.backends.s3.listing import Listing, abandoned_page, object_info
from tieredstore.backends.s3.options import S3Options
from tieredstore.backends.s3.upload import S3Upload, aborted
from tieredstore.errors import AccessDenied, TieredStoreError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

    from tieredstore.config import Settings

Result = TypeVar("Result")


class S3ObjectStore(HoldingStore["S3Client", S3Options]):
    """One bucket. The etag of an object is S3's own; conditions are on it.

    Bodies below ``part_size`` are one PUT, longer ones a multipart upload that is aborted on any failure. A process
    that is killed leaves parts behind: ``abandoned_writes`` shows them, and a lifecycle rule ends them.
    Where the credentials may not list the bucket, S3 answers AccessDenied for an absent key, and so does this store.
    """

    # If-Match is known to all servers on a PUT, but not to all at the end of a multipart upload.
    replaces_whole: ClassVar = True

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The store that ``storage.s3.*`` and ``storage.aws.*`` describe."""
        return cls(S3Options.from_settings(settings))

    @property
    def identity(self) -> str:
        """``s3://bucket``, or the endpoint's URL with the bucket."""
        return self.options.url

    @staticmethod
    def _open(options: S3Options) -> S3Client:
        return open_client(options)

    @staticmethod
    def _translated(what: str) -> AbstractContextManager[None]:
        return translated(what)

    def _check_key(self, key: str) -> None:
        check_key(key)

    def _is_etag(self, text: str) -> bool:
        # An empty condition is none, and a star is met by every object.
        return text not in {"", "*"}

    @property
    def _upload(self) -> type[S3Upload]:
        return S3Upload

    def _read(
        self, client: S3Client, key: str, start: int, stop: int | None, take: Callable[[Answer], Result], what: str
    ) -> Result:
        asked: dict[str, Any] = {"Bucket": self.options.bucket, "Key": key, **range_header(start, stop)}
        response = client.get_object(**asked)
        body = response["Body"]
        try:
            # A web server's page has none.
            stated("the etag", response["ETag"])
            size = answered_size(what, start, stop, response["ResponseMetadata"]["HTTPHeaders"])
            return take(S3Answer(size, body, what))
        finally:
            # Of a body that was read to its end, the connection was given back before.
            body.close()

    def _head(self, client: S3Client, key: str) -> ObjectInfo:
        metadata = client.head_object(Bucket=self.options.bucket, Key=key)
        return object_info(key, metadata["ContentLength"], metadata)

    def _date(self, client: S3Client) -> str | None:
        answer = client.list_objects_v2(Bucket=self.options.bucket, MaxKeys=1)
        return answer["ResponseMetadata"]["HTTPHeaders"].get("date")

    def _kept(self, client: S3Client) -> list[str]:
        return kept_sentences(client, self.options.bucket)

    def _rules(self, client: S3Client, prefix: str, /) -> list[str]:
        return rule_sentences(client, self.options.bucket, prefix)

    def lifecycle(self) -> S3Lifecycle:
        """The bucket's rules; they are replaced as a whole, and S3 has no condition on that."""
        return S3Lifecycle(self.options.bucket, self.identity, partial(self.call, "look", self.identity))

    def _caller(self, _client: S3Client, /) -> str:
        return described(self.options)

    def _ask_for_bucket(self, client: S3Client) -> None:
        with suppress(NotSupported), translated(self.identity):
            client.head_bucket(Bucket=self.options.bucket)

    def _listed(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        listing = Listing(self.options, self.pages)
        return listing.objects(prefix, start_after or "")

    def _deletion(self) -> Callable[[Sequence[str]], Sequence[TieredStoreError]]:
        return Deletion(self.options, self.identity, self.call, self.stall()).failures

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        """The unfinished multipart uploads, also those that are under way; of their sizes S3 tells nothing here.

        MinIO tells only those of one key, which is then the whole prefix, or of the whole bucket, of those that began
        since it was started. So where there is none of a prefix, the bucket's are asked for.
        """
        is_any = False
        for write in self._uploads(prefix):
            is_any = True
            yield write
        if prefix and not is_any:
            with suppress(AccessDenied):  # who may not ask for the bucket's has been told what there is
                yield from (write for write in self._uploads("") if write.key.startswith(prefix))

    def _uploads(self, prefix: str) -> Iterator[AbandonedWrite]:
        uploads = self.pages(self.identity, lambda client, at: abandoned_page(client, self.options.bucket, prefix, at))
        return (write for write in uploads if write.key.startswith(prefix))

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Abort the upload. A writer that is at work on it fails by that."""
        upload_id = write.place if isinstance(write, Prepared) else write.id
        target = {"Bucket": self.options.bucket, "Key": write.key, "UploadId": upload_id}
        return self.call("abort", self.named(write.key), lambda client: aborted(client, target))
