"""Old and new offsets of one restore run, as an object in the bucket.

Separate from what produces, because commands that move consumer groups only read it.

Its key is ``<prefix>!tieredstore/restores/<run>/offsets``. It begins with a line of JSON, its version. A zstd frame
with a checksum follows. It has a line of JSON (topics, partitions, numbers of runs), then five columns of integers with
a value for each run: its records, the gaps before it, and what it spans beyond its records, in source and target. A
column has the lowest bytes of all values first, then the next ones: the high ones are zero and compress to nothing.

Like keys of segments and catalog files, it is not encrypted: it has names of topics and offsets, no records.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import zstandard
from pydantic import Field, TypeAdapter, ValidationError, with_config

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ConfigError, CorruptDataError, ObjectNotFoundError, ResourceNotFoundError
from tieredstore.limits import MAX_INT32, MAX_OFFSET
from tieredstore.model import TopicPartition, name_of
from tieredstore.restore.produce.runs import OffsetRun, check_run
from tieredstore.versions import OFFSET_MAP, fault_in, version_in

_FOLDER: Final = "!tieredstore/restores/"
_MOST_STORED: Final = 1 << 28
_MOST_BYTES: Final = 1 << 30
_COLUMNS: Final = 5
_LEVEL: Final = 9


class MappedRun(NamedTuple):
    """Records of a source partition that are in one target partition, in order. Ends are exclusive.

    If both spans are as long as ``records``, every offset has a record, and all have the same delta. Otherwise only the
    order is known, as where keys were hashed anew.
    """

    source: int
    source_end: int
    target: int
    target_end: int
    records: int

    @classmethod
    def of(cls, run: OffsetRun) -> MappedRun:
        """Return the mapped form of a run."""
        return cls(run.start, run.start + run.length, run.target_start, run.target_start + run.length, run.length)

    def until(self, later: MappedRun) -> MappedRun:
        """Return one run for this and a later one; the offsets between them have no records of this pair."""
        return MappedRun(self.source, later.source_end, self.target, later.target_end, self.records + later.records)


@dataclass(frozen=True, slots=True)
class MappedTopic:
    """Where a topic's records went. ``is_rehashed`` if a record's partition may be another one there."""

    target: str
    is_rehashed: bool = False


Where: TypeAlias = Literal["at", "gap", "before", "beyond"]


@dataclass(frozen=True, slots=True)
class Translation:
    """The target offset for a source offset.

    ``where`` is ``at`` for an offset with a record, or for the end; ``gap`` for an offset without a record, which
    becomes that of the next record; ``before`` the start or ``beyond`` the end of what was restored, by ``difference``
    offsets.
    """

    topic: str
    partition: int
    offset: int
    where: Where
    difference: int = 0


@dataclass(frozen=True, slots=True)
class FirstUnread:
    """The smallest offset in a target partition that a group may not have read, where keys were hashed anew.

    ``read_again`` is the largest number of records from there on that it has read.
    """

    offset: int
    read_again: int


@dataclass(slots=True)
class _Restored:
    """Restored offsets of a source partition, ``start`` inclusive, ``end`` exclusive."""

    start: int
    end: int
    target_start: int


@dataclass(slots=True)
class _MappedRuns:
    """Runs of one pair of partitions, ascending, by column. ``total`` counts the records up to each run's end."""

    source: array[int] = field(default_factory=lambda: array("q"))
    source_end: array[int] = field(default_factory=lambda: array("q"))
    target: array[int] = field(default_factory=lambda: array("q"))
    target_end: array[int] = field(default_factory=lambda: array("q"))
    total: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, at: int) -> MappedRun:
        before = self.total[at - 1] if at > 0 else 0
        count = self.total[at] - before
        return MappedRun(self.source[at], self.source_end[at], self.target[at], self.target_end[at], count)

    def find(self, offset: int) -> int:
        """Return the number of the first run that ends after a source offset; ``len`` if none does."""
        return bisect_right(self.source_end, offset)

    def add(self, run: MappedRun) -> bool:
        """Append a run, or extend the last one by it; return False if it does not follow the last run."""
        if len(self) and (run.source < self.source_end[-1] or run.target < self.target_end[-1]):
            return False
        total = run.records + (self.total[-1] if len(self) else 0)
        last = self[len(self) - 1] if len(self) else run
        is_next = (run.source, run.target) == (last.source_end, last.target_end)
        if is_next and _is_dense(run) and _is_dense(last):
            self.source_end[-1], self.target_end[-1], self.total[-1] = run.source_end, run.target_end, total
            return True
        for column, value in zip(self._columns(), (*run[:4], total), strict=True):
            column.append(value)
        return True

    def has(self, run: MappedRun) -> bool:
        """Return True if the run is here, whole."""
        at = self.find(run.source)
        if at == len(self):
            return False
        here = self[at]
        if _is_dense(here) and _is_dense(run):
            delta = here.target - here.source
            return here.source <= run.source and run.source_end <= here.source_end and run.target - run.source == delta
        return here == run

    def _columns(self) -> tuple[array[int], ...]:
        return self.source, self.source_end, self.target, self.target_end, self.total


