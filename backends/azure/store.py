"""Objects in a container of Azure Blob Storage, as block blobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.storage.blob import BlobProperties

from tieredstore.backends.azure.body import check_md5, download
from tieredstore.backends.azure.client import AzureClient, container_url, open_client
from tieredstore.backends.azure.errors import answer_error, translated
from tieredstore.backends.azure.options import AzureOptions
from tieredstore.backends.azure.upload import IF_ABSENT, Write, if_unchanged, plain_etag, write_blocks, write_whole
from tieredstore.backends.base import Body, Buffer, ObjectInfo, ObjectStore
from tieredstore.backends.cloud.parts import PartCutter, cut
from tieredstore.backends.contract.bodies import byte_view
from tieredstore.backends.contract.deletions import raise_failures
from tieredstore.backends.contract.keys import checked_key
from tieredstore.backends.contract.ranges import TooLargeError, check_small, is_empty_request
from tieredstore.backends.http.body import RawBody, read_bytes, read_into
from tieredstore.backends.http.session import within
from tieredstore.errors import InvalidKey, ObjectNotFound, PreconditionFailed, TieredStoreError
from tieredstore.process.deadline import Deadline
from tieredstore.process.per_process import PerProcess
from tieredstore.process.retry import RetryPolicy

if TYPE_CHECKING:
    from tieredstore.config import Settings

_DELETED_AT_ONCE: Final = 256
_FIRST_SURROGATE: Final = 0xD800

Result = TypeVar("Result")


class AzureObjectStore(ObjectStore):
    """One container. The etag of an object is the service's own, without quotes; conditions are on it.

    The service checks an MD5 of what is written, unless that is switched off; a whole object that is read is checked
    here, where the service keeps an MD5 of it (it does of objects below a block's size). Blocks of a failed
    upload are not visible, and the service drops them after a week, or when the object is written again; nothing can
    drop them before.
    """

    def __init__(self, options: AzureOptions, *, retry: RetryPolicy | None = None) -> None:
        self.options = options
        self._identity = container_url(options)
        policy = retry or RetryPolicy(attempts=options.attempts, timeout_s=options.call_timeout_s)
        self._retry = replace(policy, attempt_timeout_s=options.attempt_timeout_s)
        self._clients = PerProcess(partial(open_client, options), AzureClient.close)

    @classmethod
    def from_settings(cls, settings: Settings) -> AzureObjectStore:
        """The store of ``storage.azure.*`` and ``storage.proxy.*``."""
        return cls(AzureOptions.from_settings(settings))

    @property
    def identity(self) -> str:
        """The container's URL."""
        return self._identity

    def __repr__(self) -> str:
        return f"AzureObjectStore({self.identity!r})"

    def close(self) -> None:
        """Close this process's connections."""
        self._clients.close()

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """One request up to a block's size; else one for each block, several at a time, and one for their list.

        With ``if_absent``, one more to look whether the object exists, before many bytes or after a refusal.
        """
        with cut(body, self.options.block_size) as cutter:
            _check(key)
            self._write(key, cutter, IF_ABSENT if if_absent else {})

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """One request up to a block's size, then as ``put``."""
        _check(key)
        if not (etag.isascii() and etag.isalnum()):
            raise PreconditionFailed(f"{self._named(key)}: {etag!r} is not the etag of any object")
        with cut(body, self.options.block_size) as cutter:
            try:
                return self._write(key, cutter, if_unchanged(etag))
            except ObjectNotFound as error:
                raise PreconditionFailed(f"{self._named(key)}: the object to replace is gone") from error

    def _write(self, key: str, cutter: PartCutter, condition: Mapping[str, Any]) -> str:
        first = next(cutter)
        deadline = Deadline.after(self.options.upload_timeout_s)
        write = Write(self._clients.get(), key, self._named(key), condition, self._retry, deadline)
        if first.is_last:
            try:
                return write_whole(write, first.data, with_md5=self.options.send_md5)
            except PreconditionFailed:
                # Blocks that a failed upload left count as a blob, but not for a list of blocks.
                if condition != IF_ABSENT or self._exists(key):
                    raise
        elif condition == IF_ABSENT and self._exists(key):
            # The service says so as well, but only when everything has been sent.
            raise PreconditionFailed(f"{write.what} exists already")
        parallelism = self.options.upload_parallelism
        return write_blocks(write, cutter, first, parallelism, with_md5=self.options.send_md5)

    def _exists(self, key: str) -> bool:
        try:
            self.head(key)
        except ObjectNotFound:
            return False
        return True

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes; of a whole object, the MD5 is checked, if the service has one. Of an empty one, two requests."""
        _check(key)
        if is_empty_request(start, stop):
            return b""
        return self._get(key, start, stop)

    def get_small(self, key: str, most: int) -> bytes | None:
        """As ``get``; of a larger blob only the headers of the answer are read."""
        _check(key)
        try:
            return self._get(key, 0, None, most)
        except TooLargeError:
            return None

    def _get(self, key: str, start: int, stop: int | None, most: int | None = None) -> bytes:
        what = self._named(key)

        def take(raw: RawBody, size: int, headers: Mapping[str, str]) -> bytes:
            check_small(size, most)
            data = read_bytes(raw, size, what)
            check_md5(what, headers, data)
            return data

        return self._call("get", what, lambda client: download(client.blob(key), what, start, stop, take))

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Read from the connection into ``buffer``, over pieces that stay in the processor's cache."""
        _check(key)
        with byte_view(buffer) as view:
            stop = start + len(view)
            if is_empty_request(start, stop):
                return
            what = self._named(key)

            def take(raw: RawBody, _: int, headers: Mapping[str, str]) -> None:
                read_into(raw, view, what)
                check_md5(what, headers, view)

            self._call("get", what, lambda client: download(client.blob(key), what, start, stop, take))

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """One request for each page, those before ``start_after`` included: the service starts at none."""
        for info in in_key_order(self._listed(prefix)):
            if start_after is None or info.key > start_after:
                yield info

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        token: str | None = None
        while True:
            following = partial(_page, prefix=prefix, token=token, size=self.options.page_size)
            page, token = self._call("list", self.identity, following)
            yield from page
            if not token:
                return

    def delete(self, keys: Iterable[str]) -> None:
        """One request for each 256 keys."""
        failures: list[TieredStoreError] = []
        remaining = iter(keys)
        while batch := list(islice(remaining, _DELETED_AT_ONCE)):
            failures += self._delete(batch)
        raise_failures(failures)

    def _delete(self, batch: Sequence[str]) -> Sequence[TieredStoreError]:
        failures: list[TieredStoreError] = []
        valid: dict[str, None] = {}
        for key in batch:
            try:
                _check(key)
            except InvalidKey as error:
                failures.append(error)
            else:
                valid[key] = None
        if valid:
            failures += self._delete_valid(list(valid))
        return failures

    def _delete_valid(self, keys: Sequence[str]) -> Sequence[TieredStoreError]:
        failures: list[TieredStoreError] = []

        def attempt(client: AzureClient) -> None:
            failures[:] = self._delete_failures(client, keys)
            passing = next((failure for failure in failures if failure.retryable), None)
            if passing is not None:
                # Deleting the others of the batch again does no harm.
                raise passing

        try:
            self._call("delete", self.identity, attempt)
        except TieredStoreError as error:
            return failures or [error] * len(keys)
        return failures

    def _delete_failures(self, client: AzureClient, keys: Sequence[str]) -> Sequence[TieredStoreError]:
        untyped: Any = client.container
        failures: list[TieredStoreError] = []
        for key, answer in zip(keys, untyped.delete_blobs(*keys, raise_on_any_failure=False), strict=True):
            if answer.status_code >= 300:
                code = answer.headers.get("x-ms-error-code") or ""
                failures.append(answer_error(self._named(key), answer.status_code, code, answer.reason or ""))
        return [failure for failure in failures if not isinstance(failure, ObjectNotFound)]

    def head(self, key: str) -> ObjectInfo:
        """One request."""
        _check(key)
        return self._call("head", self._named(key), lambda client: _info(client.blob(key).get_blob_properties(), key))

    def _call(self, operation: str, what: str, request: Callable[[AzureClient], Result]) -> Result:
        client = self._clients.get()

        def attempt(deadline: Deadline) -> Result:
            with within(deadline), translated(what):
                return request(client)

        return self._retry.call(operation, lambda attempted: attempt(attempted.deadline))

    def _named(self, key: str) -> str:
        return f"{key!r} of {self.identity}"


def _page(client: AzureClient, *, prefix: str, token: str | None, size: int) -> tuple[Sequence[ObjectInfo], str | None]:
    """One page of a listing, and the token of the next one."""
    untyped: Any = client.container
    listing = untyped.list_blobs(name_starts_with=prefix or None, results_per_page=size)
    pages = listing.by_page(continuation_token=token)
    page: Sequence[BlobProperties] = list(next(pages, ()))
    following: str | None = pages.continuation_token
    return [_info(blob, blob.name or "") for blob in page], following


def _info(blob: BlobProperties, key: str) -> ObjectInfo:
    modified = round(blob.last_modified.timestamp() * 1000)
    return ObjectInfo(key, blob.size or 0, plain_etag(blob.etag or "") or None, modified)


def in_key_order(infos: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """A listing in the order of UTF-8, of one in that or in the order of UTF-16, which Azurite and .NET sort by.

    The two differ only in what follows a key's first character from U+D800 on, and keys that are alike up to there come
    one after the other in both: so only these are held together.
    """
    for _, alike in groupby(infos, key=lambda info: _before_surrogates(info.key)):
        yield from sorted(alike, key=lambda info: info.key)


def _before_surrogates(key: str) -> str:
    """``key`` up to its first character that UTF-16 and UTF-8 may sort differently."""
    at = next((at for at, character in enumerate(key) if ord(character) >= _FIRST_SURROGATE), len(key))
    return key[:at]


def _check(key: str) -> None:
    """InvalidKey for what cannot be the name of a blob, or would not come back as it was.

    On the way to the service, ``.`` and ``..`` are resolved as in a path, and could leave the container; the service
    takes a backslash for a slash, and its listings cannot hold control characters.
    """
    checked_key(key)
    if any(part in {".", ".."} for part in key.split("/")) or "\\" in key or any(map(_is_not_xml, key)):
        raise InvalidKey(f"{key!r} cannot be the name of a blob in Azure")


def _is_not_xml(character: str) -> bool:
    return character < " " or character in "\x7f\ufffe\uffff"
