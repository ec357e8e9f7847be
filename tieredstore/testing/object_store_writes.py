"""Tests of ``ObjectStoreTests`` that write, delete and prepare objects, and find the bytes of broken writes.

This module is separate from ``object_store_tests``, because some stores run only these tests against failing servers.
"""

# ruff: noqa: D102, S311  the names of the tests say what they show; nothing here is secret

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

import pytest

from tieredstore.backends.base import AbandonedWrite, Body, ObjectStore, Prepared, admin_of, find_abandoned_writes
from tieredstore.errors import (
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    PreparedGoneError,
    StoreError,
)
from tieredstore.testing.object_store_reads import StoreAccess

_INVALID_KEYS = ("", "k" * 1025, "ü" * 513, "lone surrogate \ud800")


class WriteTests(StoreAccess):
    """Writes: bodies of every kind, failing bodies, conditions, deletion."""

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
    def test_a_body_may_reuse_its_buffer(self, store: ObjectStore, piece: int) -> None:
        def body() -> Iterator[bytearray]:
            buffer = bytearray()
            for number in range(3):
                # Clearing the buffer raises an error if the store still has a view of it.
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
        # Allow an hour, because a server's clock may differ from ours. A time in seconds instead of milliseconds is
        # still detected.
        assert modified_ms is None or abs(modified_ms - time.time() * 1000) < 3_600_000

    @pytest.mark.parametrize("before_it_breaks", [0, 1, 100_000, 9 << 20])
    def test_a_body_that_raises_leaves_nothing(self, store: ObjectStore, before_it_breaks: int) -> None:
        with pytest.raises(_BodyBrokenError):
            store.put("folder/object", _break_after(before_it_breaks))
        with pytest.raises(ObjectNotFoundError):
            store.get("folder/object")
        assert list(store.list()) == []

    @pytest.mark.parametrize("before_it_breaks", [0, 100_000, 9 << 20])
    def test_a_body_that_raises_leaves_the_old_object(self, store: ObjectStore, before_it_breaks: int) -> None:
        store.put("object", b"old")
        etag = self.etag(store, "object")
        with pytest.raises(_BodyBrokenError):
            store.put("object", _break_after(before_it_breaks))
        assert store.get("object") == b"old"
        assert self.etag(store, "object") == etag

    @pytest.mark.parametrize(
        "error", [OSError(5, "the source's own"), FileNotFoundError(2, "gone"), KeyboardInterrupt()]
    )
    def test_an_error_of_the_body_is_not_taken_for_the_stores(self, store: ObjectStore, error: BaseException) -> None:
        def body() -> Iterator[bytes]:
            yield b"some"
            raise error

        with pytest.raises(type(error)) as caught:
            store.put("object", body())
        assert caught.value is error
        assert list(store.list()) == []

    def test_a_body_of_wrong_types_leaves_nothing(self, store: ObjectStore) -> None:
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
        with pytest.raises(PreconditionFailedError):
            store.put("object", started, if_absent=True)
        assert closed == ["stored", "refused"]

    def test_if_absent_keeps_an_existing_object(self, store: ObjectStore) -> None:
        store.put("object", b"first", if_absent=True)
        for body in (b"second", b"first", b"", [b"sec", b"ond"]):
            with pytest.raises(PreconditionFailedError):
                store.put("object", body, if_absent=True)
        assert store.get("object") == b"first"
        store.delete(["object"])
        store.put("object", iter([b"th", b"ird"]), if_absent=True)
        assert store.get("object") == b"third"

    def test_if_absent_holds_for_a_large_body(self, store: ObjectStore) -> None:
        store.put("object", b"first")
        with pytest.raises(PreconditionFailedError):
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
            with pytest.raises(PreconditionFailedError):
                store.replace("object", b"third", etag)
        assert store.get("object") == b"second"

    def test_a_stream_replaces_an_object_of_any_size(self, store: ObjectStore) -> None:
        store.put("object", b"first")
        second = store.replace(
            "object", (bytes([number]) * (1 << 20) for number in range(12)), self.etag(store, "object")
        )
        assert self.etag(store, "object") == second
        assert store.get("object") == b"".join(bytes([number]) * (1 << 20) for number in range(12))

    def test_replace_with_a_large_stream_keeps_a_changed_object(self, store: ObjectStore) -> None:
        store.put("object", b"first")
        old = self.etag(store, "object")
        store.put("object", b"second")
        with pytest.raises(PreconditionFailedError):
            store.replace("object", itertools.repeat(bytes(1 << 20), 12), old)
        assert store.get("object") == b"second"
        store.delete(["object"])
        with pytest.raises(PreconditionFailedError):
            store.replace("object", itertools.repeat(bytes(1 << 20), 12), old)
        assert list(store.list()) == []

    def test_a_replacement_whose_body_raises_leaves_the_old_object(self, store: ObjectStore) -> None:
        def body() -> Iterator[bytes]:
            for _ in range(12):
                yield bytes(1 << 20)
            raise KeyError("broken off")

        store.put("object", b"first")
        with pytest.raises(KeyError):
            store.replace("object", body(), self.etag(store, "object"))
        assert store.get("object") == b"first"
        assert not list(find_abandoned_writes(store))

    def test_replace_never_makes_an_object(self, store: ObjectStore) -> None:
        store.put("folder/object", b"first")
        etag = self.etag(store, "folder/object")
        store.delete(["folder/object"])
        for key in ("folder/object", "other"):
            with pytest.raises(PreconditionFailedError):
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

    def test_an_object_can_be_written_again_after_a_delete(self, store: ObjectStore) -> None:
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
            with pytest.raises(InvalidKeyError):
                operation()

    def test_a_delete_that_fails_for_one_key_deletes_the_others(self, store: ObjectStore) -> None:
        store.put("one", b"1")
        store.put("two", b"2")
        with pytest.raises(InvalidKeyError, match="1 object"):
            store.delete(["one", "k" * 1025, "two"])
        assert list(store.list()) == []