class OffsetMap:
    """Where the records of a run are. It grows as the run goes, and is then saved by :class:`OffsetMapFile`.

    ``topics`` maps the source topics. Not thread-safe.
    """

    def __init__(self, run: str) -> None:
        """Make an empty map; raise ConfigError for an invalid name of a run."""
        check_run(run)
        self.run = run
        self.topics: dict[str, MappedTopic] = {}
        self._restored: dict[TopicPartition, _Restored] = {}
        self._mapped: dict[TopicPartition, dict[int, _MappedRuns]] = {}

    def add_topic(self, source: str, target: str, *, is_rehashed: bool = False) -> None:
        """Map a topic; raise ConfigError if the run maps it in another way, or another topic to the same target."""
        topic = MappedTopic(target, is_rehashed)
        for known, there in self.topics.items():
            if (known == source) is not (there.target == target) or (known == source and there != topic):
                raise ConfigError(
                    f"the run {self.run} restores {known} to {there.target}{' by key' * there.is_rehashed}: "
                    "give another run for another target"
                )
        self.topics[source] = topic

    def begin(self, where: TopicPartition, start: int, *, target_start: int = 0) -> None:
        """Note that a source partition is restored from ``start`` on; the first call counts.

        ``target_start`` is the end of the target partition before.
        """
        self._restored.setdefault(where, _Restored(start, start, target_start))

    def advance(self, where: TopicPartition, end: int) -> None:
        """Note that all records before the offset ``end`` of a source partition are in the target."""
        known = self._restored[where]
        known.end = max(known.end, end)

    def extend(self, runs: Iterable[OffsetRun]) -> None:
        """Add the runs of one transaction, ascending. Runs that are there already change nothing.

        Raise CorruptDataError for runs that contradict the map.
        """
        last: dict[tuple[TopicPartition, int], MappedRun] = {}
        for run in runs:
            where, mapped = (run.topic, run.partition), MappedRun.of(run)
            if not self.topics[run.topic].is_rehashed:
                self._add(where, run.target_partition, mapped)
                continue
            # Single records would need gigabytes: keep one run for each pair of partitions.
            before = last.get((where, run.target_partition))
            last[where, run.target_partition] = mapped if before is None else before.until(mapped)
        for (where, target_partition), mapped in last.items():
            self._add(where, target_partition, mapped)

    def _add(self, where: TopicPartition, target_partition: int, mapped: MappedRun) -> None:
        topic, pairs = self.topics[where[0]], self._mapped.setdefault(where, {})
        self.begin(where, mapped.source, target_start=mapped.target)
        self.advance(where, mapped.source_end)
        if not topic.is_rehashed and any(partition != target_partition for partition in pairs):
            raise CorruptDataError(
                f"the run {self.run} has {name_of(where)} in another partition than {target_partition}"
            )
        if not _is_valid(mapped) or not (topic.is_rehashed or _is_dense(mapped)):
            raise CorruptDataError(f"{mapped} of {name_of(where)} is not valid")
        known = pairs.setdefault(target_partition, _MappedRuns())
        if not known.add(mapped) and not known.has(mapped):
            raise CorruptDataError(f"{mapped} of {name_of(where)} contradicts the offset map of the run {self.run}")

    def partitions(self, topic: str) -> dict[int, range]:
        """Return the restored offsets of a source topic's partitions, ascending; empty for an unknown topic."""
        return {
            where[1]: range(known.start, known.end)
            for where, known in sorted(self._restored.items())
            if where[0] == topic
        }

    def target_ends(self, topic: str) -> dict[int, int]:
        """Return the offset after the last record of a source topic in each target partition that has any."""
        ends: dict[int, int] = {}
        for where, pairs in self._mapped.items():
            for partition, runs in pairs.items():
                if where[0] == topic and len(runs):
                    ends[partition] = max(ends.get(partition, 0), runs.target_end[-1])
        return dict(sorted(ends.items()))

    def mapped_runs(self, where: TopicPartition) -> Iterator[tuple[int, MappedRun]]:
        """Yield each run of a source partition with its target partition."""
        for partition, known in self._mapped.get(where, {}).items():
            yield from ((partition, known[at]) for at in range(len(known)))

    def translate(self, where: TopicPartition, offset: int) -> Translation:
        """Return the target offset for an offset of a source partition whose records stayed together.

        Raise ResourceNotFoundError for a partition that the run did not restore, and ConfigError for a topic whose keys
        were hashed anew: it has no exact offsets.
        """
        topic, known = self._find(where)
        if topic.is_rehashed:
            raise ConfigError(f"the run {self.run} hashed the keys of {where[0]} anew: it has no exact offsets")
        partition, runs = next(iter(self._mapped.get(where, {}).items()), (where[1], _MappedRuns()))
        at = runs.find(offset)
        if at < len(runs):
            run = runs[at]
            is_inside = offset >= run.source
            target = run.target + max(0, offset - run.source)
        else:
            is_inside = offset == known.end
            target = runs.target_end[-1] if len(runs) else known.target_start
        if offset < known.start:
            return Translation(topic.target, partition, target, "before", known.start - offset)
        if offset > known.end:
            return Translation(topic.target, partition, target, "beyond", offset - known.end)
        return Translation(topic.target, partition, target, "at" if is_inside else "gap")

    def first_unread(self, topic: str, offsets: Mapping[int, int]) -> dict[int, FirstUnread]:
        """Return where a group goes on in each target partition of a topic whose keys were hashed anew.

        ``offsets`` are the next offsets to read by source partition; partitions without one count as unread.
        """
        found: dict[int, FirstUnread] = {}
        for partition, end in self.target_ends(topic).items():
            sources = [
                (runs, offsets.get(where[1], 0))
                for where, pairs in self._mapped.items()
                if where[0] == topic and (runs := pairs.get(partition)) is not None and len(runs)
            ]
            starts = [start for runs, offset in sources if (start := _first_unread(runs, offset)) is not None]
            start = min(starts, default=end)
            found[partition] = FirstUnread(start, sum(_read_again(runs, offset, start) for runs, offset in sources))
        return found

    def _find(self, where: TopicPartition) -> tuple[MappedTopic, _Restored]:
        topic, known = self.topics.get(where[0]), self._restored.get(where)
        if topic is None or known is None:
            raise ResourceNotFoundError(f"the run {self.run} did not restore {name_of(where)}")
        return topic, known

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        pairs = [(where, target, runs) for where, each in sorted(self._mapped.items()) for target, runs in each.items()]
        document = _Document(
            self.run,
            [_Topic(name, topic.target, topic.is_rehashed) for name, topic in self.topics.items()],
            [
                _Partition(*where, known.start, known.end, known.target_start)
                for where, known in sorted(self._restored.items())
            ],
            [_Pair(*where, target, len(runs)) for where, target, runs in pairs],
        )
        columns = [array("q") for _ in range(_COLUMNS)]
        for *_, runs in pairs:
            _encode(runs, columns)
        content = b"".join((_DOCUMENT.dump_json(document), b"\n", *(_planes(column) for column in columns)))
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        return OFFSET_MAP.to_bytes({}) + compressor.compress(content)

    @classmethod
    def parse(cls, raw: bytes | None, where: str) -> OffsetMap:
        """Parse an object's bytes, None if they were too many; ``where`` names it in errors.

        Raise CorruptDataError, or NewerVersionError for a later version.
        """
        head, _, frame = (raw or b"").partition(b"\n")
        version = version_in(head)
        if version is None:
            raise CorruptDataError(f"{where} is not a valid {OFFSET_MAP.name}: it does not begin with its version")
        OFFSET_MAP.refuse_newer(version, where)
        try:
            return cls._read(_decompress(frame))
        except ValidationError as invalid:
            raise CorruptDataError(f"{where} is not a valid {OFFSET_MAP.name}: {fault_in(invalid)}") from invalid
        except (zstandard.ZstdError, ValueError, KeyError, OverflowError) as error:
            raise CorruptDataError(f"{where} is not a valid {OFFSET_MAP.name}: {error}") from error

    @classmethod
    def _read(cls, content: bytes) -> OffsetMap:
        line, _, planes = content.partition(b"\n")
        document = _DOCUMENT.validate_json(line, strict=True)
        count = sum(pair.runs for pair in document.pairs)
        size = count * 8
        if len(planes) != size * _COLUMNS:
            raise CorruptDataError(f"{count} runs do not have {len(planes)} bytes")
        columns = [_column(planes[at * size : (at + 1) * size]) for at in range(_COLUMNS)]
        made = cls(document.run)
        for topic in document.topics:
            made.add_topic(topic.source, topic.target, is_rehashed=topic.is_rehashed)
        for each in document.partitions:
            made.begin((each.topic, each.partition), each.start, target_start=each.target_start)
            made.advance((each.topic, each.partition), each.end)
        begin = 0
        for pair in document.pairs:
            part = [column[begin : begin + pair.runs] for column in columns]
            for mapped in _decode(part):
                made._add((pair.topic, pair.partition), pair.target, mapped)
            begin += pair.runs
        return made


