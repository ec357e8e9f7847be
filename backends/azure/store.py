"""Objects in a container of Azure Blob Storage, as block blobs (the extra ``azure``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from tieredstore.backends.azure.body import download
from tieredstore.backends.azure.client import AzureClient, container_url, open_client
from tieredstore.backends.azure.credentials import described
from tieredstore.backends.azure.deletion import deletion_failures
from tieredstore.backends.azure.errors import translated
from tieredstore.backends.azure.keeping import kept_sentences
from tieredstore.backends.azure.listing import abandoned_at, in_key_order, info_page, listing_date, object_info, page
from tieredstore.backends.azure.options import AzureOptions
from tieredstore.backends.azure.upload import AzureUpload
from tieredstore.backends.base import AbandonedWrite, ObjectInfo
from tieredstore.backends.cloud.client import Answer
from tieredstore.backends.cloud.holding import HoldingStore
from tieredstore.backends.contract.keys import checked_key
from tieredstore.errors import InvalidKey, TieredStoreError
from tieredstore.process.retry import RetryPolicy

if TYPE_CHECKING:
    from tieredstore.config import Settings

Result = TypeVar("Result")


class AzureObjectStore(HoldingStore[AzureClient, AzureOptions]):
    """One container. The etag of an object is the service's own, without quotes; conditions are on it.

    The service checks an MD5 of what is written, unless that is switched off; a whole object that is read is checked
    here, where the service keeps an MD5 of it (it does of objects below a block's size). Blocks of a failed
    upload are not visible, and the service drops them after a week, or when the object is written again; nothing can
    drop them before, though ``abandoned_writes`` shows those of objects that do not exist.
    """

    keys_per_deletion: ClassVar = 256

    def __init__(self, options: AzureOptions, *, retries: RetryPolicy | None = None) -> None:
        """ConfigError for a connection string that cannot be understood."""
        super().__init__(options, retries=retries)
        self._url = container_url(options)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The store of ``storage.azure.*`` and ``storage.proxy.*``."""
        return cls(AzureOptions.from_settings(settings))

    @property
    def identity(self) -> str:
        """The container's URL."""
        return self._url

    @staticmethod
    def _open(options: AzureOptions) -> AzureClient:
        return open_client(options)

    @staticmethod
    def _translated(what: str) -> AbstractContextManager[None]:
        return translated(what)

    def _check_key(self, key: str) -> None:
        # On the way to the service, ``.`` and ``..`` are resolved as in a path, and could leave the container; the
        # service takes a backslash for a slash, and its listings cannot hold control characters.
        checked_key(key)
        if any(part in {".", ".."} for part in key.split("/")) or "\\" in key or any(map(_is_not_xml, key)):
            raise InvalidKey(f"{key!r} cannot be the name of a blob in Azure")

    def _is_etag(self, text: str) -> bool:
        return text.isascii() and text.isalnum()

    @property
    def _upload(self) -> type[AzureUpload]:
        return AzureUpload

    def _date(self, client: AzureClient) -> str | None:
        return listing_date(client)

    def _kept(self, client: AzureClient) -> list[str]:
        return kept_sentences(client)

    def _rules(self, _client: AzureClient, _prefix: str, /) -> None:
        # They are the account's, which only the management plane tells.
        return None

    def lifecycle(self) -> str:
        """They cannot be asked for where blobs are read and written."""
        return (
            f"the lifecycle rules of {self.identity} are its account's, which only Azure's management plane tells and "
            "changes (az storage account management-policy); blocks that no blob has the service drops after a week"
        )

    def _caller(self, _client: AzureClient, /) -> str:
        return described(self.options.credentials)

    def _read(
        self, client: AzureClient, key: str, start: int, stop: int | None, take: Callable[[Answer], Result], what: str
    ) -> Result:
        return download(client.blob(key), what, start, stop, take)

    def _head(self, client: AzureClient, key: str) -> ObjectInfo:
        info = object_info(client.blob(key).get_blob_properties(), key)
        if info.modified_ms is None:
            raise ValueError("there is no time of the last write")
        return info

    def _listed(self, prefix: str, _: str | None, /) -> Iterator[ObjectInfo]:
        # The service starts at no key: the pages before it are asked for as well.
        listing = partial(info_page, prefix=prefix, size=self.options.page_size)
        return in_key_order(self.pages(self.identity, listing))

    def _deletion(self) -> Callable[[Sequence[str]], Sequence[TieredStoreError]]:
        return self._delete

    def _delete(self, keys: Sequence[str]) -> Sequence[TieredStoreError]:
        failures: list[TieredStoreError] = []
        if not keys:
            return failures

        def attempt(client: AzureClient) -> None:
            failures[:] = deletion_failures(client, keys, self.named)
            passing = next((failure for failure in failures if failure.retryable), None)
            if passing is not None:
                # Deleting the others of the batch again does no harm.
                raise passing

        try:
            self.call("delete", self.identity, attempt)
        except TieredStoreError as error:
            return failures or [error] * len(keys)
        return failures

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        """Blocks without a blob, of writers that live or not; one more request for each blob that shows no bytes.

        Blocks beside a blob, of a failed write over it, are in no listing. None of them is removable: a blob made of
        them would be seen, so only the service drops them, after a week.
        """
        listing = partial(page, prefix=prefix, size=self.options.page_size, with_uncommitted=True)
        for blob in self.pages(self.identity, listing):
            if not blob.size:
                write = self.call("list", self.named(blob.name or ""), partial(abandoned_at, blob=blob))
                if write is not None:
                    yield write


def _is_not_xml(character: str) -> bool:
    return character < " " or character in "\x7f\ufffe\uffff"
