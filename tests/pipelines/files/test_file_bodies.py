"""File bodies: in memory, streamed to the store or in temporary files, with no leftovers after an error."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, ClassVar, NoReturn

import pyarrow as pa
import pytest

from tests.pipelines.files.test_files import WINDOW, batch, write
from tests.support.stores.doubles import DelegatingObjectStore, FaultyStore, LatencyStore, ScriptedStore
from tieredstore.backends.base import Body, ObjectStore, Prepared, find_abandoned_writes
from tieredstore.backends.contract.bodies import open_body
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import StoreError, StoreUnavailableError
from tieredstore.pipelines.files import file_bodies
from tieredstore.pipelines.files.file_bodies import Bodies, FileBody, Memory
from tieredstore.pipelines.files.formats import AvroContainer, Orc, Parquet, Text
from tieredstore.pipelines.files.sequencefile import SequenceFile
from tieredstore.pipelines.filing.naming import Naming, Places
from tieredstore.pipelines.parsers import OffsetParser
from tieredstore.pipelines.run.window_writing import Recipe, write_window
from tieredstore.pipelines.writers import FileWriter, Format, JsonLines
from tieredstore.process.thread_pool import ThreadPool

SMALL = Memory(held_bytes=1000, held_files=2, buffer_bytes=300, buffers=3)
STAGING = "_tieredstore/staging/"


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the memory of file bodies to about a KB."""
    monkeypatch.setattr(file_bodies, "Memory", lambda: SMALL)


def left_in(store: ObjectStore) -> list[str]:
    """Return all written objects and abandoned writes."""
    return [info.key for info in store.list()] + [write.key for write in find_abandoned_writes(store)]


def bodies_of(store: ObjectStore) -> Bodies:
    return Bodies(store, STAGING, None, SMALL)


def filled(body: FileBody, size: int) -> bytes:
    """Write ``size`` bytes in pieces, and return them."""
    data = bytes(number % 251 for number in range(size))
    for start in range(0, size, 777):
        body.file.write(data[start : start + 777])
    body.file.flush()
    return data


@pytest.mark.parametrize("size", [0, 1, 1000, 1001, 50_000])
def test_the_written_bytes_are_published(any_store: ObjectStore, size: int) -> None:
    bodies = bodies_of(any_store)
    with bodies:
        body = bodies.begin("folder/object", writes_forward=True)
        data = filled(body, size)
        body.end()
        prepared = body.await_prepared()
    assert [info.key for info in any_store.list("folder/")] == []
    any_store.publish(prepared)
    assert (any_store.get("folder/object"), prepared.size) == (data, size)


def test_a_large_one_is_on_its_way_before_it_ends_and_takes_no_more_memory_for_its_size() -> None:
    written, leads = 0, list[float]()
    # For each piece that the store takes of the body, record how many bytes it had not taken yet.
    store = LatencyStore(
        MemoryObjectStore(), bytes_per_s=1, sleep=lambda size: leads.append(written + size - store.bytes_up)
    )
    memory = Memory(held_bytes=1 << 20, held_files=1, buffer_bytes=1 << 18, buffers=3)
    bodies = Bodies(store, STAGING, None, memory)
    piece = bytes(1 << 17)
    with bodies:
        body = bodies.begin("large", writes_forward=True)
        for _ in range(200):
            written += len(piece)
            body.file.write(piece)
        assert store.keys_of("prepare") == ["large"]
        body.end()
        assert body.await_prepared().size == 200 * len(piece)
    # The bytes that the store has not taken are in the three buffers, and in the piece that the test is writing. Before
    # the upload begins, the body is held in memory, up to ``held_bytes``.
    most = memory.buffer_bytes * memory.buffers + len(piece)
    assert max(leads) <= memory.held_bytes + most
    assert max(leads[5:]) <= most