class OffsetMapFile:
    """The map of a run in the bucket, and the etag that its next save requires. Not thread-safe."""

    def __init__(self, store: ObjectStore, prefix: str, run: str) -> None:
        """Load the map, or make an empty one."""
        check_run(run)
        self._store = store
        self._key = _key(prefix, run)
        self._etag: str | None = None
        try:
            self._etag = self._etag_now()
            self.map = load_map(store, prefix, run)
        except ObjectNotFoundError:
            self.map = OffsetMap(run)

    def save(self) -> None:
        """Write the map. Raise PreconditionFailedError if another process has written it since it was loaded."""
        body = self.map.to_bytes()
        if self._etag is None:
            self._store.put(self._key, body, if_absent=True)
            self._etag = self._etag_now()
        else:
            self._etag = self._store.replace(self._key, body, self._etag)

    def _etag_now(self) -> str:
        etag = self._store.head(self._key).etag
        if etag is None:
            raise CorruptDataError(f"{self._key}: the store returned no etag, which a conditional replace needs")
        return etag


def load_map(store: ObjectStore, prefix: str, run: str) -> OffsetMap:
    """Return the map of a run; raise ObjectNotFoundError if there is none."""
    check_run(run)
    key = _key(prefix, run)
    try:
        raw = store.get_small(key, _MOST_STORED)
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            f"the bucket has no map of offsets of a run {run}: tieredstore restore offsets lists the runs"
        ) from error
    loaded = OffsetMap.parse(raw, _key("", run))
    if loaded.run != run:
        raise CorruptDataError(f"{_key('', run)} is the map of another run, {loaded.run}")
    return loaded


