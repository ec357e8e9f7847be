"""Golden buckets with one flipped bit, and the outcome of each way of reading records from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa

from tests.support.golden.segments import GoldenSegment, case_path, segments
from tests.support.golden.stored import settings_of
from tests.support.records.record_reader import RecordReader, check_losses
from tests.support.records.split_reads import plan_splits
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import TieredStoreError
from tieredstore.kafka.batches import HEADER_SIZE, read_batch_headers
from tieredstore.model import AtTime
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import read_split
from tieredstore.remote import RemoteStorageManager

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
    isolation: str = "read_uncommitted"


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
        chosen = ReadSettings(isolation=reading.isolation)  # type: ignore[arg-type]  # one of the two
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
