"""Contract tests that every object store must pass, including your own."""

# ruff: noqa: D102  the names of the tests say what they show

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ObjectNotFoundError, PreconditionFailedError
from tieredstore.testing.object_store_reads import ListTests, ReadTests, StoreAccess
from tieredstore.testing.object_store_writes import AbandonedTests, PreparedTests, WriteTests

_RACERS = 8


class RaceTests(StoreAccess):
    """If several writers race under the same condition, exactly one succeeds. Readers see only complete objects."""

    def test_of_racing_if_absent_writers_exactly_one_wins(self, store: ObjectStore) -> None:
        def attempt(key: str, racer: int) -> Callable[[], None]:
            body = b"%d" % racer * 1000
            return lambda: store.put(key, body if racer % 2 else iter([body[:500], body[500:]]), if_absent=True)

        for round_number in range(self.race_rounds):
            key = f"race/{round_number}/object"
            (winner,) = _winners([attempt(key, racer) for racer in range(_RACERS)])
            assert store.get(key) == b"%d" % winner * 1000

    def test_all_attempts_of_one_write_succeed_and_make_one_object(self, store: ObjectStore) -> None:
        for round_number in range(self.race_rounds):
            key, mark, body = f"race/{round_number}/object", uuid.uuid4().hex, b"%d" % round_number * 1000
            tries = [partial(store.put_once, key, body, mark) for _ in range(_RACERS)]
            assert _winners(tries) == list(range(_RACERS))
            store.put_once(key, body, mark)
            assert store.get(key) == body
            with pytest.raises(PreconditionFailedError):
                store.put_once(key, b"another's", uuid.uuid4().hex)
            assert [info.key for info in store.list(f"race/{round_number}/")] == [key]
            assert store.get(key) == body

    def test_of_racing_writes_all_attempts_of_exactly_one_succeed(self, store: ObjectStore) -> None:
        for round_number in range(self.race_rounds):
            key = f"race/{round_number}/object"
            bodies = [b"%d" % racer * 1000 for racer in (0, 0, 1, 1, 2, 2)]
            marks = [mark for mark in (uuid.uuid4().hex for _ in range(3)) for _ in range(2)]
            writes = zip(bodies, marks, strict=True)
            winners = _winners([partial(store.put_once, key, body, mark) for body, mark in writes])
            assert winners in ([0, 1], [2, 3], [4, 5])
            assert store.get(key) == bodies[winners[0]]

    def test_of_racing_replacers_exactly_one_wins(self, store: ObjectStore) -> None:
        store.put("race/object", b"start")

        for round_number in range(self.race_rounds):
            etag = self.etag(store, "race/object")
            bodies = [b"%d of round %d" % (racer, round_number) for racer in range(_RACERS)]
            (winner,) = _winners([partial(store.replace, "race/object", body, etag) for body in bodies])
            assert store.get("race/object") == bodies[winner]

    def test_no_update_by_replace_is_lost(self, store: ObjectStore) -> None:
        store.put("counter", b"0")

        def increment(_: int) -> None:
            while True:
                try:
                    etag = self.etag(store, "counter")
                    # Read the etag before the content, so that this write fails if another writer replaces the object
                    # in between.
                    store.replace("counter", b"%d" % (int(store.get("counter")) + 1), etag)
                except PreconditionFailedError:
                    continue
                return

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(increment, range(24)))
        assert store.get("counter") == b"24"

    def test_replace_does_not_bring_a_deleted_object_back(self, store: ObjectStore) -> None:
        for round_number in range(self.race_rounds):
            key = f"race/{round_number}/object"
            store.put(key, b"old")
            etag = self.etag(store, key)
            outcomes = _outcomes([partial(store.delete, [key]), partial(store.replace, key, b"new", etag)])
            assert outcomes[0] is None
            assert outcomes[1] is None or isinstance(outcomes[1], PreconditionFailedError)
            assert list(store.list(key)) == []

    def test_writers_and_deleters_of_one_folder_do_not_disturb_each_other(self, store: ObjectStore) -> None:
        def work(worker: int) -> Callable[[], None]:
            def rounds() -> None:
                for round_number in range(self.race_rounds):
                    store.put(f"a/b/{worker}", b"%d" % round_number)
                    assert store.get(f"a/b/{worker}") == b"%d" % round_number
                    store.delete([f"a/b/{worker}"])

            return rounds

        assert _outcomes([work(worker) for worker in range(_RACERS)]) == [None] * _RACERS
        assert list(store.list()) == []

    def test_readers_see_whole_objects_only(self, store: ObjectStore) -> None:
        contents = [bytes([65 + n]) * (200_000 + n) for n in range(4)]
        store.put("object", contents[0])
        stop = threading.Event()
        seen: list[bytes] = []

        def read() -> None:
            finished = False
            while not finished:
                finished = stop.is_set()
                seen.append(store.get("object"))
                assert store.head("object").size in {len(content) for content in contents}

        def write() -> None:
            try:
                for round_number in range(4 * self.race_rounds):
                    content = contents[round_number % 4]
                    store.put("object", [content[:70_000], content[70_000:]])
            finally:
                stop.set()

        assert _outcomes([read, read, write]) == [None, None, None]
        assert seen
        assert [(content[:1], len(content)) for content in seen if content not in contents] == []

    def test_listings_beside_writers_show_finished_objects_only(self, store: ObjectStore) -> None:
        stop = threading.Event()

        def write() -> None:
            try:
                for number in range(3 * self.race_rounds):
                    store.put(f"folder/{number % 7}", iter([b"x" * 50, b"y" * 50]))
                    store.delete([f"folder/{(number + 3) % 7}"])
            finally:
                stop.set()

        def look() -> None:
            finished = False
            while not finished:
                finished = stop.is_set()
                for info in store.list():
                    assert info.size == 100
                    assert info.key.startswith("folder/")

        assert _outcomes([write, look, look]) == [None, None, None]

    def test_an_object_that_vanishes_while_it_is_read_is_absent_or_whole(self, store: ObjectStore) -> None:
        for round_number in range(self.race_rounds):
            key = f"gone/{round_number}"
            store.put(key, b"whole")
            read, deleted = _outcomes([partial(self._read_whole, store, key), partial(store.delete, [key])])
            assert deleted is None
            assert read is None or isinstance(read, ObjectNotFoundError)

    def _read_whole(self, store: ObjectStore, key: str) -> None:
        assert store.get(key) == b"whole"