def list_runs(store: ObjectStore, prefix: str) -> list[str]:
    """Return the names of all runs that have a map."""
    folder = f"{prefix}{_FOLDER}"
    keys = (info.key.removeprefix(folder) for info in store.list(folder))
    return [key.removesuffix("/offsets") for key in keys if key.endswith("/offsets")]


def _key(prefix: str, run: str) -> str:
    return f"{prefix}{_FOLDER}{run}/offsets"


def _is_dense(run: MappedRun) -> bool:
    return run.source_end - run.source == run.target_end - run.target == run.records


def _is_valid(run: MappedRun) -> bool:
    spans = run.source_end - run.source, run.target_end - run.target
    ends = run.source_end, run.target_end
    return run.source >= 0 and run.target >= 0 and 1 <= run.records <= min(spans) and max(ends) <= MAX_OFFSET + 1


def _least_read(run: MappedRun, offset: int) -> int:
    """Return how many of the run's records, at least, are before a source offset."""
    return max(0, run.records - max(0, run.source_end - offset))


def _first_unread(runs: _MappedRuns, offset: int) -> int | None:
    """Return a target offset at or before the first record at or after a source offset; None if there is none."""
    at = runs.find(offset)
    return runs.target[at] + _least_read(runs[at], offset) if at < len(runs) else None