_STAGING: Final = "_staging/"
_NOTHINGS: Final[tuple[object, ...]] = (None, [], "text", {})


class PreparedTests(StoreAccess):
    """Prepared objects are invisible. Publishing never replaces another object, and may be repeated after it
    succeeded."""

    def test_a_prepared_object_is_invisible_until_it_is_published(self, store: ObjectStore) -> None:
        prepared = self._prepare(store, "folder/object", b"the bytes")
        assert (prepared.key, prepared.size) == ("folder/object", 9)
        assert prepared.sha256 == hashlib.sha256(b"the bytes").hexdigest()
        assert self._list_keys(store) == []
        with pytest.raises(ObjectNotFoundError):
            store.get("folder/object")
        store.publish(prepared)
        assert self.raw_get(store, "folder/object") == b"the bytes"
        assert [info.key for info in store.list()] == ["folder/object"]

    @pytest.mark.parametrize("mebibytes", [0, 1, 12])
    def test_prepared_objects_of_any_size_are_published_whole(self, store: ObjectStore, mebibytes: int) -> None:
        pieces = [bytes([number]) * (1 << 20) for number in range(mebibytes)]
        for key, body in (("folder/one", b"".join(pieces)), ("folder/pieces", iter(pieces))):
            prepared = store.prepare(key, body, staging_prefix=_STAGING)
            store.publish(prepared)
            assert prepared.size == mebibytes << 20
            assert store.get(key) == b"".join(pieces)

    def test_another_process_can_publish_a_prepared_write_from_its_json(self, store: ObjectStore) -> None:
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

    def test_a_prepared_write_never_overwrites_another_object(self, store: ObjectStore) -> None:
        for theirs in (b"other bytes", b"the other's bytes", b""):
            self.raw_put(store, "folder/object", theirs)
            prepared = self._prepare(store, "folder/object", b"our bytes")
            with pytest.raises(PreconditionFailedError):
                store.publish(prepared)
            assert self.raw_get(store, "folder/object") == theirs
            store.discard(prepared)
            assert self.raw_get(store, "folder/object") == theirs
            assert [info.key for info in store.list()] == ["folder/object"]

    def test_of_several_prepared_writes_of_one_key_the_first_published_wins(self, store: ObjectStore) -> None:
        for attempts in range(self.race_rounds):
            key = f"folder/{attempts}"
            prepared = [self._prepare(store, key, b"bytes of %d" % number) for number in range(4)]
            with ThreadPoolExecutor(self.racing_publishers) as pool:
                won = [one for one, is_won in zip(prepared, pool.map(_wins(store), prepared), strict=True) if is_won]
            assert len(won) == 1
            assert hashlib.sha256(store.get(key)).hexdigest() == won[0].sha256
            for one in prepared:
                if one not in won:
                    with pytest.raises(PreconditionFailedError):
                        store.publish(one)
                    store.discard(one)
            store.publish(won[0])
            assert hashlib.sha256(store.get(key)).hexdigest() == won[0].sha256

    def test_concurrent_publishers_of_one_prepared_write_all_succeed(self, store: ObjectStore) -> None:
        for attempts in range(self.race_rounds):
            prepared = self._prepare(store, f"folder/{attempts}", b"the bytes")
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(store.publish, [prepared] * 4))
            assert store.get(f"folder/{attempts}") == b"the bytes"

    def test_a_discarded_write_is_gone(self, store: ObjectStore) -> None:
        prepared = self._prepare(store, "folder/object", b"the bytes")
        if store.discard(prepared):
            # Discarding twice does no harm.
            store.discard(prepared)
            with pytest.raises(PreparedGoneError):
                store.publish(prepared)
            assert list(store.list()) == []
        else:
            # Some services remove the prepared bytes themselves, at a later time, so the object can still be published.
            store.publish(prepared)
            assert store.get("folder/object") == b"the bytes"

    def test_a_published_object_cannot_be_discarded(self, store: ObjectStore) -> None:
        prepared = self._prepare(store, "folder/object", b"the bytes")
        store.publish(prepared)
        # Ignore the result, because not all services report if there was anything to discard.
        store.discard(prepared)
        assert store.get("folder/object") == b"the bytes"

    def test_an_object_that_was_deleted_since_does_not_come_back(self, store: ObjectStore) -> None:
        prepared = self._prepare(store, "folder/object", b"the bytes")
        store.publish(prepared)
        store.delete(["folder/object"])
        with pytest.raises(PreparedGoneError):
            store.publish(prepared)
        assert list(store.list()) == []

    def test_a_body_that_breaks_off_leaves_nothing_to_publish(self, store: ObjectStore) -> None:
        for mebibytes in (1, 12):
            with pytest.raises(_BodyBrokenError):
                store.prepare("folder/object", _break_after(mebibytes << 20), staging_prefix=_STAGING)
        assert list(store.list()) == []
        assert [write for write in find_abandoned_writes(store, "folder/object") if write.removable] == []
        store.put("folder/object", b"written", if_absent=True)

    def test_a_body_is_closed_however_it_ends(self, store: ObjectStore) -> None:
        body = _break_after(1 << 20)
        with pytest.raises(InvalidKeyError):
            store.prepare("", body, staging_prefix=_STAGING)
        assert next(body, None) is None

    def test_invalid_json_of_a_prepared_write_is_refused(self, store: ObjectStore) -> None:
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

    def _list_keys(self, store: ObjectStore) -> list[str]:
        """Return the keys of all objects except staged ones."""
        return [info.key for info in store.list() if not info.key.startswith(_STAGING)]