def _outcomes(attempts: Sequence[Callable[[], object]]) -> list[BaseException | None]:
    """Run all attempts at the same time on separate threads; return the exception of each attempt, or None."""
    barrier = threading.Barrier(len(attempts))

    def run(attempt: Callable[[], object]) -> BaseException | None:
        barrier.wait()
        try:
            attempt()
        except Exception as error:  # noqa: BLE001  the test examines it
            return error
        return None

    with ThreadPoolExecutor(len(attempts)) as pool:
        return list(pool.map(run, attempts))


def _winners(attempts: Sequence[Callable[[], object]]) -> list[int]:
    """Return the indexes of the attempts that succeeded; all others must have failed with PreconditionFailedError."""
    outcomes = _outcomes(attempts)
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, PreconditionFailedError):
            raise outcome
    return [number for number, outcome in enumerate(outcomes) if outcome is None]


class ObjectStoreTests(ReadTests, WriteTests, ListTests, RaceTests, AbandonedTests, PreparedTests):
    """Subclass this in a test file, and define a fixture that makes an empty store::

    class TestMyStore(ObjectStoreTests):
            @pytest.fixture
            def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
                store = MyStore(tmp_path)
                yield store
                store.close()

    You may override ``raw_put`` and ``raw_get`` to access the objects without the code under test. The tests then run
    faster, and do not depend on the store's own reads and writes. If the store needs other values, set the class
    attributes ``picklable``, ``largest_object``, ``listed_objects``, ``race_rounds`` and ``racing_publishers``.
    """
