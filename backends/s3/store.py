"""Amazon S3 and the stores that speak its protocol, by boto3 (the extra ``s3``)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tieredstore.backends.base import Body, Buffer, ObjectInfo, ObjectStore
from tieredstore.backends.cloud.parts import cut
from tieredstore.backends.contract.bodies import byte_view
from tieredstore.backends.contract.deletions import raise_failures
from tieredstore.backends.contract.ranges import TooLargeError, check_small, is_empty_request
from tieredstore.backends.s3.body import check_range, fill, finish, read
from tieredstore.backends.s3.client import make_client
from tieredstore.backends.s3.deletion import Deletion, checked_s3_key
from tieredstore.backends.s3.errors import translated
from tieredstore.backends.s3.listing import Listing, object_info
from tieredstore.backends.s3.options import S3Options
from tieredstore.backends.s3.upload import ANY, Writer, if_absent, if_unchanged
from tieredstore.errors import ObjectNotFound, PreconditionFailed, StoreError
from tieredstore.model import ByteRange
from tieredstore.process.deadline import Deadline
from tieredstore.process.per_process import PerProcess
from tieredstore.process.retry import Attempt, RetryPolicy

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from types_boto3_s3 import S3Client

    from tieredstore.config import Settings

Result = TypeVar("Result")


class S3ObjectStore(ObjectStore):
    """One bucket. Thread-safe, picklable and safe to fork: each process makes a client of its own.

    Bodies below ``part_size`` are one PUT, longer ones a multipart upload that is aborted on any failure. A process
    that is killed leaves parts behind: give the bucket a lifecycle rule that ends incomplete uploads.
    Where the credentials may not list the bucket, S3 answers AccessDenied for an absent key, and so does this store.
    """

    def __init__(self, options: S3Options, *, retries: RetryPolicy | None = None) -> None:
        """``retries`` replaces the policy that ``options`` describe: for tests that count without waiting."""
        self._options = options
        policy = retries or RetryPolicy(attempts=options.attempts, timeout_s=options.call_timeout_s)
        self._retries = replace(policy, attempt_timeout_s=options.attempt_timeout_s)
        self._clients = PerProcess(self._make_client, _close_client)

    def _make_client(self) -> S3Client:
        return make_client(self._options)

    def __reduce__(self) -> tuple[Callable[..., S3ObjectStore], tuple[S3Options, RetryPolicy]]:
        return _restored, (self._options, self._retries)

    def __repr__(self) -> str:
        return f"S3ObjectStore({self._options!r})"

    @classmethod
    def from_settings(cls, settings: Settings) -> S3ObjectStore:
        """The store that ``storage.s3.*`` and ``storage.aws.*`` describe."""
        return cls(S3Options.from_settings(settings))

    @property
    def identity(self) -> str:
        """``s3://bucket``, or the endpoint's URL with the bucket."""
        return self._options.identity

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """One request below a part's size; else one for each part, sent in parallel, and two around them."""
        checked_s3_key(key)
        condition = _if_absent(key) if if_absent else ANY
        writer = Writer(self._options, key, condition, self._call, self._upload_deadline())
        with cut(body, self._options.part_size) as cutter:
            writer.write(cutter)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """As the contract says; an answer that breaks off is asked for again."""
        checked_s3_key(key)
        if is_empty_request(start, stop):
            return b""
        return self._get(key, start if stop is None else ByteRange(start, stop))

    def get_small(self, key: str, most: int) -> bytes | None:
        """As ``get``; of a larger object only the headers of the answer are read."""
        checked_s3_key(key)
        try:
            return self._get(key, 0, most)
        except TooLargeError:
            return None

    def _get(self, key: str, asked: ByteRange | int, most: int | None = None) -> bytes:
        what = f"reading {key!r}"

        def once(client: S3Client, attempt: Attempt) -> bytes:
            with self._opened(client, key, asked) as (body, size):
                check_small(size, most)
                return read(body, size, attempt.deadline, what)

        return self._call(what, once)

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """The bytes go from the socket into ``buffer``, without another copy unless checksums are checked."""
        checked_s3_key(key)
        with byte_view(buffer) as view:
            asked = ByteRange(start, start + len(view))
            what = f"reading {key!r}"

            def once(client: S3Client, attempt: Attempt) -> None:
                with self._opened(client, key, asked) as (body, _):
                    fill(body, view, attempt.deadline, what)

            if len(view):
                self._call(what, once)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """One request for each thousand objects; one for each folder on servers that list by folders."""
        return Listing(self._options.bucket, self._simple_call, self._options.listing_order).objects(
            prefix, start_after
        )

    def delete(self, keys: Iterable[str]) -> None:
        """A thousand keys by one request; one by one where the server has no bulk delete."""
        deletion = Deletion(self._options.bucket, self._simple_call, self._options.upload_parallelism)
        raise_failures(list(deletion.failures(keys)))

    def head(self, key: str) -> ObjectInfo:
        """One request; of an absent key a second one, which tells whether the bucket is there."""
        checked_s3_key(key)
        what = f"asking for the size of {key!r}"
        try:
            found = self._call(what, lambda client, _: client.head_object(Bucket=self._options.bucket, Key=key))
        except ObjectNotFound:
            self._require_bucket()
            raise
        return object_info(key, found["ContentLength"], found)

    def _require_bucket(self) -> None:
        """StoreError if the bucket does not exist: the answer to a HEAD cannot say which of the two is absent."""
        try:
            self._call("asking for the bucket", lambda client, _: client.head_bucket(Bucket=self._options.bucket))
        except ObjectNotFound as error:
            raise StoreError(
                f"the bucket {self._options.bucket!r} does not exist; create it, or correct the bucket's name"
            ) from error
        except StoreError:
            # Not allowed to ask, or no answer: then the key is what is known to be absent.
            return

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """One request; it needs a server that knows ``If-Match`` on a PUT."""
        checked_s3_key(key)
        if etag in {"", "*"}:
            # An empty condition is none, and a star is met by every object.
            raise PreconditionFailed(f"the object {key!r} cannot have the etag {etag!r}: nothing was written")
        writer = Writer(self._options, key, if_unchanged(key, etag), self._call, self._upload_deadline())
        with byte_view(body) as view:
            return writer.write_whole(view)

    def close(self) -> None:
        """Close this process's connections."""
        self._clients.close()

    @contextmanager
    def _opened(
        self, client: S3Client, key: str, asked: ByteRange | int
    ) -> Generator[tuple[StreamingBody, int], None, None]:
        """The body of the answer to one GET and its size; it must be read to its end."""
        ranged: dict[str, Any] = {"Bucket": self._options.bucket, "Key": key}
        if isinstance(asked, ByteRange):
            ranged["Range"] = f"bytes={asked.start}-{asked.stop - 1}"
        elif asked:
            ranged["Range"] = f"bytes={asked}-"
        answer = client.get_object(**ranged)
        body = answer["Body"]
        try:
            size = check_range(key, asked, answer["ResponseMetadata"]["HTTPHeaders"])
            yield body, size
            finish(body)
        finally:
            body.close()

    def _call(
        self, what: str, operation: Callable[[S3Client, Attempt], Result], deadline: Deadline | None = None
    ) -> Result:
        """``operation`` with retries; the errors of every attempt are ours."""

        def once(attempt: Attempt) -> Result:
            client = self._clients.get()
            with translated(what):
                return operation(client, attempt)

        return self._retries.call(what, once, deadline=deadline)

    def _simple_call(self, what: str, operation: Callable[[S3Client], Result]) -> Result:
        return self._call(what, lambda client, _: operation(client))

    def _upload_deadline(self) -> Deadline:
        return Deadline.after(self._options.upload_timeout_s, self._retries.monotonic)


# `if_absent` is also the name of an argument.
_if_absent = if_absent


def _restored(options: S3Options, retries: RetryPolicy) -> S3ObjectStore:
    return S3ObjectStore(options, retries=retries)


def _close_client(client: S3Client) -> None:
    client.close()
