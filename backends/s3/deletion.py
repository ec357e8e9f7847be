"""Deleting many objects of a bucket: a thousand by one request, or one by one where the server has no bulk delete."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tieredstore.backends.cloud.deletion import delete_singly
from tieredstore.backends.cloud.upload import Call
from tieredstore.backends.contract.keys import checked_key
from tieredstore.backends.s3.errors import NotSupported, error_of
from tieredstore.backends.s3.options import S3Options
from tieredstore.errors import InvalidKey, TieredStoreError
from tieredstore.process.deadline import Deadline, Stall

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

# XML 1.0 cannot say these, not even escaped, and a parser may change the others: such keys go by URL.
_NOT_FOR_XML: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]")


class Deletion:
    """One ``delete``: it knows whether the server has turned out to have no bulk delete.

    ``call`` is the store's; ``stall`` how long keys that go one by one may get no answer.
    """

    def __init__(self, options: S3Options, identity: str, call: Call[S3Client], stall: Stall) -> None:
        self._options = options
        self._identity = identity
        self._call = call
        self._stall = stall
        self._has_bulk = True

    def failures(self, keys: Sequence[str]) -> Sequence[TieredStoreError]:
        """Delete a batch; an error for each key that still stands."""
        by_url = [key for key in keys if not self._has_bulk or _NOT_FOR_XML.search(key)]
        in_bulk = [key for key in keys if key not in set(by_url)] if by_url else keys
        failures: list[TieredStoreError] = []
        if in_bulk:
            try:
                failures += self._bulk(in_bulk)
            except NotSupported:
                self._has_bulk = False
                by_url = list(keys)
            except TieredStoreError as error:
                # The request as a whole failed, so each of its objects did.
                failures += [error] * len(in_bulk)
        singly = delete_singly(by_url, self._delete, self._options.upload_parallelism, self._stall)
        return [*failures, *singly]

    def _bulk(self, keys: Sequence[str]) -> list[TieredStoreError]:
        named: Any = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer: Any = self._call(
            "delete",
            f"{len(keys)} objects of {self._identity}",
            lambda client: client.delete_objects(Bucket=self._options.bucket, Delete=named),
        )
        return [_error_of_entry(entry) for entry in answer.get("Errors", ()) if entry.get("Code") != "NoSuchKey"]

    def _delete(self, key: str, deadline: Deadline) -> object:
        def request(client: S3Client) -> object:
            return client.delete_object(Bucket=self._options.bucket, Key=key)

        return self._call("delete", f"{key!r} of {self._identity}", request, deadline=deadline)


def _error_of_entry(entry: dict[str, Any]) -> TieredStoreError:
    # An entry has no status of its own; without one, a code that is not known is a plain StoreError.
    return error_of(f"deleting {entry.get('Key')!r}", str(entry.get("Code", "?")), str(entry.get("Message", "")), 0)


def check_key(key: str) -> None:
    """InvalidKey for what a URL cannot name: a key with a component ``.`` or ``..``, or a NUL.

    HTTP clients and servers resolve such components, and would reach another object.
    """
    checked_key(key)
    if "\0" in key or any(part in {".", ".."} for part in key.split("/")):
        raise InvalidKey(f"the key {key!r} has a component . or .., or a NUL: S3 cannot be asked for it reliably")