def test_one_is_streamed_at_a_time_and_another_large_one_waits_in_a_file_of_this_machine() -> None:
    store = ScriptedStore(MemoryObjectStore())
    bodies = bodies_of(store)
    with bodies:
        first, second = (bodies.begin(key, writes_forward=True) for key in ("first", "second"))
        data = [filled(body, 5000) for body in (first, second)]
        assert store.keys_of("prepare") == ["first"]
        first.end()
        second.end()
        third = bodies.begin("third", writes_forward=True)
        data.append(filled(third, 5000))
        assert store.keys_of("prepare") == ["first", "second", "third"]
        third.end()
        for body, written in zip((first, second, third), data, strict=True):
            store.publish(body.await_prepared())
            assert store.get(body.await_prepared().key) == written


def test_of_many_files_under_way_only_some_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[BinaryIO] = []
    bodies = bodies_of(MemoryObjectStore())
    temporary = bodies.temporary

    def counted() -> BinaryIO:
        opened.append(temporary())
        return opened[-1]

    monkeypatch.setattr(bodies, "temporary", counted)
    with bodies:
        begun = [bodies.begin(f"{number}", writes_forward=True) for number in range(5)]
        assert len(opened) == 3
        for body in begun:
            body.end()
        bodies.begin("after", writes_forward=True)
        assert len(opened) == 3
        assert all(file.closed for file in opened)


def failing(bodies: Bodies, sizes: tuple[int, ...], begun: list[FileBody]) -> NoReturn:
    with bodies:
        ended = bodies.begin("ended", writes_forward=True)
        filled(ended, 5000)
        ended.end()
        for size in sizes:
            begun.append(bodies.begin(f"{size} {len(begun)}", writes_forward=True))
            filled(begun[-1], size)
        raise ZeroDivisionError


@pytest.mark.parametrize("sizes", [(10,), (5000,), (5000, 5000), (10, 5000, 5000, 10, 10)])
def test_after_an_error_nothing_stays(any_store: ObjectStore, sizes: tuple[int, ...]) -> None:
    begun: list[FileBody] = []
    with pytest.raises(ZeroDivisionError):
        failing(bodies_of(any_store), sizes, begun)
    assert left_in(any_store) == []
    # A writer may be closed late without harm.
    assert begun[0].file.write(b"x" * 5000) == 5000