def _wins(store: ObjectStore) -> Callable[[Prepared], bool]:
    def is_won(prepared: Prepared) -> bool:
        try:
            store.publish(prepared)
        except PreconditionFailedError:
            return False
        return True

    return is_won


_KILLED_PUT = """
    import os, pickle, signal, sys, time

    def body():
        for _ in range(12):
            yield bytes(1 << 20)
        # Give the parts time to arrive at the store.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
        yield b""

    pickle.loads(sys.stdin.buffer.read()).put("folder/object", body())
"""


class AbandonedTests(StoreAccess):
    """The bytes of broken writes are invisible. Abandoned writes are listed apart from objects, and can be discarded if
    the service permits it.
    """

    def test_finished_writes_leave_nothing_behind(self, store: ObjectStore) -> None:
        store.put("folder/object", b"first")
        store.put("folder/large", (bytes(1 << 20) for _ in range(12)))
        store.replace("folder/object", b"second", self.etag(store, "folder/object"))
        with pytest.raises(_BodyBrokenError):
            store.put("folder/broken", _break_after(12 << 20))
        left = [*self._find_abandoned(store, "folder/object"), *self._find_abandoned(store, "folder/large")]
        assert left == []
        # Bytes of a broken write may remain only if the service alone can remove them, and if they belong to no object.
        assert [write for write in self._find_abandoned(store, "folder/broken") if write.removable] == []

    def test_a_killed_write_is_invisible_and_can_be_discarded(self, store: ObjectStore) -> None:
        if not self.picklable:
            # The objects of this store exist only in this process, so another process cannot write them.
            return
        self._put_and_be_killed(store)
        assert list(store.list()) == []
        with pytest.raises(ObjectNotFoundError):
            store.get("folder/object")
        for write in self._find_abandoned(store, "folder/object"):
            assert write.key.startswith("folder/")
            assert write.size is None or write.size > 0
            assert write.started_ms is None or abs(write.started_ms - time.time() * 1000) < 3_600_000
            assert store.discard(write) == write.removable
            # Discarding twice does no harm.
            store.discard(write)
        assert [write for write in self._find_abandoned(store, "folder/object") if write.removable] == []
        assert list(store.list()) == []
        store.put("folder/object", b"written", if_absent=True)
        assert store.get("folder/object") == b"written"
        assert self._find_abandoned(store, "folder/object") == []

    def test_the_store_tells_its_own_time(self, store: ObjectStore) -> None:
        before = admin_of(store).now_ms()
        if before is None:
            return  # the store has no clock, so the age of a write is unknown
        store.put("folder/timed", b"")
        written = store.head("folder/timed").modified_ms
        store.delete(["folder/timed"])
        after = admin_of(store).now_ms()
        assert after is not None
        assert written is not None
        # Allow a difference of one second, because services report whole seconds, truncated or rounded.
        assert before - 1000 <= written <= after + 1000
        assert list(store.list()) == []
        assert isinstance(list(admin_of(store).kept_after_delete()), list)

    def test_abandoned_writes_below_another_prefix_are_not_listed(self, store: ObjectStore) -> None:
        with pytest.raises(_BodyBrokenError):
            store.put("folder/object", _break_after(12 << 20))
        assert list(find_abandoned_writes(store, "elsewhere/")) == []
        assert list(find_abandoned_writes(store, "folder/object/below")) == []

    def _find_abandoned(self, store: ObjectStore, key: str) -> list[AbandonedWrite]:
        """Return the abandoned writes of one key, because some servers cannot list those of several keys."""
        return list(find_abandoned_writes(store, key))

    def _put_and_be_killed(self, store: ObjectStore) -> None:
        """Write 12 MiB to ``folder/object`` in a process that is killed before its ``put`` ends."""
        killed = subprocess.run(  # noqa: S603  our own code, in an interpreter of its own
            [sys.executable, "-c", textwrap.dedent(_KILLED_PUT)],
            input=pickle.dumps(store),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert killed.returncode == -9, killed.stderr.decode()


class _BodyBrokenError(Exception):
    """Raised by the bodies of broken writes in these tests."""


def _break_after(size: int) -> Iterator[bytes]:
    for at in range(0, size, 1 << 20):
        yield bytes(min(1 << 20, size - at))
    raise _BodyBrokenError
