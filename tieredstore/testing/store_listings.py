"""How a store lists: a part of ``ObjectStoreTests``."""

# ruff: noqa: D102, S311  the names of the tests say what they show; nothing here is secret

from __future__ import annotations

import random
from itertools import islice
from typing import Final

import pytest

from tieredstore.backends.base import ObjectStore
from tieredstore.testing.store_access import StoreAccess

_SIMILAR_KEYS: Final = ("a-b", "a/b/1", "a/b/2", "a/bc", "a0", "b")  # in order


class ListTests(StoreAccess):
    """Order, prefixes, pages."""

    def test_an_empty_store_lists_nothing(self, store: ObjectStore) -> None:
        assert list(store.list()) == []
        assert list(store.list("prefix", "start")) == []

    def test_listing_is_in_the_order_of_utf_8_bytes(self, store: ObjectStore) -> None:
        keys = ("A", "a b", "a!", "a-b", "a/b", "a/b-c", "a/b0", "a0", "b", "b.log/x", "é", "\uffee", "😀")
        for key in random.Random(1).sample(keys, len(keys)):
            self.raw_put(store, key, b"x")
        assert [info.key for info in store.list()] == sorted(keys, key=str.encode) == list(keys)

    def test_folders_take_their_place_among_files_by_whole_keys(self, store: ObjectStore) -> None:
        for key in ("a0", "a/c", "a-b", "a/b/z", "a/b.log", "a/b-1"):
            self.raw_put(store, key, b"x")
        assert [info.key for info in store.list()] == ["a-b", "a/b-1", "a/b.log", "a/b/z", "a/c", "a0"]

    def test_a_prefix_is_a_string_not_a_folder(self, store: ObjectStore) -> None:
        for key in _SIMILAR_KEYS:
            self.raw_put(store, key, b"x")
        prefixes = ("", "a", "a/", "a/b", "a/b/", "a/b/1", "a/b/1/", "a/b//", "/", "/a", "../", "c", "é")
        listed = {prefix: [info.key for info in store.list(prefix)] for prefix in prefixes}
        assert listed == {prefix: [key for key in _SIMILAR_KEYS if key.startswith(prefix)] for prefix in prefixes}
        assert listed["a/b"] == ["a/b/1", "a/b/2", "a/bc"]

    @pytest.mark.parametrize("prefix", ["", "a/", "a/b"])
    def test_a_listing_starts_after_a_key_that_need_not_exist(self, store: ObjectStore, prefix: str) -> None:
        for key in _SIMILAR_KEYS:
            self.raw_put(store, key, b"x")
        starts = ("", "A", "a", "a-", "a-b", "a/", "a/b", "a/b/1", "a/b/9", "a/z", "a0", "b", "c")
        listed = {start: [info.key for info in store.list(prefix, start)] for start in starts}
        below = [key for key in _SIMILAR_KEYS if key.startswith(prefix)]
        assert listed == {start: [key for key in below if key > start] for start in starts}

    def test_listing_and_deleting_go_over_pages(self, store: ObjectStore) -> None:
        keys = [f"folder{number % 3}/{number:05}" for number in range(self.listed_objects)]
        for key in keys:
            self.raw_put(store, key, key.encode())
        self.raw_put(store, "other", b"")
        in_order = sorted(keys)
        listed = list(store.list("folder"))
        assert [info.key for info in listed] == in_order
        assert {info.size for info in listed} == {len(in_order[0])}
        middle = in_order[len(in_order) // 2]
        assert [info.key for info in store.list("folder", middle)] == [key for key in in_order if key > middle]
        assert [info.key for info in islice(store.list(), 3)] == in_order[:3]
        store.delete(info.key for info in store.list("folder"))
        assert [info.key for info in store.list()] == ["other"]

    def test_objects_deleted_while_listing_do_no_harm(self, store: ObjectStore) -> None:
        for number in range(10):
            self.raw_put(store, f"a/{number}/x", b"1")
        listing = store.list()
        first = next(listing)
        store.delete([f"a/{number}/x" for number in range(10)])
        rest = [info.key for info in listing]
        assert first.key == "a/0/x"
        assert rest == sorted(rest)
        assert list(store.list()) == []

    def test_two_listings_do_not_disturb_each_other(self, store: ObjectStore) -> None:
        for key in ("a", "b", "c"):
            self.raw_put(store, key, b"1")
        pairs = zip(store.list(), store.list(), strict=True)
        assert [(one.key, other.key) for one, other in pairs] == [("a", "a"), ("b", "b"), ("c", "c")]