def _read_again(runs: _MappedRuns, offset: int, start: int) -> int:
    """Return how many records before a source offset are, at most, at or after the target offset ``start``."""
    at, first = runs.find(offset), bisect_right(runs.target_end, start)
    read = runs.total[at - 1] if at else 0
    if at < len(runs):
        read += min(runs[at].records, max(0, offset - runs.source[at]))
    skipped = runs.total[first - 1] if first else 0
    if first < len(runs):
        run = runs[first]
        skipped += max(0, run.records - max(0, run.target_end - start))
    return max(0, read - skipped)


def _encode(runs: _MappedRuns, columns: Sequence[array[int]]) -> None:
    source_end = target_end = 0
    for run in (runs[at] for at in range(len(runs))):
        count = run.records
        columns[0].append(count)
        columns[1].append(run.source - source_end)
        columns[2].append(run.target - target_end)
        columns[3].append(run.source_end - run.source - count)
        columns[4].append(run.target_end - run.target - count)
        source_end, target_end = run.source_end, run.target_end


def _decode(columns: Sequence[array[int]]) -> Iterator[MappedRun]:
    source_end = target_end = 0
    for count, source_gap, target_gap, source_more, target_more in zip(*columns, strict=True):
        source, target = source_end + source_gap, target_end + target_gap
        source_end, target_end = source + count + source_more, target + count + target_more
        yield MappedRun(source, source_end, target, target_end, count)


def _planes(column: array[int]) -> bytes:
    """Return the lowest bytes of all values, then the next ones, and so on."""
    raw = _little(column).tobytes()
    return b"".join(raw[at::8] for at in range(8))


def _column(planes: bytes) -> array[int]:
    raw, count = bytearray(len(planes)), len(planes) // 8
    for at in range(8):
        raw[at::8] = planes[at * count : (at + 1) * count]
    return _little(array("q", bytes(raw)))


def _little(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column = array("q", column)
        column.byteswap()
    return column


def _decompress(frame: bytes) -> bytes:
    # Read the claimed size first: decompress() allocates it whatever its limit is.
    claimed = zstandard.frame_content_size(frame)
    if not 0 <= claimed <= _MOST_BYTES:
        raise CorruptDataError(f"it does not declare a size up to {_MOST_BYTES} bytes")
    return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)


_Number = Annotated[int, Field(ge=0, le=MAX_INT32)]
_Offset = Annotated[int, Field(ge=0, le=MAX_OFFSET + 1)]


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class _Topic:
    source: str
    target: str
    is_rehashed: bool


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class _Partition:
    topic: str
    partition: _Number
    start: _Offset
    end: _Offset
    target_start: _Offset


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class _Pair:
    topic: str
    partition: _Number
    target: _Number
    runs: _Number


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class _Document:
    """The map's line of JSON."""

    run: str
    topics: list[_Topic]
    partitions: list[_Partition]
    pairs: list[_Pair]


_DOCUMENT: Final = TypeAdapter(_Document)
