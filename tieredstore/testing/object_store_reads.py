"""Tests of ``ObjectStoreTests`` for reads and listings, and the settings that a subclass can change."""

# ruff: noqa: D102, S311  the names of the tests say what they show; nothing here is secret

from __future__ import annotations

import pickle
import random
from itertools import islice
from typing import ClassVar, Final

import pytest

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import InvalidKeyError, InvalidRangeError, ObjectNotFoundError, RangeNotSatisfiableError


class StoreAccess:
    """The settings and hooks of ``ObjectStoreTests``. The docstring of ``ObjectStoreTests`` says how to use them."""

    picklable: ClassVar[bool] = True
    """False for a store whose pickling must raise TypeError."""

    largest_object: ClassVar[int] = 70 << 20
    """The size in bytes of the largest object that a test writes."""

    listed_objects: ClassVar[int] = 2_500
    """The number of objects in the test of a long listing. It must exceed two pages of the store's listing."""

    race_rounds: ClassVar[int] = 10
    """The number of times that the tests run each race between writers."""

    racing_publishers: ClassVar[int] = 4
    """The number of threads that publish different objects under one key at once.

    Set this to 1 if the service has no conditional publishing, so that the store can only check before it publishes.
    """

    @pytest.fixture
    def store(self) -> ObjectStore:
        """An empty store, new for each test and closed after it. Every subclass must define this fixture."""
        pytest.fail(f"{type(self).__name__} defines no fixture `store`")

    def raw_put(self, store: ObjectStore, key: str, data: bytes) -> None:
        """Write an object, if possible without ``store``, which is the code under test."""
        store.put(key, data)

    def raw_get(self, store: ObjectStore, key: str) -> bytes:
        """Read an object, if possible without ``store``, which is the code under test."""
        return store.get(key)

    def etag(self, store: ObjectStore, key: str) -> str:
        """Return the object's etag from ``head``, which must always return an etag."""
        etag = store.head(key).etag
        assert etag
        return etag


ODD_KEYS = (
    "plain",
    "with space/and+plus/and%2Fpercent",
    "topic-with-dashes-4O_Inmo0QGefAo5zH_tlAg/0/00000000000000000000-e2OsozFITVWwwLrjgNHSwg.rsm-manifest",
    "ünïcödé/日本語/😀",
    "e\u0301 and \u00e9 are two keys",
    "\u00e9 and e\u0301 are two keys",
    "?query=1&x#fragment",
    "quotes'\"<>&;:,=@$*!()[]{}|^~`",
    ".hidden/..two/three...",
    "a" * 255 + "/" + "b" * 255,
    "/".join("d" * 20),
)
"""Unusual keys, which libraries and services often change or refuse, but every store must support."""


