"""Tests that flip each bit of manifests and batch headers. The result is the right records, an error, or what the table
allows.

``NOTICED`` is a table of docs/reference/format.md. These tests flip some bits of each place and read in every way.
`make soak` flips every bit, reads all records in one more way, and takes the ways in turn.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.golden.segments import GoldenSegment, case_path, segments
from tests.support.golden.stored import settings_of
from tests.support.paths import REPOSITORY
from tests.support.records.record_batches import message, message_set
from tests.support.records.record_reader import RecordReader, check_losses
from tests.support.records.split_reads import plan_splits
from tests.support.records.stored_records import StoredTopic
from tests.support.spark.spark_tasks import reader_of, rows_of_reader
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import BatchCorruptError, TieredStoreError
from tieredstore.kafka.batches import HEADER_SIZE, CompressionType, read_batch_headers
from tieredstore.model import AtTime, Isolation
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import read_split
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import Record, build_batch

RIGHT: Final = "right"
ERROR: Final = "error"
OTHER_EPOCHS: Final = "other leader epochs"
OTHER: Final = "other records"

SPLIT_BYTES: Final = 32 * 1024
WITHOUT_CACHES: Final = {"fetch.manifest.cache.size": "0", "fetch.indexes.cache.size": "0"}

Answer = tuple[pa.Table, int]
"""Records that a read returns, and the offset to read next."""


@dataclass(frozen=True)
class Reading:
    """One way to read a partition."""

    name: str
    start: int | AtTime | None = None
    stop: int | AtTime | None = None
    isolation: Isolation = "read_uncommitted"


class WholeCatalog(NamedTuple):
    """Undamaged catalog of a partition, and the keys of the objects from which it was loaded."""

    catalog: Catalog
    keys: frozenset[str]


class DamagedBucket:
    """Golden bucket in memory, for flipping one bit at a time."""

    def __init__(self, case: str) -> None:
        self.segments = segments(case)
        self.store = CountingStore(MemoryObjectStore())
        root = case_path(case) / "store"
        for path in root.rglob("*"):
            if path.is_file():
                self.store.put(str(path.relative_to(root)), path.read_bytes())
        self._manager = RemoteStorageManager(settings_of(case, WITHOUT_CACHES), store=self.store)
        self._answers: dict[tuple[int, Reading], Answer] = {}
        self._readings: dict[GoldenSegment, list[Reading]] = {}
        self._catalogs: dict[int, WholeCatalog] = {}

    def close(self) -> None:
        self._manager.close()

    def outcomes(self, segment: GoldenSegment, suffix: str, bit: int, turn: int | None = None) -> dict[str, str]:
        """Return the outcome of each way of reading with one bit of an object flipped.

        With a ``turn``, return only two outcomes: that of reading everything, and that of the way with this number.
        """
        readings = self.readings(segment)
        if turn is not None:
            readings = [*{readings[0], readings[turn % len(readings)]}]
        right = {reading: self._right(segment.partition, reading) for reading in readings}
        key = f"{segment.main_path}.{suffix}"
        whole = self.store.get(key)
        intact = self._whole_catalog(segment.partition)
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        self.store.put(key, damaged)
        # Disable warnings, because each of thousands of flips would log skipped and lost segments.
        logging.disable(logging.WARNING)
        try:
            # All ways of reading start from the same catalog: load it once, and only if the flip can change it.
            catalog = intact.catalog if key not in intact.keys else self._load_catalog(segment.partition)
            return {
                reading.name: self._outcome(catalog, segment.partition, reading, right[reading]) for reading in readings
            }
        finally:
            logging.disable(logging.NOTSET)
            self.store.put(key, whole)
            self.store.reset()

    def _load_catalog(self, partition: int) -> Catalog | TieredStoreError:
        try:
            return load_catalog(self._manager, topic=self.segments[0].topic, partition=partition)
        except TieredStoreError as error:
            return error

    def _whole_catalog(self, partition: int) -> WholeCatalog:
        known = self._catalogs.get(partition)
        if known is None:
            self.store.reset()
            catalog = self._load_catalog(partition)
            assert isinstance(catalog, Catalog)
            keys = frozenset(self.store.keys_of("get") + self.store.keys_of("get_into"))
            known = self._catalogs[partition] = WholeCatalog(catalog, keys)
        return known

    def readings(self, segment: GoldenSegment) -> list[Reading]:
        """Return ways of reading: the whole partition, and windows that begin and end within the segment."""
        known = self._readings.get(segment)
        if known is None:
            known = self._readings[segment] = self._readings_of(segment)
        return known

    def _readings_of(self, segment: GoldenSegment) -> list[Reading]:
        size = segment.end_offset - segment.base_offset
        first, last = segment.base_offset + size // 3, segment.base_offset + size // 2
        return [
            Reading("whole"),
            Reading("committed", isolation="read_committed"),
            Reading("window", first, last),
            Reading("to the end", last),
            Reading("by time", AtTime(self._timestamp_at(segment.partition, last))),
            Reading("splits"),
            Reading("splits of a window", first, last),
        ]

    def _timestamp_at(self, partition: int, offset: int) -> int:
        records, _ = self._right(partition, Reading("whole"))
        rows: list[dict[str, int]] = records.select(["offset", "timestamp"]).to_pylist()
        return next(row["timestamp"] for row in rows if row["offset"] >= offset)

    def _right(self, partition: int, reading: Reading) -> Answer:
        known = self._answers.get((partition, reading))
        if known is None:
            catalog = self._whole_catalog(partition).catalog
            known = self._answers[partition, reading] = self._answer(catalog, partition, reading)
        return known

    def _answer(self, catalog: Catalog, partition: int, reading: Reading) -> Answer:
        answer = self._splits if reading.name.startswith("splits") else self._records
        return answer(catalog, partition, reading)

    def _records(self, catalog: Catalog, partition: int, reading: Reading) -> Answer:
        chosen = ReadSettings(isolation=reading.isolation)
        reader = RecordReader(self._manager, catalog, chosen)
        with reader.read(self.segments[0].topic, partition, reading.start, reading.stop) as read:
            records = _table(read, chosen.schema)
            return records, read.report.next_offset

    def _splits(self, catalog: Catalog, partition: int, reading: Reading) -> Answer:
        lineage, chosen = catalog.lineage(self.segments[0].topic, partition), ReadSettings(isolation="read_uncommitted")
        start = reading.start if isinstance(reading.start, int) else lineage.earliest_offset
        stop = reading.stop if isinstance(reading.stop, int) else lineage.end_offset
        check_losses(lineage, start, stop, chosen, starts_there=False, stops_there=False)
        plan = plan_splits(self._manager, lineage, start, stop, chosen, max_split_bytes=SPLIT_BYTES)
        batches = (batch for split in plan.splits for batch in read_split(self._manager, split, chosen))
        return _table(batches, chosen.schema), plan.stop

    def _outcome(self, catalog: Catalog | TieredStoreError, partition: int, reading: Reading, right: Answer) -> str:
        if isinstance(catalog, TieredStoreError):
            return ERROR
        try:
            answer = self._answer(catalog, partition, reading)
        except TieredStoreError:
            return ERROR
        if answer == right:
            return RIGHT
        names = [name for name in right[0].column_names if name != "leaderEpoch"]
        is_same = answer[1] == right[1] and answer[0].select(names) == right[0].select(names)
        return OTHER_EPOCHS if is_same else OTHER


def _table(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema=schema)


HEADER_PLACES: Final[Mapping[str, range]] = {
    "base offset": range(8),
    "length": range(8, 12),
    "partition leader epoch": range(12, 16),
    "magic": range(16, 17),
    "CRC, and what it covers": range(17, HEADER_SIZE),
}
"""Positions of fields in the header of a record batch."""


@cache
def batch_positions(segment: GoldenSegment) -> list[int]:
    return [header.position for header in read_batch_headers(segment.original("log").read_bytes())]


def header_bits(segment: GoldenSegment, place: str) -> Iterator[int]:
    """Yield the bits of one header field, in all batches of a plain segment."""
    for position in batch_positions(segment):
        yield from (8 * (position + byte) + bit for byte in HEADER_PLACES[place] for bit in range(8))


pytestmark = pytest.mark.slow
UNIT_OF_WORK: Final = "test"

HEADERS: Final = ("01-none", "06-codec-gzip-createtime", "07-txn", "11-single-record", "12-smallbatch")
"""Cases whose logs are stored unchanged."""

MANIFESTS: Final = ("01-none", "02-zstd-onechunk", "07-txn", "11-single-record")

MOST_IN_SOAK: Final = 4200
"""The maximum number of bits that `make soak` flips of one place in one segment. Only two kinds of places have more
bits: those in segments of hundreds of batches, and those that a checksum covers.
"""

FORMAT: Final = (REPOSITORY / "docs" / "reference" / "format.md").read_text()


class Row(NamedTuple):
    """A place in the format, and the allowed outcomes of a flip there, for reads by time and for other reads."""

    place: str
    outcomes: frozenset[str]
    by_time: frozenset[str]


def _row(place: str, outcomes: set[str], by_time: set[str] | None = None) -> Row:
    return Row(place, frozenset(outcomes), frozenset(outcomes if by_time is None else by_time))


NOTICED: Final = [
    _row("base offset", {ERROR, RIGHT}),
    _row("length", {ERROR, RIGHT}),
    _row("partition leader epoch", {OTHER_EPOCHS, RIGHT}),
    _row("magic", {ERROR, RIGHT}),
    _row("CRC, and what it covers", {ERROR, RIGHT}),
    _row("all of the manifest", {ERROR, RIGHT}),
]
ROWS: Final = {row.place: row for row in NOTICED}


@pytest.fixture(scope="module")
def buckets() -> Iterator[dict[str, DamagedBucket]]:
    opened = {case: DamagedBucket(case) for case in sorted({*HEADERS, *MANIFESTS, "03-enc"})}
    yield opened
    for bucket in opened.values():
        bucket.close()


def check(
    bucket: DamagedBucket, segment: GoldenSegment, suffix: str, bits: list[int], row: Row, *, by_turns: bool = False
) -> None:
    for turn, bit in enumerate(bits):
        for reading, outcome in bucket.outcomes(segment, suffix, bit, turn if by_turns else None).items():
            allowed = row.by_time if reading == "by time" else row.outcomes
            assert outcome in allowed, f"{segment}: bit {bit} of .{suffix}, read {reading}: {outcome}"


def manifest_bits(segment: GoldenSegment) -> list[int]:
    return list(range(8 * segment.stored("rsm-manifest").stat().st_size))


def time_bits(segment: GoldenSegment) -> list[int]:
    """Return the bits of the greatest timestamp, which a look-up by time compares."""
    match = re.search(rb'"maxTimestampMs":(\d+)', segment.stored("rsm-manifest").read_bytes())
    assert match is not None
    return list(range(8 * match.start(1), 8 * match.end(1)))


def sample(bits: list[int], seed: object, count: int) -> list[int]:
    return bits if len(bits) <= count else random.Random(str(seed)).sample(bits, count)


@pytest.mark.parametrize("place", list(HEADER_PLACES))
@pytest.mark.parametrize("case", HEADERS)
def test_flipped_bits_of_batch_headers_lose_nothing_in_silence(
    buckets: dict[str, DamagedBucket], case: str, place: str
) -> None:
    for segment in segments(case)[:1]:
        check(buckets[case], segment, "log", sample(list(header_bits(segment, place)), place, 2), ROWS[place])


@pytest.mark.parametrize("case", MANIFESTS)
def test_flipped_bits_of_manifests_lose_nothing_in_silence(buckets: dict[str, DamagedBucket], case: str) -> None:
    for segment in segments(case)[:2]:
        bits = [*sample(manifest_bits(segment), segment, 6), *sample(time_bits(segment), segment, 4)]
        check(buckets[case], segment, "rsm-manifest", bits, ROWS["all of the manifest"])


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("inline_threads")
@pytest.mark.parametrize("place", list(HEADER_PLACES))
@pytest.mark.parametrize("segment", [segment for case in HEADERS for segment in segments(case)], ids=str)
def test_every_bit_of_the_batch_headers(buckets: dict[str, DamagedBucket], segment: GoldenSegment, place: str) -> None:
    bits = sample(list(header_bits(segment, place)), place, MOST_IN_SOAK)
    # Seven ways to read take turns from bit to bit. So each way meets each of a byte's eight bits, but not in every
    # byte.
    check(buckets[segment.case], segment, "log", bits, ROWS[place], by_turns=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("inline_threads")
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("segment", [segment for case in MANIFESTS for segment in segments(case)], ids=str)
def test_every_bit_of_every_manifest(buckets: dict[str, DamagedBucket], segment: GoldenSegment, part: int) -> None:
    bits = manifest_bits(segment)[part::4]
    check(buckets[segment.case], segment, "rsm-manifest", bits, ROWS["all of the manifest"], by_turns=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("inline_threads")
@pytest.mark.parametrize("segment", segments("03-enc"), ids=str)
def test_many_bits_of_the_manifests_of_encrypted_segments(
    buckets: dict[str, DamagedBucket], segment: GoldenSegment
) -> None:
    """Each attempt decrypts a data key with the private key, which is slow. So these tests take fewer bits."""
    bits = sample(manifest_bits(segment), segment, 2000)
    check(buckets[segment.case], segment, "rsm-manifest", bits, ROWS["all of the manifest"], by_turns=True)


class Folder:
    """A golden bucket in a folder, for commands and connectors that open the store themselves."""

    def __init__(self, case: str, folder: Path) -> None:
        self.topic = segments(case)[0].topic
        self.segments = segments(case)
        self.root = folder / case
        for path in (case_path(case) / "store").rglob("*"):
            if path.is_file():
                target = self.root / path.relative_to(case_path(case) / "store")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())

    def flips(self, count: int) -> Iterator[None]:
        """Flip one bit at a time, in a base offset and in a manifest by turns. The bits are the same in each run."""
        source = random.Random(7)
        for number in range(count):
            segment = source.choice(self.segments)
            if number % 2:
                path, bits = self.root / f"{segment.main_path}.log", list(header_bits(segment, "base offset"))
            else:
                path = self.root / f"{segment.main_path}.rsm-manifest"
                bits = manifest_bits(segment)
            whole, bit = path.read_bytes(), source.choice(bits)
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            yield
            path.write_bytes(whole)


def cat(folder: Folder) -> tuple[int, list[Any]]:
    done = tieredstore("cat", folder.topic, "--json", "--store", folder.root.as_uri())
    return done.code, [json.loads(line) for line in done.text.splitlines()]


@pytest.mark.parametrize(
    "count", [12, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["some", "many"]
)
def test_cat_shows_all_records_or_fails(tmp_path: Path, count: int) -> None:
    folder = Folder("11-single-record", tmp_path)
    code, whole = cat(folder)
    assert (code, len(whole)) == (0, 3)
    for _ in folder.flips(count):
        code, rows = cat(folder)
        assert code in (3, 4) or (code, rows) == (0, whole)


def test_spark_gives_all_records_or_fails(tmp_path: Path) -> None:
    """Read after each of 20 flips, in the way that Spark's Python processes do. No JVM runs."""
    folder = Folder("07-txn", tmp_path)
    options = {"subscribe": folder.topic, "storage.backend.class": "filesystem", "storage.root": str(folder.root)}
    whole = rows_of_reader(reader_of(options))
    for _ in folder.flips(20):
        try:
            rows = rows_of_reader(reader_of(options))
        except TieredStoreError:
            continue
        assert rows == whole


