"""How a store writes, replaces and deletes: a part of ``ObjectStoreTests``."""

# ruff: noqa: D102, S311  the names of the tests say what they show; nothing here is secret

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Generator, Iterator
from typing import cast

import pytest

from tieredstore.backends.base import Body, ObjectStore
from tieredstore.errors import InvalidKey, ObjectNotFound, PreconditionFailed
from tieredstore.testing.store_access import StoreAccess

_INVALID_KEYS = ("", "k" * 1025, "ü" * 513, "lone surrogate \ud800")


class WriteTests(StoreAccess):
    """Bodies of every kind, failing bodies, conditions, deletion."""

    @pytest.mark.parametrize(
        "body",
        [
            b"0123456789",
            bytearray(b"0123456789"),
            memoryview(b"--0123456789--")[2:-2],
            memoryview(b"0_1_2_3_4_5_6_7_8_9_")[::2],
            [b"0123", b"456789"],
            (b"", b"01234567", bytearray(b"8"), b"", memoryview(b"9"), b""),
        ],
        ids=["bytes", "bytearray", "memoryview", "strided", "list", "mixed"],
    )
    def test_any_kind_of_body_is_stored(self, store: ObjectStore, body: Body) -> None:
        store.put("object", body)
        assert store.get("object") == b"0123456789"

    @pytest.mark.parametrize("body", [b"", [], [b""], iter(())], ids=["bytes", "list", "empty buffer", "iterator"])
    def test_an_empty_body_makes_an_empty_object(self, store: ObjectStore, body: Body) -> None:
        store.put("object", body)
        assert store.head("object").size == 0
        assert [info.key for info in store.list()] == ["object"]

    @pytest.mark.parametrize("piece", [1000, 70_000, 9 << 20])
    def test_a_buffer_that_is_used_again_for_the_next_piece_is_stored_right(
        self, store: ObjectStore, piece: int
    ) -> None:
        def body() -> Iterator[bytearray]:
            buffer = bytearray()
            for number in range(3):
                # Growing the buffer fails if the store still holds on to it.
                buffer.clear()
                buffer.extend(random.Random(number).randbytes(piece + number))
                yield buffer
            buffer[:] = b"!" * len(buffer)

        store.put("object", body())
        assert store.get("object") == b"".join(random.Random(n).randbytes(piece + n) for n in range(3))

    def test_put_overwrites(self, store: ObjectStore) -> None:
        store.put("object", b"a longer first content")
        first = self.etag(store, "object")
        store.put("object", b"second")
        assert store.get("object") == b"second"
        assert store.head("object").size == 6
        assert self.etag(store, "object") != first

    def test_the_etag_changes_with_the_content_and_only_then(self, store: ObjectStore) -> None:
        seen: list[str] = []
        for content in (b"one", b"two", b"twa", b"", b"four"):
            store.put("object", content)
            seen.append(self.etag(store, "object"))
            assert self.etag(store, "object") == seen[-1]
        assert len(set(seen)) == len(seen)

    def test_the_modification_time_is_about_now(self, store: ObjectStore) -> None:
        store.put("object", b"data")
        modified_ms = store.head("object").modified_ms
        # A server's clock may differ, but not by an hour: seconds in place of milliseconds would.
        assert modified_ms is None or abs(modified_ms - time.time() * 1000) < 3_600_000

    @pytest.mark.parametrize("before_it_breaks", [0, 1, 100_000, 9 << 20])
    def test_a_body_that_raises_leaves_nothing(self, store: ObjectStore, before_it_breaks: int) -> None:
        with pytest.raises(_BodyBrokenError):
            store.put("folder/object", _breaking(before_it_breaks))
        with pytest.raises(ObjectNotFound):
            store.get("folder/object")
        assert list(store.list()) == []

    @pytest.mark.parametrize("before_it_breaks", [0, 100_000, 9 << 20])
    def test_a_body_that_raises_leaves_the_old_object(self, store: ObjectStore, before_it_breaks: int) -> None:
        store.put("object", b"old")
        etag = self.etag(store, "object")
        with pytest.raises(_BodyBrokenError):
            store.put("object", _breaking(before_it_breaks))
        assert store.get("object") == b"old"
        assert self.etag(store, "object") == etag

    @pytest.mark.parametrize(
        "error", [OSError(5, "the source's own"), FileNotFoundError(2, "gone"), KeyboardInterrupt()]
    )
    def test_what_the_body_raises_is_not_taken_for_the_store_s_error(
        self, store: ObjectStore, error: BaseException
    ) -> None:
        def body() -> Iterator[bytes]:
            yield b"some"
            raise error

        with pytest.raises(type(error)) as caught:
            store.put("object", body())
        assert caught.value is error
        assert list(store.list()) == []

    def test_a_body_of_wrong_things_leaves_nothing(self, store: ObjectStore) -> None:
        wrong = cast("list[bytes]", [b"right", "text"])
        with pytest.raises(TypeError):
            store.put("object", wrong)
        assert list(store.list()) == []

    def test_a_generator_is_closed_however_the_put_ends(self, store: ObjectStore) -> None:
        closed: list[str] = []

        def body(name: str) -> Generator[bytes]:
            try:
                yield b"some"
                yield b"more"
            finally:
                closed.append(name)

        kept = [body("stored"), body("refused")]
        store.put("object", kept[0])
        assert closed == ["stored"]
        started = kept[1]
        assert next(started) == b"some"
        with pytest.raises(PreconditionFailed):
            store.put("object", started, if_absent=True)
        assert closed == ["stored", "refused"]

    def test_if_absent_keeps_what_is_there(self, store: ObjectStore) -> None:
        store.put("object", b"first", if_absent=True)
        for body in (b"second", b"first", b"", [b"sec", b"ond"]):
            with pytest.raises(PreconditionFailed):
                store.put("object", body, if_absent=True)
        assert store.get("object") == b"first"
        store.delete(["object"])
        store.put("object", iter([b"th", b"ird"]), if_absent=True)
        assert store.get("object") == b"third"

    def test_if_absent_holds_for_a_large_body(self, store: ObjectStore) -> None:
        store.put("object", b"first")
        with pytest.raises(PreconditionFailed):
            store.put("object", itertools.repeat(bytes(1 << 20), 12), if_absent=True)
        assert store.get("object") == b"first"

    def test_replace_gives_the_new_etag(self, store: ObjectStore) -> None:
        store.put("object", b"first")
        second = store.replace("object", bytearray(b"second"), self.etag(store, "object"))
        assert store.get("object") == b"second"
        assert self.etag(store, "object") == second
        third = store.replace("object", memoryview(b"--third--")[2:-2], second)
        assert store.get("object") == b"third"
        assert third == self.etag(store, "object") != second

    def test_replace_with_an_old_etag_is_refused(self, store: ObjectStore) -> None:
        store.put("object", b"first")
        old = self.etag(store, "object")
        store.put("object", b"second")
        for etag in (old, "never an etag", ""):
            with pytest.raises(PreconditionFailed):
                store.replace("object", b"third", etag)
        assert store.get("object") == b"second"

    def test_replace_never_makes_an_object(self, store: ObjectStore) -> None:
        store.put("folder/object", b"first")
        etag = self.etag(store, "folder/object")
        store.delete(["folder/object"])
        for key in ("folder/object", "other"):
            with pytest.raises(PreconditionFailed):
                store.replace(key, b"second", etag)
        assert list(store.list()) == []

    def test_delete_is_idempotent(self, store: ObjectStore) -> None:
        store.put("folder/one", b"1")
        store.put("folder/two", b"2")
        store.delete(["folder/one", "absent", "no/such/folder", "folder", "folder/one", "folder/two/below"])
        assert [info.key for info in store.list()] == ["folder/two"]
        store.delete(["folder/one"])
        store.delete([])
        store.delete(iter(["folder/two"]))
        assert list(store.list()) == []

    def test_an_object_comes_again_after_a_delete(self, store: ObjectStore) -> None:
        for round_number in range(3):
            store.put("a/b/c", b"%d" % round_number, if_absent=True)
            assert store.get("a/b/c") == b"%d" % round_number
            store.delete(["a/b/c"])

    @pytest.mark.parametrize("key", _INVALID_KEYS, ids=["empty", "1025 bytes", "1026 bytes", "surrogate"])
    def test_an_invalid_key_is_refused_by_every_operation(self, store: ObjectStore, key: str) -> None:
        operations: list[Callable[[], object]] = [
            lambda: store.put(key, b""),
            lambda: store.get(key),
            lambda: store.get_into(key, 0, bytearray(1)),
            lambda: store.head(key),
            lambda: store.replace(key, b"", "etag"),
        ]
        for operation in operations:
            with pytest.raises(InvalidKey):
                operation()

    def test_a_delete_that_fails_for_one_key_deletes_the_others(self, store: ObjectStore) -> None:
        store.put("one", b"1")
        store.put("two", b"2")
        with pytest.raises(InvalidKey, match="1 object"):
            store.delete(["one", "k" * 1025, "two"])
        assert list(store.list()) == []


class _BodyBrokenError(Exception):
    """What a body of these tests raises."""


def _breaking(size: int) -> Iterator[bytes]:
    for at in range(0, size, 1 << 20):
        yield bytes(min(1 << 20, size - at))
    raise _BodyBrokenError
