"""How blobs are written: small ones by one request, others as blocks in parallel, made a blob by a list of them."""

from __future__ import annotations

import base64
import hashlib
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from azure.core import MatchConditions
from azure.storage.blob import BlobBlock, BlobClient, BlobProperties

from tieredstore.backends.azure.client import AzureClient
from tieredstore.backends.azure.errors import BlocksGone, translated
from tieredstore.backends.cloud.parts import Part, PartCutter, send_parts
from tieredstore.backends.http.session import within
from tieredstore.errors import ObjectNotFound, PreconditionFailed, StoreUnavailable
from tieredstore.process.deadline import Deadline
from tieredstore.process.retry import Attempt, RetryPolicy

logger = logging.getLogger(__name__)

WRITE_MARK: Final = "tieredstore_write"
"""The metadata that holds the mark of the write that made a blob."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Write:
    """One ``put`` or ``replace``: of which blob, under which condition (arguments of the SDK), and until when.

    ``mark`` is put into the blob's metadata: so a write whose answer was lost knows its blob from another's. A blob
    that bears no mark at all, as on a server that drops metadata, counts as this write's if its content is.
    """

    client: AzureClient
    key: str
    what: str
    condition: Mapping[str, Any]
    retry: RetryPolicy
    deadline: Deadline
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def blob(self) -> BlobClient:
        """The SDK's handle of the blob."""
        return self.client.blob(self.key)

    def call(self, operation: Callable[[Attempt], Result]) -> Result:
        """One step of the write, tried again after passing failures."""

        def attempt(attempt: Attempt) -> Result:
            with within(attempt.deadline), translated(self.what):
                return operation(attempt)

        return self.retry.call("write", attempt, deadline=self.deadline)

    def finish(self, operation: Callable[[], Mapping[str, Any]], is_content: Callable[[BlobProperties], bool]) -> str:
        """The etag that the last step of a write makes.

        Where it is refused and was tried before, the earlier answer may be what was lost: then the blob is looked at.
        ``is_content`` tells whether a blob holds what the write sends.
        """

        def attempt(attempt: Attempt) -> str:
            try:
                with translated(self.what):
                    return plain_etag(operation()["etag"])
            except (PreconditionFailed, ObjectNotFound, BlocksGone) as refusal:
                etag = self._etag_if_ours(is_content) if attempt.number > 1 else None
                if etag is None:
                    raise
                logger.info("%s: was written by a try whose answer was lost (%s)", self.what, refusal)
                return etag

        return self.call(attempt)

    def _etag_if_ours(self, is_content: Callable[[BlobProperties], bool]) -> str | None:
        try:
            with translated(self.what):
                found = self.blob.get_blob_properties()
        except ObjectNotFound:
            return None
        mark = cast("Mapping[str, str]", found.metadata or {}).get(WRITE_MARK)
        ours = mark == self.mark or (mark is None and is_content(found))
        return plain_etag(found.etag or "") if ours else None


IF_ABSENT: Final[Mapping[str, Any]] = {"match_condition": MatchConditions.IfMissing}
"""The condition that there is no such blob."""


def if_unchanged(etag: str) -> Mapping[str, Any]:
    """The condition that the blob still has this etag."""
    return {"match_condition": MatchConditions.IfNotModified, "etag": f'"{etag}"'}


def plain_etag(told: str) -> str:
    """An etag without its quotes: answers have them, listings have not."""
    return told.strip('"')


def write_whole(write: Write, data: memoryview, *, with_md5: bool) -> str:
    """Write a blob by one request; its etag. ``with_md5``: the service checks one before it takes the blob."""
    whole = bytes(data)

    def send() -> Mapping[str, Any]:
        return write.blob.upload_blob(
            whole,
            length=len(whole),
            overwrite=True,
            validate_content=with_md5,
            metadata={WRITE_MARK: write.mark},
            **write.condition,
        )

    def is_content(found: BlobProperties) -> bool:
        return found.size == len(whole) and bytes(found.content_settings.content_md5 or b"") == _md5(whole)

    return write.finish(send, is_content)


def write_blocks(write: Write, cutter: PartCutter, first: Part, parallelism: int, *, with_md5: bool) -> str:
    """Write a blob block by block, several at a time; its etag. ``with_md5``: the service checks one of each block.

    After any failure there is no blob, or the old one; the service drops the blocks that no list named after a week.
    """
    blob = write.blob

    def stage(part: Part) -> BlobBlock | None:
        if not part.data:
            return None  # an empty blob is an empty list
        # As long as all others of the blob, and unlike those of any other write.
        name = f"{write.mark}{part.number:08}"
        headers = _md5_header(part.data) if with_md5 else {}
        data: Any = part.data
        write.call(lambda _: blob.stage_block(name, data, length=len(part.data), headers=headers))
        return BlobBlock(name)

    blocks = [block for block in send_parts(cutter, stage, parallelism, first=first) if block is not None]

    def commit() -> Mapping[str, Any]:
        return blob.commit_block_list(blocks, metadata={WRITE_MARK: write.mark}, **write.condition)

    def is_content(_: BlobProperties) -> bool:
        # The names of our blocks hold the mark.
        committed = blob.get_block_list("committed")[0]
        return [block.id for block in committed] == [block.id for block in blocks]

    try:
        return write.finish(commit, is_content)
    except BlocksGone as error:
        # Any write that ends discards the blocks of all others that are under way to the same blob.
        raise StoreUnavailable(f"{write.what}: another write to it ended during this one") from error


def _md5_header(data: memoryview) -> dict[str, str]:
    """What the SDK would send, but it computes it from bytes only."""
    return {"Content-MD5": base64.b64encode(_md5(data)).decode()}


def _md5(data: bytes | memoryview) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