OLD_SET: Final = "offset of a compressed message set (magic 0, 1) at the log's start, if it becomes 0"


@pytest.mark.parametrize(("base", "outcome"), [(0, OTHER), (64, ERROR)])
def test_an_old_message_set_that_counts_from_nothing_is_known_where_its_segment_begins_later(
    tmp_path: Path, base: int, outcome: str
) -> None:
    """No checksum covers the set's offset. Old clients sent 0 there. For such a set, readers count the messages from 0,
    as Java's consumer does.
    """
    inner = b"".join(message(1, at, b"value", timestamp=at) for at in range(5))
    # The first offsets of the segment have no message, as after compaction.
    batches = [message_set(1, base + 16, inner, CompressionType.GZIP), build_batch([Record(b"v")], base + 17)]
    with closing(StoredTopic(tmp_path)) as topic:
        topic.copy(base, batches)
        (key,) = [info.key for info in topic.store.list() if info.key.endswith(".log")]
        log = topic.store.get(key)
        topic.store.put(key, bytes(8) + log[8:])
        reader = topic.reader(ReadSettings(columns=["offset"]))
        if outcome == ERROR:
            with pytest.raises(BatchCorruptError, match="begins at offset 0"):
                list(reader.read("events", 0))
        else:
            assert [row["offset"] for batch in reader.read("events", 0) for row in batch.to_pylist()] == [*range(5), 17]
    assert f"\n{OLD_SET} | error, but other records in a segment that begins at offset 0 | the same\n" in FORMAT


def test_the_documentation_has_each_row_with_another_outcome() -> None:
    for row in NOTICED:
        if row.outcomes | row.by_time <= {ERROR, RIGHT}:
            continue
        cells = (" or ".join(sorted(outcomes)) for outcomes in (row.outcomes, row.by_time))
        assert f"\n{row.place} | {' | '.join(cells)}\n" in FORMAT
