"""What is brought into a store before it is an object: a part of ``ObjectStoreTests``."""

# ruff: noqa: D102  the names of the tests say what they show

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tieredstore.backends.base import ObjectStore, Prepared
from tieredstore.errors import InvalidKey, ObjectNotFound, PreconditionFailed, PreparedGone, StoreError
from tieredstore.testing.store_access import StoreAccess

_STAGING: Final = "_staging/"
_NOTHINGS: Final[tuple[object, ...]] = (None, [], "text", {})


class PreparedTests(StoreAccess):
    """Nobody sees what is prepared; publishing is create-only, can be repeated, and knows its own work."""

    def test_what_is_prepared_is_seen_only_once_it_is_published(self, store: ObjectStore) -> None:
        prepared = self._prepare(store, "folder/object", b"the bytes")
        assert (prepared.key, prepared.size) == ("folder/object", 9)
        assert prepared.sha256 == hashlib.sha256(b"the bytes").hexdigest()
        assert self._listed(store) == []
        with pytest.raises(ObjectNotFound):
            store.get("folder/object")
        store.publish(prepared)
        assert self.raw_get(store, "folder/object") == b"the bytes"
        assert [info.key for info in store.list()] == ["folder/object"]

    @pytest.mark.parametrize("mebibytes", [0, 1, 12])
    def test_objects_of_each_size_come_whole(self, store: ObjectStore, mebibytes: int) -> None:
        pieces = [bytes([number]) * (1 << 20) for number in range(mebibytes)]
        for key, body in (("folder/one", b"".join(pieces)), ("folder/pieces", iter(pieces))):
            prepared = store.prepare(key, body, staging_prefix=_STAGING)
            store.publish(prepared)
            assert prepared.size == mebibytes << 20
            assert store.get(key) == b"".join(pieces)

    def test_it_goes_through_json_and_to_another_process(self, store: ObjectStore) -> None:
        prepared = self._prepare(store, "folder/object", b"the bytes")
        text = json.dumps(prepared.to_json())
        other = pickle.loads(pickle.dumps(store)) if self.picklable else store  # noqa: S301  our own
        other.publish(Prepared.from_json(json.loads(text)))
        other.close()
        assert self.raw_get(store, "folder/object") == b"the bytes"

    def test_publishing_again_changes_nothing(self, store: ObjectStore) -> None:
        prepared = self._prepare(store, "folder/object", b"the bytes")
        store.publish(prepared)
        before = store.head("folder/object")
        store.publish(prepared)
        store.publish(prepared)
        assert store.head("folder/object") == before
        assert [info.key for info in store.list()] == ["folder/object"]

    def test_it_is_never_written_over_another_object(self, store: ObjectStore) -> None:
        for theirs in (b"other bytes", b"the other's bytes", b""):
            self.raw_put(store, "folder/object", theirs)
            prepared = self._prepare(store, "folder/object", b"our bytes")
            with pytest.raises(PreconditionFailed):
                store.publish(prepared)
            assert self.raw_get(store, "folder/object") == theirs
            store.discard(prepared)
            assert self.raw_get(store, "folder/object") == theirs
            assert [info.key for info in store.list()] == ["folder/object"]

    def test_of_several_prepared_for_one_key_the_first_published_stands(self, store: ObjectStore) -> None:
        for attempts in range(self.race_rounds):
            key = f"folder/{attempts}"
            prepared = [self._prepare(store, key, b"bytes of %d" % number) for number in range(4)]
            with ThreadPoolExecutor(self.racing_publishers) as pool:
                won = [one for one, is_won in zip(prepared, pool.map(_wins(store), prepared), strict=True) if is_won]
            assert len(won) == 1
            assert hashlib.sha256(store.get(key)).hexdigest() == won[0].sha256
            for one in prepared:
                if one not in won:
                    with pytest.raises(PreconditionFailed):
                        store.publish(one)
                    store.discard(one)
            store.publish(won[0])
            assert hashlib.sha256(store.get(key)).hexdigest() == won[0].sha256

    def test_publishers_of_the_same_all_succeed(self, store: ObjectStore) -> None:
        for attempts in range(self.race_rounds):
            prepared = self._prepare(store, f"folder/{attempts}", b"the bytes")
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(store.publish, [prepared] * 4))
            assert store.get(f"folder/{attempts}") == b"the bytes"

    def test_what_is_discarded_is_gone(self, store: ObjectStore) -> None:
        prepared = self._prepare(store, "folder/object", b"the bytes")
        if store.discard(prepared):
            # Again, it does no harm.
            store.discard(prepared)
            with pytest.raises(PreparedGone):
                store.publish(prepared)
            assert list(store.list()) == []
        else:
            # A service that alone removes it: then it can still be published.
            store.publish(prepared)
            assert store.get("folder/object") == b"the bytes"

    def test_what_is_published_cannot_be_discarded(self, store: ObjectStore) -> None:
        prepared = self._prepare(store, "folder/object", b"the bytes")
        store.publish(prepared)
        # Whether there was anything to take away not all services tell.
        store.discard(prepared)
        assert store.get("folder/object") == b"the bytes"

    def test_an_object_that_was_deleted_since_does_not_come_back(self, store: ObjectStore) -> None:
        prepared = self._prepare(store, "folder/object", b"the bytes")
        store.publish(prepared)
        store.delete(["folder/object"])
        with pytest.raises(PreparedGone):
            store.publish(prepared)
        assert list(store.list()) == []

    def test_a_body_that_breaks_off_leaves_nothing_to_publish(self, store: ObjectStore) -> None:
        for mebibytes in (1, 12):
            with pytest.raises(_BodyBrokenError):
                store.prepare("folder/object", _breaking(mebibytes), staging_prefix=_STAGING)
        assert list(store.list()) == []
        assert [write for write in store.abandoned_writes("folder/object") if write.removable] == []
        store.put("folder/object", b"written", if_absent=True)

    def test_a_body_is_closed_however_it_ends(self, store: ObjectStore) -> None:
        body = _breaking(1)
        with pytest.raises(InvalidKey):
            store.prepare("", body, staging_prefix=_STAGING)
        assert next(body, None) is None

    def test_what_was_written_by_nobody_is_refused(self, store: ObjectStore) -> None:
        prepared = self._prepare(store, "folder/object", b"the bytes").to_json()
        for field, wrong in (
            ("key", 1),
            ("size", -1),
            ("size", True),
            ("size", 1 << 70),
            ("sha256", "00"),
            ("place", None),
            ("parts", "text"),
            ("parts", [1]),
            ("mark", []),
        ):
            with pytest.raises(StoreError):
                Prepared.from_json({**prepared, field: wrong})
        for nothing in _NOTHINGS:
            with pytest.raises(StoreError):
                Prepared.from_json(nothing)

    def _prepare(self, store: ObjectStore, key: str, data: bytes) -> Prepared:
        return store.prepare(key, data, staging_prefix=_STAGING)

    def _listed(self, store: ObjectStore) -> list[str]:
        """All that anybody sees beside what is staged."""
        return [info.key for info in store.list() if not info.key.startswith(_STAGING)]


def _wins(store: ObjectStore) -> Callable[[Prepared], bool]:
    def is_won(prepared: Prepared) -> bool:
        try:
            store.publish(prepared)
        except PreconditionFailed:
            return False
        return True

    return is_won


class _BodyBrokenError(Exception):
    """What a body of these tests raises."""


def _breaking(mebibytes: int) -> Iterator[bytes]:
    for _ in range(mebibytes):
        yield bytes(1 << 20)
    raise _BodyBrokenError
