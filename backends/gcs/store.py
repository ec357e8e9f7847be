"""Objects in a bucket of Google Cloud Storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import requests
from crc32c import crc32c

from tieredstore.backends.base import Body, Buffer, ObjectInfo, ObjectStore
from tieredstore.backends.cloud.parts import PartCutter, cut
from tieredstore.backends.contract.bodies import byte_view
from tieredstore.backends.contract.deletions import raise_failures
from tieredstore.backends.contract.keys import checked_key
from tieredstore.backends.contract.ranges import TooLargeError, check_small, is_empty_request
from tieredstore.backends.gcs.client import GcsClient, info_of, open_client
from tieredstore.backends.gcs.errors import MaybeNoBucket, no_bucket, raise_for, translated
from tieredstore.backends.gcs.options import GcsOptions
from tieredstore.backends.gcs.upload import Write, crc32c_text, write_chunks, write_whole
from tieredstore.backends.http.body import answered_size, is_whole, range_header, read_bytes, read_into
from tieredstore.backends.http.session import within
from tieredstore.errors import (
    AccessDenied,
    InvalidKey,
    ObjectNotFound,
    PreconditionFailed,
    StoreUnavailable,
    TieredStoreError,
)
from tieredstore.process.deadline import Deadline
from tieredstore.process.per_process import PerProcess
from tieredstore.process.retry import RetryPolicy

if TYPE_CHECKING:
    from tieredstore.config import Settings

_DELETED_AT_ONCE: Final = 1000

Result = TypeVar("Result")


class GcsObjectStore(ObjectStore):
    """One bucket. The etag of an object is its generation; conditions are on it.

    The server checks a CRC-32C of everything that is written; a whole object that is read is checked here, a range
    cannot be. An upload that a killed process left unfinished is never visible, and the server forgets it after a week.
    """

    def __init__(self, options: GcsOptions, *, retry: RetryPolicy | None = None) -> None:
        self.options = options
        policy = retry or RetryPolicy(attempts=options.attempts, timeout_s=options.call_timeout_s)
        self._retry = replace(policy, attempt_timeout_s=options.attempt_timeout_s)
        self._clients = PerProcess(partial(open_client, options), GcsClient.close)

    @classmethod
    def from_settings(cls, settings: Settings) -> GcsObjectStore:
        """The store of ``storage.gcs.*`` and ``storage.proxy.*``."""
        return cls(GcsOptions.from_settings(settings))

    @property
    def identity(self) -> str:
        """``gs://bucket``, or the bucket's place under the endpoint that was set."""
        return self.options.url

    def __repr__(self) -> str:
        return f"GcsObjectStore({self.identity!r})"

    def close(self) -> None:
        """Close this process's connections."""
        self._clients.close()

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """One request up to a chunk's size; else one for each chunk and one to begin (two with ``if_absent``)."""
        with cut(body, self.options.chunk_size) as cutter:
            _check(key)
            self._write(key, cutter, 0 if if_absent else None)

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """One request up to a chunk's size, then as ``put``."""
        _check(key)
        if not (etag.isascii() and etag.isdigit() and 0 < int(etag[:20]) < 2**63):
            raise PreconditionFailed(f"{self._named(key)}: {etag!r} is not the etag of any object")
        with cut(body, self.options.chunk_size) as cutter:
            try:
                return str(self._write(key, cutter, int(etag)))
            except ObjectNotFound as error:
                raise PreconditionFailed(f"{self._named(key)}: the object to replace is gone") from error

    def _write(self, key: str, cutter: PartCutter, if_generation_match: int | None) -> int:
        first = next(cutter)
        deadline = Deadline.after(self.options.upload_timeout_s)
        write = Write(self._clients.get(), key, self._named(key), if_generation_match, self._retry, deadline)
        try:
            if first.is_last:
                return write_whole(write, first.data)
            if if_generation_match == 0 and self._exists(key):
                # The server says so as well, but only when everything has been sent.
                raise PreconditionFailed(f"{write.what} exists already")
            return write_chunks(write, cutter, first)
        except MaybeNoBucket as error:
            raise self._absence(error) from error

    def _exists(self, key: str) -> bool:
        try:
            self.head(key)
        except ObjectNotFound:
            return False
        return True

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes; of a whole object, the CRC-32C is checked."""
        _check(key)
        if is_empty_request(start, stop):
            return b""
        return self._read(key, start, stop, self._body)

    def get_small(self, key: str, most: int) -> bytes | None:
        """As ``get``; of a larger object only the headers of the answer are read."""
        _check(key)

        def take(response: requests.Response, size: int, what: str) -> bytes:
            check_small(size, most)
            return self._body(response, size, what)

        try:
            return self._read(key, 0, None, take)
        except TooLargeError:
            return None

    def _body(self, response: requests.Response, size: int, what: str) -> bytes:
        data = read_bytes(response.raw, size, what)
        _check_crc(response, data, what)
        return data

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Read from the connection into ``buffer``, over pieces that stay in the processor's cache."""
        _check(key)
        with byte_view(buffer) as view:
            stop = start + len(view)
            if is_empty_request(start, stop):
                return

            def fill(response: requests.Response, _: int, what: str) -> None:
                read_into(response.raw, view, what)
                _check_crc(response, view, what)

            self._read(key, start, stop, fill)

    def _read(
        self, key: str, start: int, stop: int | None, take: Callable[[requests.Response, int, str], Result]
    ) -> Result:
        what = self._named(key)
        headers = {"Accept-Encoding": "identity", **range_header(start, stop)}

        def read(client: GcsClient) -> Result:
            with client.session.get(client.download_url(key), headers=headers, stream=True) as response:
                raise_for(response)
                return take(response, answered_size(what, start, stop, response.headers), what)

        return self._call("get", what, read)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """One request for each 1,000 objects."""
        token: str | None = None
        while True:
            following = partial(GcsClient.page, prefix=prefix, start=start_after, token=token)
            page, token = self._call("list", self.identity, following)
            for info in page:
                # The server begins at the key itself, if it is there.
                if start_after is None or info.key > start_after:
                    yield info
            if token is None:
                return

    def delete(self, keys: Iterable[str]) -> None:
        """One request for each key, some at a time: the service runs the parts of a batch request no faster."""
        failures: list[TieredStoreError] = []
        remaining = iter(keys)
        with ThreadPoolExecutor(self.options.delete_parallelism, thread_name_prefix="tieredstore-delete") as pool:
            while batch := list(islice(remaining, _DELETED_AT_ONCE)):
                failures += [failure for failure in pool.map(self._delete_failure, batch) if failure is not None]
        raise_failures(failures)

    def _delete_failure(self, key: str) -> TieredStoreError | None:
        try:
            _check(key)
            self._call("delete", self._named(key), lambda client: client.blob(key).delete(retry=None))
        except ObjectNotFound:
            return None
        except TieredStoreError as error:
            return error
        return None

    def head(self, key: str) -> ObjectInfo:
        """One request."""
        _check(key)

        def look(client: GcsClient) -> ObjectInfo:
            blob = client.blob(key)
            blob.reload(retry=None)
            return info_of(blob)

        return self._call("head", self._named(key), look)

    def _call(self, operation: str, what: str, request: Callable[[GcsClient], Result]) -> Result:
        client = self._clients.get()

        def attempt(deadline: Deadline) -> Result:
            with within(deadline), translated(what):
                return request(client)

        try:
            return self._retry.call(operation, lambda attempted: attempt(attempted.deadline))
        except MaybeNoBucket as error:
            raise self._absence(error) from error

    def _absence(self, error: MaybeNoBucket) -> TieredStoreError:
        """Whether the object is absent or its bucket: Google's service says it, but other servers have to be asked."""

        def look(_: object) -> Sequence[ObjectInfo]:
            with translated(self.identity):
                return self._clients.get().page(prefix="", start=None, token=None, size=1)[0]

        try:
            self._retry.call("list", look)
        except ObjectNotFound:
            return no_bucket(self.identity)
        except AccessDenied:
            pass
        return ObjectNotFound(str(error))

    def _named(self, key: str) -> str:
        return f"{key!r} of {self.identity}"


def _check(key: str) -> None:
    """InvalidKey for what Google Cloud Storage does not take as a name."""
    checked_key(key)
    if key in {".", ".."} or "\r" in key or "\n" in key or key.startswith(".well-known/acme-challenge/"):
        raise InvalidKey(f"{key!r} cannot be the name of an object in Google Cloud Storage")


def _check_crc(response: requests.Response, data: bytes | memoryview, what: str) -> None:
    """StoreUnavailable if ``data`` is a whole object, but not what the server's checksum is of."""
    told = response.headers.get("X-Goog-Hash", "")
    if not is_whole(response.headers) or "crc32c=" not in told:
        return
    if f"crc32c={crc32c_text(crc32c(data))}" not in told.replace(" ", "").split(","):
        raise StoreUnavailable(f"{what}: the object was damaged on its way from the server")
