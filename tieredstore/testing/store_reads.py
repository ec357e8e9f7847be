"""How a store reads: a part of ``ObjectStoreTests``."""

# ruff: noqa: D102, S311  the names of the tests say what they show; nothing here is secret

from __future__ import annotations

import pickle
import random

import pytest

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import InvalidKey, InvalidRange, ObjectNotFound, RangeNotSatisfiable
from tieredstore.testing.store_access import StoreAccess

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
"""Keys that every store holds, and that something on the way may be tempted to change."""


class ReadTests(StoreAccess):
    """Ranges, sizes, odd keys, absent objects."""

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
        # Each MiB differs from the next, so that swapped parts do not pass for right.
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
        with pytest.raises(RangeNotSatisfiable):
            store.get("digits", start, stop)

    @pytest.mark.parametrize(("start", "size"), [(0, 11), (9, 2), (10, 1), (1 << 40, 1)])
    def test_a_buffer_past_the_end_is_not_satisfiable(self, store: ObjectStore, start: int, size: int) -> None:
        store.put("digits", b"0123456789")
        with pytest.raises(RangeNotSatisfiable):
            store.get_into("digits", start, bytearray(size))

    @pytest.mark.parametrize(("start", "stop"), [(-1, 1), (-1, None), (2, 1), (-2, -2)])
    def test_what_is_no_range_is_refused(self, store: ObjectStore, start: int, stop: int | None) -> None:
        store.put("digits", b"0123456789")
        with pytest.raises(InvalidRange):
            store.get("digits", start, stop)

    def test_a_buffer_before_the_start_is_refused(self, store: ObjectStore) -> None:
        store.put("digits", b"0123456789")
        with pytest.raises(InvalidRange):
            store.get_into("digits", -1, bytearray(2))

    def test_an_empty_object_is_read_whole_and_has_no_ranges(self, store: ObjectStore) -> None:
        store.put("empty", b"")
        assert store.get("empty") == b""
        with pytest.raises(RangeNotSatisfiable):
            store.get("empty", 1)
        with pytest.raises(RangeNotSatisfiable):
            store.get("empty", 0, 1)

    def test_an_empty_range_makes_no_request(self, store: ObjectStore) -> None:
        # A request would tell that there is no such object.
        assert store.get("absent", 0, 0) == b""
        assert store.get("absent", 7, 7) == b""
        store.get_into("absent", 7, bytearray())

    def test_get_into_fills_exactly_the_buffer(self, store: ObjectStore) -> None:
        store.put("digits", b"0123456789")
        buffer = bytearray(b"x" * 6)
        store.get_into("digits", 4, memoryview(buffer)[1:4])
        assert buffer == b"x456xx"

    def test_a_whole_read_is_of_an_object_of_that_size(self, store: ObjectStore) -> None:
        store.put("digits", b"0123456789")
        buffer = bytearray(b"x" * 12)
        store.get_whole("digits", memoryview(buffer)[1:11])
        assert buffer == b"x0123456789x"
        store.put("empty", b"")
        store.get_whole("empty", bytearray())
        for size in (0, 9, 11):
            with pytest.raises(RangeNotSatisfiable, match=f"all {size} bytes of 'digits'.* has 10"):
                store.get_whole("digits", bytearray(size))
        with pytest.raises(ObjectNotFound):
            store.get_whole("absent", bytearray(1))

    def test_a_small_read_is_the_whole_object_or_none(self, store: ObjectStore) -> None:
        store.put("digits", b"0123456789")
        store.put("empty", b"")
        assert store.get_small("digits", 10) == store.get_small("digits", 1 << 40) == b"0123456789"
        assert store.get_small("digits", 9) is None
        assert store.get_small("digits", 0) is None
        assert store.get_small("empty", 0) == b""
        # The connection of an answer that was not read is not used for another.
        assert store.get("digits", 2, 4) == b"23"
        with pytest.raises(ObjectNotFound):
            store.get_small("absent", 10)

    def test_small_reads_together_are_those_that_each_key_gets_alone(self, store: ObjectStore) -> None:
        bodies = {"a/1": b"one", "a/2": b"", "b/1": b"0123456789", "top": b"t"}
        for key, body in bodies.items():
            store.put(key, body)
        assert store.get_small_batch([], 9) == []
        assert store.get_small_batch(["top", "a/2", "a/1", "b/1", "a/1"], 9) == [b"t", b"", b"one", None, b"one"]
        keys = ["a/1", "a/absent", "absent/1", "a", "a/2/3", "", "b/1"]
        *_, last = answers = store.get_small_batch(keys, 10)
        assert (answers[0], last) == (b"one", b"0123456789")
        for key, answer in zip(keys[1:-1], answers[1:-1], strict=True):
            with pytest.raises(InvalidKey if key == "" else ObjectNotFound) as alone:
                store.get_small(key, 10)
            assert (type(answer), str(answer)) == (type(alone.value), str(alone.value))
        assert store.small_batch >= 1

    def test_an_absent_object_is_told_from_everything_else(self, store: ObjectStore) -> None:
        store.put("folder/object", b"data")
        for key in ("absent", "folder", "folder/object/below", "folder/objec", "folder/object2"):
            with pytest.raises(ObjectNotFound):
                store.get(key)
            with pytest.raises(ObjectNotFound):
                store.get(key, 0, 1)
            with pytest.raises(ObjectNotFound):
                store.get_into(key, 0, bytearray(1))
            with pytest.raises(ObjectNotFound):
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

    def test_odd_keys_do_not_fall_together(self, store: ObjectStore) -> None:
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
        copy: ObjectStore = pickle.loads(pickle.dumps(store))  # noqa: S301  our own bytes, made one call ago
        try:
            assert copy.identity == store.identity
            assert copy.get("object") == b"data"
            copy.put("object", b"from the copy")
            assert store.get("object") == b"from the copy"
        finally:
            copy.close()

    def test_a_closed_store_opens_anew(self, store: ObjectStore) -> None:
        store.put("object", b"data")
        store.close()
        assert store.get("object") == b"data"
        store.close()
        store.close()
