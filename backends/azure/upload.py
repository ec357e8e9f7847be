"""How blobs are written: small ones by one request, others as blocks in parallel, made a blob by a list of them."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Final, cast

from azure.core import MatchConditions
from azure.storage.blob import BlobBlock

from tieredstore.backends.azure.client import AzureClient
from tieredstore.backends.azure.errors import translated
from tieredstore.backends.azure.options import AzureOptions
from tieredstore.backends.cloud.answers import stated, stated_size
from tieredstore.backends.cloud.holding import HeldUpload
from tieredstore.backends.cloud.parts import Part, PartCutter, send_parts
from tieredstore.backends.cloud.upload import Condition, Stored
from tieredstore.backends.values import Prepared
from tieredstore.errors import ObjectNotFound, PreconditionFailed

_logger: Final = logging.getLogger(__name__)

WRITE_MARK: Final = "tieredstore_write"
"""As that of the other clouds; here the names of metadata are identifiers."""


class AzureUpload(HeldUpload[AzureClient, AzureOptions]):
    """One write to Azure Blob Storage.

    After any failure there is no blob, or the old one; the service drops blocks that no list named after a week.
    """

    # Any write that ends discards the blocks of all others that are under way to the same blob.
    parts_gone: ClassVar[str] = "another write to it ended during this one"

    def write_whole(self, data: memoryview) -> str:
        """By one request; then, if only blocks of a failed upload stand in the way, as a list of one block."""
        try:
            return self._by_one_request(bytes(data))
        except PreconditionFailed:
            # Such blocks count as a blob, but not for a list of blocks.
            if not self.condition.is_absent or self.exists():
                raise
        return self._commit([] if not data else [self._stage(Part(0, data, is_last=True))[0]], len(data))

    def write_parts(self, cutter: PartCutter, first: Part) -> str:
        """Block by block, several at a time."""
        staged = send_parts(cutter, self._stage, self.options.upload_parallelism, first=first)
        return self._commit([block for block, _ in staged], sum(size for _, size in staged))

    def prepare(self, cutter: PartCutter) -> tuple[str, tuple[str, ...]]:
        """Blocks that no list names yet. The service drops them after a week, or when any write to the blob ends."""
        staged = send_parts(cutter, self._stage_if_any, self.options.upload_parallelism)
        return "", tuple(name for name in staged if name)

    def publish(self, prepared: Prepared) -> None:
        """By a list of the blocks."""
        self._commit([BlobBlock(name) for name in prepared.parts], prepared.size, is_publication=True)

    def stored(self, client: AzureClient) -> Stored:
        """By a HEAD."""
        properties = client.blob(self.key).get_blob_properties()
        mark = cast("Mapping[str, str]", properties.metadata or {}).get(WRITE_MARK)
        digest = base64.b64encode(bytes(properties.content_settings.content_md5 or b"")).decode()
        return Stored(plain_etag(properties.etag or ""), stated_size(properties.size), digest, mark)

    def take_back(self, client: AzureClient, stored: Stored) -> None:
        """By its etag."""
        try:
            with translated(self.what):
                client.blob(self.key).delete_blob(**_condition(Condition(etag=stored.etag)))
        except (PreconditionFailed, ObjectNotFound):
            _logger.info("%s: the damaged object was gone already", self.what)

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
            return Stored(plain_etag(stated("the etag", answer["etag"])))

        def is_content(_: AzureClient, stored: Stored) -> bool:
            return stored.digest == md5_text(whole)

        return self.finish(send, len(whole), is_content).etag

    def _stage_if_any(self, part: Part) -> str:
        # A block has a byte at least.
        return str(self._stage(part)[0].id) if part.data else ""

    def _stage(self, part: Part) -> tuple[BlobBlock, int]:
        """What the list of blocks says of a block, and its size."""
        # As long as all others of the blob, and unlike those of any other write.
        name = f"{self.mark}{part.number:08}"
        # What the SDK would send, but it computes it from bytes only.
        headers = {"Content-MD5": md5_text(part.data)} if self.options.send_md5 else {}
        data: Any = part.data
        self.step(lambda client: client.blob(self.key).stage_block(name, data, length=len(part.data), headers=headers))
        return BlobBlock(name), len(part.data)

    def _commit(self, blocks: list[BlobBlock], size: int, *, is_publication: bool = False) -> str:
        def send(client: AzureClient) -> Stored:
            answer = client.blob(self.key).commit_block_list(
                blocks, metadata={WRITE_MARK: self.mark}, **_condition(self.condition)
            )
            return Stored(plain_etag(stated("the etag", answer["etag"])))

        def is_content(client: AzureClient, _: Stored) -> bool:
            # The names of our blocks hold the mark.
            committed = client.blob(self.key).get_block_list("committed")[0]
            return [block.id for block in committed] == [block.id for block in blocks]

        return self.finish(send, size, is_content, is_publication=is_publication).etag


def plain_etag(etag: str) -> str:
    """An etag without its quotes: answers have them, listings have not."""
    return etag.strip('"')


def md5_text(data: bytes | memoryview) -> str:
    """The MD5 of ``data`` as Azure writes it, in base64."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _condition(condition: Condition) -> dict[str, Any]:
    """The condition as arguments of the SDK."""
    if condition.is_absent:
        return {"match_condition": MatchConditions.IfMissing}
    if condition.etag is None:
        return {}
    return {"match_condition": MatchConditions.IfNotModified, "etag": f'"{condition.etag}"'}
