"""Azure Blob Storage (extra ``azure``)."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict

from azure.core import MatchConditions
from azure.core.paging import PageIterator
from azure.core.pipeline import PipelineResponse
from azure.storage.blob import BlobBlock, BlobProperties

from tieredstore.backends.azure.client import (
    AzureClient,
    check_document,
    container_url,
    describe_credentials,
    md5_text,
    object_info,
    open_client,
    plain_etag,
)
from tieredstore.backends.azure.errors import answer_error, translate_errors
from tieredstore.backends.azure.options import AzureOptions
from tieredstore.backends.base import AbandonedWrite, ObjectInfo
from tieredstore.backends.cloud.answers import parse_ms, require_size, require_text
from tieredstore.backends.cloud.errors import MalformedAnswerError
from tieredstore.backends.cloud.store import CloudStore, Service
from tieredstore.backends.cloud.upload import Condition, Stored, Upload
from tieredstore.backends.cloud.upload_parts import Part, PartCutter, send_parts
from tieredstore.backends.contract.checks import checked_key
from tieredstore.backends.values import Prepared
from tieredstore.errors import (
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    TieredStoreError,
)

if TYPE_CHECKING:
    from azure.core.pipeline.transport import HttpRequest, HttpResponse

KEYS_PER_DELETION: Final = 256
"""Largest number of keys in one batch of deletions."""

_NUMBER: Final = re.compile(rb"^Content-ID:\s*(\d{1,9})\s*$", re.IGNORECASE | re.MULTILINE)


def delete_blobs(
    client: AzureClient, keys: Sequence[str], *, named: Callable[[str], str]
) -> dict[str, TieredStoreError]:
    """Delete a batch; return, by key, the errors of blobs that still exist."""
    failures: dict[str, TieredStoreError] = {}
    check = partial(_check_numbers, len(keys))
    answers = list(client.container.delete_blobs(*keys, raise_on_any_failure=False, raw_response_hook=check))
    for key, answer in zip(keys, answers, strict=True):
        if answer.status_code >= 300:
            code = answer.headers.get("x-ms-error-code") or ""
            failure = answer_error(named(key), answer.status_code, code, answer.reason or "")
            if not isinstance(failure, ObjectNotFoundError):
                failures[key] = failure
    return failures


def _check_numbers(count: int, response: PipelineResponse[HttpRequest, HttpResponse]) -> None:
    """Raise MalformedAnswerError if the batch lacks the answer to a request, or has answers out of order, because the
    SDK does not check this.
    """
    answer = response.http_response
    if answer.status_code >= 300:
        return
    numbers = [int(number) for number in _NUMBER.findall(answer.body())]
    if numbers and numbers != list(range(count)):
        raise MalformedAnswerError(f"the store's answer to a batch of {count} deletions has the parts {numbers!r:.200}")


_FIRST_SURROGATE: Final = 0xD800


def page(
    token: str | None, client: AzureClient, *, prefix: str, size: int, with_uncommitted: bool = False
) -> tuple[Sequence[BlobProperties], str | None]:
    """Return one page of a listing, and the token of the next page.

    With ``with_uncommitted``, the page also lists names that have uncommitted blocks but no blob.
    """
    include = ["uncommittedblobs"] if with_uncommitted else None
    listing = client.container.list_blobs(
        name_starts_with=prefix or None, include=include, results_per_page=size, raw_response_hook=check_document
    )
    pages = listing.by_page(continuation_token=token)
    blobs = list(next(pages))
    for blob in blobs:
        require_text("the name", blob.name)
    assert isinstance(pages, PageIterator)
    return blobs, pages.continuation_token


def info_page(
    token: str | None, client: AzureClient, *, prefix: str, size: int
) -> tuple[Sequence[ObjectInfo], str | None]:
    """Return one page of objects, and the token of the next page."""
    blobs, following = page(token, client, prefix=prefix, size=size)
    return [object_info(blob, blob.name or "") for blob in blobs], following


def read_abandoned(client: AzureClient, blob: BlobProperties) -> AbandonedWrite | None:
    """Return a name's uncommitted blocks as one write; None if there are none, or if a blob has the name."""
    name = blob.name or ""
    try:
        with translate_errors(name):
            committed, uncommitted = client.blob(name).get_block_list("all")
    except ObjectNotFoundError:
        return None
    if committed or not uncommitted:
        return None
    # Some servers omit the time for a name without a blob, although the SDK's type says that it is always present.
    started_ms = parse_ms(blob.last_modified)
    return AbandonedWrite(name, sum(block.size for block in uncommitted), started_ms, name, removable=False)