class ReadTests(StoreAccess):
    """Reads of ranges, sizes, odd keys, and absent objects."""

    @pytest.mark.parametrize("size", [0, 1, 2, 4095, 65_537, 5 << 20])
    def test_an_object_comes_back_as_it_was_put(self, store: ObjectStore, size: int) -> None:
        data = random.Random(size).randbytes(size)
        store.put("object", data)
        assert store.get("object") == data
        assert self.raw_get(store, "object") == data
        assert store.head("object").size == size

    def test_an_object_put_by_other_means_is_read(self, store: ObjectStore) -> None:
        self.raw_put(store, "folder/object", b"somebody else's")
        assert store.get("folder/object") == b"somebody else's"
        assert store.head("folder/object").size == 15

    def test_a_large_object_comes_back_in_fifty_random_ranges(self, store: ObjectStore) -> None:
        source = random.Random(70)
        piece = source.randbytes(1 << 20)
        whole, rest = divmod(self.largest_object, len(piece))
        # Each MiB differs from the next, so that swapped parts are detected.
        data = b"".join(bytes([i % 256]) + piece[1:] for i in range(whole)) + piece[:rest]
        store.put("large", (data[at : at + 300_007] for at in range(0, len(data), 300_007)))
        assert store.head("large").size == len(data)
        for _ in range(50):
            start = source.randrange(len(data))
            stop = min(len(data), start + source.choice((1, 17, 4096, 1 << 20, 9 << 20)))
            assert store.get("large", start, stop) == data[start:stop]
        into = bytearray(len(data))
        store.get_into("large", 0, into)
        assert into == data

    def test_ranges_are_half_open(self, store: ObjectStore) -> None:
        store.put("digits", b"0123456789")
        assert store.get("digits", 3, 5) == b"34"
        assert store.get("digits", 0, 10) == b"0123456789"
        assert store.get("digits", 9) == b"9"
        assert store.get("digits", 9, 10) == b"9"

    def test_get_gives_bytes(self, store: ObjectStore) -> None:
        store.put("digits", bytearray(b"0123456789"))
        assert type(store.get("digits")) is bytes
        assert type(store.get("digits", 2, 4)) is bytes

    @pytest.mark.parametrize(("start", "stop"), [(0, 11), (9, 11), (10, 11), (11, 12), (10, None), (11, None)])
    def test_a_range_past_the_end_is_not_satisfiable(self, store: ObjectStore, start: int, stop: int | None) -> None:
        store.put("digits", b"0123456789")
        with pytest.raises(RangeNotSatisfiableError):
            store.get("digits", start, stop)

    @pytest.mark.parametrize(("start", "size"), [(0, 11), (9, 2), (10, 1), (1 << 40, 1)])
    def test_a_buffer_past_the_end_is_not_satisfiable(self, store: ObjectStore, start: int, size: int) -> None:
        store.put("digits", b"0123456789")
        with pytest.raises(RangeNotSatisfiableError):
            store.get_into("digits", start, bytearray(size))

    @pytest.mark.parametrize(("start", "stop"), [(-1, 1), (-1, None), (2, 1), (-2, -2)])
    def test_an_invalid_range_is_refused(self, store: ObjectStore, start: int, stop: int | None) -> None:
        store.put("digits", b"0123456789")
        with pytest.raises(InvalidRangeError):
            store.get("digits", start, stop)

    def test_a_buffer_before_the_start_is_refused(self, store: ObjectStore) -> None:
        store.put("digits", b"0123456789")
        with pytest.raises(InvalidRangeError):
            store.get_into("digits", -1, bytearray(2))

    def test_an_empty_object_is_read_whole_and_has_no_ranges(self, store: ObjectStore) -> None:
        store.put("empty", b"")
        assert store.get("empty") == b""
        with pytest.raises(RangeNotSatisfiableError):
            store.get("empty", 1)
        with pytest.raises(RangeNotSatisfiableError):
            store.get("empty", 0, 1)

    def test_an_empty_range_makes_no_request(self, store: ObjectStore) -> None:
        # The object is absent, so that a request would raise an error.
        assert store.get("absent", 0, 0) == b""
        assert store.get("absent", 7, 7) == b""
        store.get_into("absent", 7, bytearray())

    def test_get_into_fills_exactly_the_buffer(self, store: ObjectStore) -> None:
        store.put("digits", b"0123456789")
        buffer = bytearray(b"x" * 6)
        store.get_into("digits", 4, memoryview(buffer)[1:4])
        assert buffer == b"x456xx"

    def test_a_whole_read_requires_a_buffer_of_the_objects_size(self, store: ObjectStore) -> None:
        store.put("digits", b"0123456789")
        buffer = bytearray(b"x" * 12)
        store.get_whole("digits", memoryview(buffer)[1:11])
        assert buffer == b"x0123456789x"
        store.put("empty", b"")
        store.get_whole("empty", bytearray())
        for size in (0, 9, 11):
            with pytest.raises(RangeNotSatisfiableError, match=f"all {size} bytes of 'digits'.* has 10"):
                store.get_whole("digits", bytearray(size))
        with pytest.raises(ObjectNotFoundError):
            store.get_whole("absent", bytearray(1))

    def test_a_small_read_is_the_whole_object_or_none(self, store: ObjectStore) -> None:
        store.put("digits", b"0123456789")
        store.put("empty", b"")
        assert store.get_small("digits", 10) == store.get_small("digits", 1 << 40) == b"0123456789"
        assert store.get_small("digits", 9) is None
        assert store.get_small("digits", 0) is None
        assert store.get_small("empty", 0) == b""
        # ``get_small`` did not read a response to its end, so the store must not reuse that connection for this read.
        assert store.get("digits", 2, 4) == b"23"
        with pytest.raises(ObjectNotFoundError):
            store.get_small("absent", 10)

    def test_a_batch_of_small_reads_gives_the_results_of_single_reads(self, store: ObjectStore) -> None:
        bodies = {"a/1": b"one", "a/2": b"", "b/1": b"0123456789", "top": b"t"}
        for key, body in bodies.items():
            store.put(key, body)
        assert store.get_small_batch([], 9) == []
        assert store.get_small_batch(["top", "a/2", "a/1", "b/1", "a/1"], 9) == [b"t", b"", b"one", None, b"one"]
        keys = ["a/1", "a/absent", "absent/1", "a", "a/2/3", "", "b/1"]
        *_, last = answers = store.get_small_batch(keys, 10)
        assert (answers[0], last) == (b"one", b"0123456789")
        for key, answer in zip(keys[1:-1], answers[1:-1], strict=True):
            with pytest.raises(InvalidKeyError if key == "" else ObjectNotFoundError) as alone:
                store.get_small(key, 10)
            assert (type(answer), str(answer)) == (type(alone.value), str(alone.value))
        assert store.small_batch >= 1

    def test_an_absent_object_raises_object_not_found_error(self, store: ObjectStore) -> None:
        store.put("folder/object", b"data")
        for key in ("absent", "folder", "folder/object/below", "folder/objec", "folder/object2"):
            with pytest.raises(ObjectNotFoundError):
                store.get(key)
            with pytest.raises(ObjectNotFoundError):
                store.get(key, 0, 1)
            with pytest.raises(ObjectNotFoundError):
                store.get_into(key, 0, bytearray(1))
            with pytest.raises(ObjectNotFoundError):
                store.head(key)

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_an_odd_key_is_kept_as_it_is(self, store: ObjectStore, key: str) -> None:
        store.put(key, key.encode())
        assert store.get(key) == key.encode()
        assert store.head(key).key == key
        assert [info.key for info in store.list()] == [key]
        assert [info.key for info in store.list(key)] == [key]
        assert store.replace(key, b"new", self.etag(store, key)) == self.etag(store, key)
        store.delete([key])
        assert list(store.list()) == []

    def test_similar_odd_keys_are_different_objects(self, store: ObjectStore) -> None:
        for key in ODD_KEYS:
            store.put(key, key.encode())
        assert {key: store.get(key) for key in ODD_KEYS} == {key: key.encode() for key in ODD_KEYS}

    def test_head_and_listing_agree(self, store: ObjectStore) -> None:
        store.put("object", b"four")
        listed, headed = next(store.list()), store.head("object")
        assert (listed.key, listed.size) == (headed.key, headed.size) == ("object", 4)
        assert listed.modified_ms == headed.modified_ms
        assert listed.etag in (None, headed.etag)

    def test_a_pickled_store_holds_the_same_objects(self, store: ObjectStore) -> None:
        if not self.picklable:
            with pytest.raises(TypeError):
                pickle.dumps(store)
            return
        store.put("object", b"data")
        copy: ObjectStore = pickle.loads(pickle.dumps(store))  # noqa: S301  our own bytes
        try:
            assert copy.identity == store.identity
            assert copy.get("object") == b"data"
            copy.put("object", b"from the copy")
            assert store.get("object") == b"from the copy"
        finally:
            copy.close()

    def test_a_closed_store_opens_again_on_use(self, store: ObjectStore) -> None:
        store.put("object", b"data")
        store.close()
        assert store.get("object") == b"data"
        store.close()
        store.close()


_SIMILAR_KEYS: Final = ("a-b", "a/b/1", "a/b/2", "a/bc", "a0", "b")  # in order


class ListTests(StoreAccess):
    """Listings: order, prefixes, pages."""

    def test_an_empty_store_lists_nothing(self, store: ObjectStore) -> None:
        assert list(store.list()) == []
        assert list(store.list("prefix", "start")) == []

    def test_listing_is_in_the_order_of_utf_8_bytes(self, store: ObjectStore) -> None:
        keys = ("A", "a b", "a!", "a-b", "a/b", "a/b-c", "a/b0", "a0", "b", "b.log/x", "é", "\uffee", "😀")
        for key in random.Random(1).sample(keys, len(keys)):
            self.raw_put(store, key, b"x")
        assert [info.key for info in store.list()] == sorted(keys, key=str.encode) == list(keys)

    def test_folders_are_listed_among_files_in_the_order_of_whole_keys(self, store: ObjectStore) -> None:
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

    def test_listing_and_deleting_span_several_pages(self, store: ObjectStore) -> None:
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
