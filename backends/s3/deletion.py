"""Deleting many objects of a bucket: a thousand by one request, or one by one where the server has no bulk delete."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tieredstore.backends.contract.keys import checked_key
from tieredstore.backends.s3.errors import NotSupported, error_of
from tieredstore.errors import InvalidKey, ObjectNotFound, TieredStoreError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

BATCH: Final = 1000
"""S3's own limit."""

# XML 1.0 cannot say these, not even escaped, and a parser may change the others: such keys go by URL.
_NOT_FOR_XML: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]")

Call = Callable[[str, Callable[["S3Client"], Any]], Any]


class Deletion:
    """Deletes keys of ``bucket``, and collects what failed. ``call`` runs a request with the store's retries."""

    def __init__(self, bucket: str, call: Call, parallelism: int) -> None:
        self._bucket = bucket
        self._call = call
        self._parallelism = parallelism
        self._has_bulk = True

    def failures(self, keys: Iterable[str]) -> Iterator[TieredStoreError]:
        """Delete all keys; an error for each one that still stands."""
        rest = iter(keys)
        while batch := list(islice(rest, BATCH)):
            wrong, right = _sorted_out(batch)
            yield from wrong
            yield from self._delete(right)

    def _delete(self, keys: Sequence[str]) -> Iterator[TieredStoreError]:
        by_url = [key for key in keys if not self._has_bulk or _NOT_FOR_XML.search(key)]
        singly = set(by_url)
        in_bulk = [key for key in keys if key not in singly]
        if in_bulk:
            try:
                yield from self._bulk(in_bulk)
            except NotSupported:
                self._has_bulk = False
                by_url = list(keys)
            except TieredStoreError as error:
                # The request as a whole failed, so each of its objects did.
                yield from (error for _ in in_bulk)
        yield from self._one_by_one(by_url)

    def _bulk(self, keys: Sequence[str]) -> list[TieredStoreError]:
        what: Any = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = self._call(
            f"deleting {len(keys)} objects",
            lambda client: client.delete_objects(Bucket=self._bucket, Delete=what),
        )
        return [_error_of_entry(entry) for entry in answer.get("Errors", ()) if entry.get("Code") != "NoSuchKey"]

    def _one_by_one(self, keys: Sequence[str]) -> Iterator[TieredStoreError]:
        if not keys:
            return
        with ThreadPoolExecutor(min(self._parallelism, len(keys)), thread_name_prefix="tieredstore-delete") as pool:
            for failure in pool.map(self._single, keys):
                if failure is not None:
                    yield failure

    def _single(self, key: str) -> TieredStoreError | None:
        try:
            self._call(f"deleting {key!r}", lambda client: client.delete_object(Bucket=self._bucket, Key=key))
        except ObjectNotFound:
            return None
        except TieredStoreError as error:
            return error
        return None


def _error_of_entry(entry: dict[str, Any]) -> TieredStoreError:
    # An entry has no status of its own; without one, a code that is not known is a plain StoreError.
    return error_of(f"deleting {entry.get('Key')!r}", entry.get("Code", "?"), entry.get("Message", ""), 0)


def _sorted_out(keys: Sequence[str]) -> tuple[list[TieredStoreError], list[str]]:
    wrong: list[TieredStoreError] = []
    # A key twice in one request is an error on some servers.
    right: dict[str, None] = {}
    for key in keys:
        try:
            checked_s3_key(key)
        except InvalidKey as error:
            wrong.append(error)
        else:
            right[key] = None
    return wrong, list(right)


def checked_s3_key(key: str) -> str:
    """``key``, if it can be named by a URL; InvalidKey for one with a component ``.`` or ``..``, or a NUL.

    HTTP clients and servers resolve such components, and would reach another object.
    """
    checked_key(key)
    if "\0" in key or any(part in {".", ".."} for part in key.split("/")):
        raise InvalidKey(f"the key {key!r} has a component . or .., or a NUL: S3 cannot be asked for it reliably")
    return key