class FullDisk(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return 0

    def write(self, data: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "the disk is full")


def test_on_a_full_disk_all_other_bodies_are_closed_and_the_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    shut: list[bool] = []

    class Pool(ThreadPool):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            shut.append(wait)
            super().shutdown(wait, cancel_futures=cancel_futures)

    monkeypatch.setattr(file_bodies, "ThreadPool", Pool)
    bodies = bodies_of(MemoryObjectStore())
    begun: list[FileBody] = []

    def fill_up() -> None:
        with bodies:
            filled(bodies.begin("streamed", writes_forward=True), 5000)
            begun.append(bodies.begin("other", writes_forward=False))
            monkeypatch.setattr(bodies, "temporary", lambda: io.BufferedRandom(FullDisk()))
            begun.append(bodies.begin("full", writes_forward=False))
            begun.append(bodies.begin("another", writes_forward=False))
            begun[1].file.write(b"in a buffer")
            begun[1].end()

    with pytest.raises(OSError, match="the disk is full"):
        fill_up()
    assert all(body.file.closed for body in begun)
    assert shut == [True]


FORMATS: list[Format] = [
    Parquet("none"), Orc("none"), AvroContainer("none"), JsonLines(), JsonLines("gzip"), Text(), SequenceFile()
]  # fmt: skip


def names(one: Format) -> str:
    return f"{one.name}{one.ending}"


def rows_of(count: int) -> Any:
    return batch(rows=[{"key": None, "value": b"%d" % (7**number), "headers": None} for number in range(count)])


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("how", FORMATS, ids=names)
def test_an_error_of_the_store_is_raised_as_it_is_and_nothing_stays(how: Format) -> None:
    inner = MemoryObjectStore()
    recipe = Recipe(OffsetParser(), how, Naming(Places(""), "p", 1, how.ending), 1 << 30, 0)
    rows = rows_of(500)
    store = FaultyStore(inner, moment="during")
    quiet, _ = write_window(WINDOW, iter([rows] * 4), recipe, store)
    assert all(store.discard(file.prepared) for file in quiet.files)
    prepares = [operation.number for operation in store.operations if operation.name == "prepare"]
    assert len(prepares) == len(quiet.files)
    for number in prepares:
        store = FaultyStore(inner, number, moment="during")
        with pytest.raises(StoreUnavailableError, match="told to fail here"):
            write_window(WINDOW, iter([rows] * 4), recipe, store)
        assert left_in(inner) == []


class LostError(Exception):
    """Error raised by a source."""


def breaking(rows: Any) -> Iterator[Any]:
    yield from [rows] * 3
    raise LostError


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("how", FORMATS, ids=names)
@pytest.mark.parametrize("file_records", [0, 70])
def test_an_error_of_the_source_leaves_nothing(how: Format, file_records: int) -> None:
    store = MemoryObjectStore()
    naming = Naming(Places(""), "p", 1, how.ending)
    recipe = Recipe(OffsetParser(), how, naming, 1 << 30, file_records)
    with pytest.raises(LostError):
        write_window(WINDOW, breaking(rows_of(100)), recipe, store)
    assert left_in(store) == []


@pytest.mark.parametrize("how", FORMATS, ids=names)
def test_where_a_body_is_does_not_show(how: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = write(how, rows_of(300), file_records=90)
    monkeypatch.setattr(file_bodies, "Memory", lambda: SMALL)
    assert write(how, rows_of(300), file_records=90) == in_memory
    monkeypatch.setattr(file_bodies, "Memory", partial(Memory, held_files=0))
    assert write(how, rows_of(300), file_records=90) == in_memory


class LengthFirst(Format):
    """Custom format that starts with its length."""

    name: ClassVar[str] = "length"

    @property
    def ending(self) -> str:
        return ".length"

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:
        return _LengthFirstFile(file)


class _LengthFirstFile(FileWriter):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        file.write(bytes(8))

    def write(self, rows: pa.RecordBatch) -> None:
        self._file.write(b"".join(value or b"" for value in rows.column("value").to_pylist()))

    def close(self) -> None:
        size = self._file.tell()
        self._file.seek(0)
        self._file.write(size.to_bytes(8, "big"))


@pytest.mark.usefixtures("small_memory")
def test_a_format_that_says_nothing_of_it_may_seek() -> None:
    (data,) = write(LengthFirst(), rows_of(200), rows_of(200)).values()
    assert int.from_bytes(data[:8], "big") == len(data)


def test_one_that_says_that_it_writes_forward_cannot() -> None:
    bodies = bodies_of(MemoryObjectStore())
    with bodies:
        file = bodies.begin("object", writes_forward=True).file
        file.write(b"abc")
        assert (file.tell(), file.seekable(), file.readable()) == (3, False, False)
        with pytest.raises(io.UnsupportedOperation):
            file.seek(0)


class Hasty(DelegatingObjectStore):
    """Store that breaks its contract: it takes only the first piece of a body, and reports success."""

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        with open_body(body) as parts:
            return super().prepare(key, bytes(next(parts)), staging_prefix=staging_prefix)


def hand_over(bodies: Bodies) -> None:
    with bodies:
        body = bodies.begin("object", writes_forward=True)
        filled(body, 50_000)
        body.end()


def test_a_store_that_does_not_wait_for_the_end_is_found_out() -> None:
    inner = MemoryObjectStore()
    bodies = bodies_of(Hasty(inner))
    with pytest.raises(StoreError, match="too early"):
        hand_over(bodies)
    assert left_in(inner) == []