def in_key_order(infos: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Sort a listing by UTF-8 bytes, because the server may have sorted it by UTF-16, as Azurite and .NET do.

    The two orders differ only between keys with the same text before their first character from U+D800 on. Such keys
    are adjacent in both orders. So it suffices to hold one group of such keys at a time in memory, and sort it.
    """
    for _, alike in groupby(infos, key=lambda info: _before_surrogates(info.key)):
        yield from sorted(alike, key=lambda info: info.key)


def _before_surrogates(key: str) -> str:
    """Return the part of ``key`` before the first character that UTF-16 and UTF-8 may sort differently."""
    at = next((at for at, character in enumerate(key) if ord(character) >= _FIRST_SURROGATE), len(key))
    return key[:at]


WRITE_MARK: Final = "tieredstore_write"
"""Metadata name of the mark: the random id of the write that made the blob. Azure allows only identifiers, so this name
has an underscore where other clouds have a hyphen.
"""


class AzureUpload(Upload[AzureClient, AzureOptions]):
    """One write to Azure Blob Storage.

    After any failure the blob is absent or unchanged. The failed write's blocks stay invisible, and the service drops
    them after a week.
    """

    # Any completed write discards the blocks of concurrent writes to the same blob.
    parts_gone: ClassVar[str] = "another write to the blob ended during this write"

    def write_whole(self, data: memoryview) -> str:
        """Write the blob with one request. If blocks of a failed upload make that request fail, write the blob as a
        list of one block.
        """
        try:
            return self._by_one_request(bytes(data))
        except PreconditionFailedError:
            # If no blob exists, blocks of a failed upload made the request fail, because the service counts them as
            # an existing blob. So write the blob as a list of one block instead.
            if not self.condition.is_absent or self.store.exists(self.key):
                raise
        return self._commit([] if not data else [self._stage(Part(0, data, is_last=True))[0]], len(data))

    def write_parts(self, cutter: PartCutter, first: Part) -> str:
        """Write the blob in blocks, several of them in parallel."""
        staged = send_parts(cutter, self._stage, self.options.upload_parallelism, first=first)
        return self._commit([block for block, _ in staged], sum(size for _, size in staged))

    def prepare(self, cutter: PartCutter, staging_prefix: str) -> tuple[str, tuple[str, ...]]:  # noqa: ARG002  parts are hidden
        """Send uncommitted blocks. The service drops them after a week, or when any write to the blob completes."""
        staged = send_parts(cutter, self._stage_if_any, self.options.upload_parallelism)
        return "", tuple(name for name in staged if name)

    def publish(self, prepared: Prepared) -> None:
        """Commit the list of blocks."""
        self._commit([BlobBlock(name) for name in prepared.parts], prepared.size, is_publication=True)

    def look_up(self, client: AzureClient) -> Stored:
        """Read etag, size, digest, and the mark of the write that made the object (see ``WRITE_MARK``), by a HEAD
        request."""
        properties = client.blob(self.key).get_blob_properties()
        mark = (properties.metadata or {}).get(WRITE_MARK)
        digest = base64.b64encode(bytes(properties.content_settings.content_md5 or b"")).decode()
        return Stored(plain_etag(properties.etag or ""), require_size(properties.size), digest, mark)

    def delete_unchanged(self, client: AzureClient, etag: str) -> None:
        """Delete the object if it still has the etag."""
        client.blob(self.key).delete_blob(**_condition(Condition(etag=etag)))

    def _by_one_request(self, whole: bytes) -> str:
        def send(client: AzureClient) -> Stored:
            answer = client.blob(self.key).upload_blob(
                whole,
                length=len(whole),
                overwrite=True,
                validate_content=self.options.send_md5,
                metadata={WRITE_MARK: self.mark},
                **_condition(self.condition),
            )
            return Stored(plain_etag(require_text("the etag", answer["etag"])))

        def is_content(_: AzureClient, stored: Stored) -> bool:
            return stored.digest == md5_text(whole)

        return self.finish(send, len(whole), is_content).etag

    def _stage_if_any(self, part: Part) -> str:
        # Send no block for an empty body: Azure refuses an empty block.
        return str(self._stage(part)[0].id) if part.data else ""

    def _stage(self, part: Part) -> tuple[BlobBlock, int]:
        """Send a block; return its entry in the block list, and its size."""
        # Pad the number, because all block names of a blob must have the same length. The mark makes the names of two
        # concurrent writes differ.
        name = f"{self.mark}{part.number:08}"
        # Compute the MD5 here, because the SDK does so only for ``bytes``.
        headers = {"Content-MD5": md5_text(part.data)} if self.options.send_md5 else {}
        data: Any = part.data
        self.step(lambda client: client.blob(self.key).stage_block(name, data, length=len(part.data), headers=headers))
        return BlobBlock(name), len(part.data)

    def _commit(self, blocks: list[BlobBlock], size: int, *, is_publication: bool = False) -> str:
        def send(client: AzureClient) -> Stored:
            answer = client.blob(self.key).commit_block_list(
                blocks, metadata={WRITE_MARK: self.mark}, **_condition(self.condition)
            )
            return Stored(plain_etag(require_text("the etag", answer["etag"])))

        def is_content(client: AzureClient, _: Stored) -> bool:
            # Block names contain the write's mark, so equal names prove that this write made the blob.
            committed = client.blob(self.key).get_block_list("committed")[0]
            return [block.id for block in committed] == [block.id for block in blocks]

        return self.finish(send, size, is_content, is_publication=is_publication).etag


class _Match(TypedDict, total=False):
    match_condition: MatchConditions
    etag: str


def _condition(condition: Condition) -> _Match:
    """Return the condition as arguments of the SDK."""
    if condition.is_absent:
        return {"match_condition": MatchConditions.IfMissing}
    if condition.etag is None:
        return {}
    return {"match_condition": MatchConditions.IfNotModified, "etag": f'"{condition.etag}"'}


def _check_key(key: str) -> None:
    # The service resolves ``.`` and ``..`` in a key as in a path, so the key could lead out of the container. It treats
    # a backslash as a slash, and its listings cannot contain control characters.
    checked_key(key)
    if any(part in {".", ".."} for part in key.split("/")) or "\\" in key or any(map(_is_not_xml, key)):
        raise InvalidKeyError(f"{key!r} cannot be the name of a blob in Azure")


def _is_not_xml(character: str) -> bool:
    return character < " " or character in "\x7f\ufffe\uffff"


def kept_sentences(client: AzureClient) -> list[str]:
    """Return one sentence for each way the container keeps deleted blobs."""
    # Versioning is not reported, because only the management API shows it.
    kept: list[str] = []
    container = client.container.get_container_properties()
    if container.has_immutability_policy or container.has_legal_hold:
        what = "a legal hold" if container.has_legal_hold else "an immutability policy"
        kept.append(f"the container has {what}: blobs under it cannot be deleted before it ends")
    policy = client.container._get_blob_service_client().get_service_properties()["delete_retention_policy"]
    if policy is not None and policy.enabled:
        kept.append(f"the account has soft delete: deleted blobs stay, and are billed, for {policy.days} days")
    return kept


class AzureObjectStore(CloudStore[AzureClient, AzureOptions]):
    """Objects in one container. The etag of an object is the service's own, without quotes.

    By default the service checks an MD5 of each written body. It keeps the MD5 only for objects smaller than a block,
    so only whole reads of such objects are checked.

    Blocks of a failed upload are invisible. The service drops them after a week, or when the object is written again;
    no other request drops them. ``abandoned_writes`` yields a name only if the name has uncommitted blocks and no blob.
    """

    service = Service(
        read_options=AzureOptions.from_settings,
        identity=container_url,
        open_client=open_client,
        translate_errors=translate_errors,
        check_key=_check_key,
        is_etag=lambda text: text.isascii() and text.isalnum(),
        kept=kept_sentences,
        # Lifecycle rules belong to the storage account. Only the management API lists them.
        rules=lambda _client, _prefix: None,
        caller=lambda client: describe_credentials(client.credentials),
        upload=AzureUpload,
    )

    def lifecycle(self) -> str:
        """Return a sentence that refers to the storage account, because the API for blobs cannot read lifecycle
        rules."""
        return (
            f"lifecycle rules of {self.identity} belong to its storage account: read and change them with `az storage "
            "account management-policy`; the service drops blocks without a blob after a week"
        )

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List objects with one request per page. The service cannot start a listing at a key, so pages with earlier
        keys are requested too.
        """
        infos = self.pages(self.identity, partial(info_page, prefix=prefix, size=self.options.page_size))
        return self.check_listing(in_key_order(infos), prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the keys in batches, each with one request."""
        delete = partial(delete_blobs, named=self.name_object)
        self.delete_batches(keys, partial(self.delete_together, delete=delete), KEYS_PER_DELETION)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        """Yield names that have uncommitted blocks but no blob. The writer of the blocks may be alive.

        Each blob that the listing shows as empty costs one more request, which reads the blocks. Blocks of a failed
        write over an existing blob are not found, because the listing does not show them.

        Uncommitted blocks cannot be removed, because a request to complete them would create a visible blob. But the
        service drops them after a week.
        """
        listing = partial(page, prefix=prefix, size=self.options.page_size, with_uncommitted=True)
        for blob in self.pages(self.identity, listing):
            if not blob.size:
                write = self.call("list", self.name_object(blob.name or ""), partial(read_abandoned, blob=blob))
                if write is not None:
                    yield write

    def discard(self, write: AbandonedWrite | Prepared) -> bool:  # noqa: ARG002  no write is removable
        """Return False, because no request removes uncommitted blocks. The service drops them after a week."""
        return False
