"""The offset map of a restore run: an object in the bucket with the old and the new offsets of the run's records.

This module is separate from ``producing``, because the commands that move consumer groups need only the map.

The object's key is ``<prefix>!tieredstore/restores/<run>/offsets``. Its first line is JSON with the version. A zstd
frame with a checksum follows. The frame begins with a line of JSON (topics, partitions, numbers of offset runs). Five
columns of integers follow, each with a value per offset run:

1. the number of records
2. the offsets skipped before the offset run in the source
3. the offsets skipped before the offset run in the target
4. the gaps inside the offset run in the source
5. the gaps inside the offset run in the target (always 0)

A column stores the lowest bytes of all values first, then the second lowest bytes, and so on. The zeros in the high
bytes therefore lie together, and compress well.

The offset map is not encrypted, because it has no records. Like keys of segments and catalog files, it has names of
topics and offsets.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, TypeAlias

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


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class MappedTopic:
    """A source topic and its target topic. With ``is_rehashed``, keys were hashed again, so a record's partition may
    differ between the source and the target."""

    source: str
    target: str
    is_rehashed: bool


Where: TypeAlias = Literal["at", "gap", "before", "beyond"]


@dataclass(frozen=True, slots=True)
class Translation:
    """The target offset for a source offset.

    ``where`` is ``at`` for an offset with a record, and for the end of the restored range. It is ``gap`` for an offset
    without a record, whose translation is the target offset of the next record.

    ``where`` is ``before`` or ``beyond`` if the offset is outside the restored range, by ``difference`` offsets.
    """

    topic: str
    partition: int
    offset: int
    where: Where
    difference: int = 0


@dataclass(frozen=True, slots=True)
class FirstUnread:
    """The smallest offset in a target partition that a group may not have read, if the run hashed keys again.

    ``read_again`` is the maximum number of records from ``offset`` on that the group may read a second time.
    """

    offset: int
    read_again: int


class _PairRuns:
    """The offset runs from one source partition to one target partition, ascending, stored as columns. ``total`` has
    the number of records up to the end of each offset run."""

    def __init__(self, where: TopicPartition, target_partition: int) -> None:
        self._where = where
        self._target_partition = target_partition
        self.end, self.target_end, self.total = (array("q") for _ in range(3))
        self._start = array("q")

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, at: int) -> OffsetRun:
        start, length = self._start[at], self.total[at] - self.total_before(at)
        target_start, gaps = self.target_end[at] - length, self.end[at] - start - length
        return OffsetRun(*self._where, start, self._target_partition, target_start, length, gaps)

    def __iter__(self) -> Iterator[OffsetRun]:
        return (self[at] for at in range(len(self)))

    def total_before(self, at: int) -> int:
        """Return the number of records in the offset runs before the offset run ``at``."""
        return self.total[at - 1] if at else 0

    def find(self, offset: int) -> int:
        """Return the index of the first offset run that ends after the source offset ``offset``. If there is none,
        return the number of offset runs."""
        return bisect_right(self.end, offset)

    def add(self, run: OffsetRun, *, is_rehashed: bool) -> bool:
        """Append an offset run, or join it with the last offset run. Return False if ``run`` does not come after the
        last offset run."""
        last = self[len(self) - 1] if len(self) else None
        if last is not None and (run.start < last.end or run.target_start < last.target_end):
            return False
        total = run.length + self.total_before(len(self))
        if last is not None and last.join(run, is_rehashed=is_rehashed) is not None:
            self.end[-1], self.target_end[-1], self.total[-1] = run.end, run.target_end, total
            return True
        for column, value in zip(
            (self._start, self.end, self.target_end, self.total),
            (run.start, run.end, run.target_end, total),
            strict=True,
        ):
            column.append(value)
        return True

    def has(self, run: OffsetRun) -> bool:
        """Return True if these offset runs contain all records of ``run``."""
        at = self.find(run.start)
        if at == len(self):
            return False
        here = self[at]
        is_within = here.start <= run.start and run.end <= here.end
        is_within_target = here.target_start <= run.target_start and run.target_end <= here.target_end
        return (
            is_within
            and is_within_target
            and (here.gaps > 0 or run.target_start - run.start == here.target_start - here.start)
        )


class OffsetMap:
    """The target offsets of the records of a run of ``restore produce``. The map grows during the run;
    :class:`OffsetMapFile` saves it.

    ``topics`` maps the source topics. Not thread-safe.
    """

    def __init__(self, run: str) -> None:
        """Create an empty map. Raise ConfigError if the run's name is invalid."""
        check_run(run)
        self.run = run
        self.topics: dict[str, MappedTopic] = {}
        self._restored: dict[TopicPartition, _Partition] = {}
        self._mapped: dict[TopicPartition, dict[int, _PairRuns]] = {}

    def add_topic(self, source: str, target: str, *, is_rehashed: bool = False) -> None:
        """Map a source topic to a target topic. Raise ConfigError if the map has another target for the source topic,
        or another source topic for the target."""
        topic = MappedTopic(source, target, is_rehashed)
        for known, there in self.topics.items():
            if (known == source) is not (there.target == target) or (known == source and there != topic):
                raise ConfigError(
                    f"the run {self.run} restores {known} to {there.target}{' by key' * there.is_rehashed}: "
                    "for another target, use another run (--run)"
                )
        self.topics[source] = topic

    def begin(self, where: TopicPartition, start: int, *, target_start: int = 0) -> None:
        """Record that the run restores a source partition from ``start`` on. Only the first call for a partition has an
        effect.

        ``target_start`` is the end of the target partition before the run.
        """
        self._restored.setdefault(where, _Partition(*where, start, start, target_start))

    def advance(self, where: TopicPartition, end: int) -> None:
        """Record that all records before the offset ``end`` of a source partition are in the target."""
        known = self._restored[where]
        self._restored[where] = replace(known, end=max(known.end, end))

    def extend(self, runs: Iterable[OffsetRun]) -> None:
        """Add the offset runs of one transaction, ascending. Ignore offset runs that the map already has.

        Raise CorruptDataError if an offset run contradicts the map.
        """
        for run in runs:
            where, is_rehashed = (run.topic, run.partition), self.topics[run.topic].is_rehashed
            self.begin(where, run.start, target_start=run.target_start)
            self.advance(where, run.end)
            pairs = self._mapped.setdefault(where, {})
            if not is_rehashed and any(partition != run.target_partition for partition in pairs):
                raise CorruptDataError(
                    f"the run {self.run} wrote records of {name_of(where)} to partition {run.target_partition} and to "
                    "another partition"
                )
            if not _is_valid(run) or (run.gaps and not is_rehashed):
                raise CorruptDataError(f"{run} is not valid")
            known = pairs.setdefault(run.target_partition, _PairRuns(where, run.target_partition))
            if not known.add(run, is_rehashed=is_rehashed) and not known.has(run):
                raise CorruptDataError(f"{run} contradicts the offset map of the run {self.run}")

    def partitions(self, topic: str) -> dict[int, range]:
        """Return the range of restored offsets of each partition of a source topic, ascending. For an unknown topic,
        the result is empty."""
        return {
            where[1]: range(known.start, known.end)
            for where, known in sorted(self._restored.items())
            if where[0] == topic
        }

    @property
    def records(self) -> int:
        """The number of records in the map."""
        return sum(runs.total_before(len(runs)) for pairs in self._mapped.values() for runs in pairs.values())

    def target_ends(self, topic: str) -> dict[int, int]:
        """Return the offset after the last record of a source topic in each target partition. Partitions without such
        records are left out."""
        ends: dict[int, int] = {}
        for where, pairs in self._mapped.items():
            for partition, runs in pairs.items():
                if where[0] == topic and len(runs):
                    ends[partition] = max(ends.get(partition, 0), runs.target_end[-1])
        return dict(sorted(ends.items()))

    def mapped_runs(self, where: TopicPartition) -> Iterator[OffsetRun]:
        """Yield the offset runs of a source partition, ordered by target partition, then by offset."""
        for known in self._mapped.get(where, {}).values():
            yield from known

    def translate(self, where: TopicPartition, offset: int) -> Translation:
        """Return the target offset for an offset of a source partition. The run must have restored the partition into
        one target partition.

        Raise ResourceNotFoundError for a partition that the run did not restore. Raise ConfigError for a topic whose
        keys were hashed again, because such a topic has no exact offsets.
        """
        topic, known = self.topics.get(where[0]), self._restored.get(where)
        if topic is None or known is None:
            raise ResourceNotFoundError(f"the run {self.run} did not restore {name_of(where)}")
        if topic.is_rehashed:
            raise ConfigError(f"the run {self.run} hashed the keys of {where[0]} again, so it has no exact offsets")
        partition, runs = next(iter(self._mapped.get(where, {}).items()), (where[1], _PairRuns(where, where[1])))
        at = runs.find(offset)
        if at < len(runs):
            run = runs[at]
            is_inside = offset >= run.start
            target = run.target_start + max(0, offset - run.start)
        else:
            is_inside = offset == known.end
            target = runs.target_end[-1] if len(runs) else known.target_start
        if offset < known.start:
            return Translation(topic.target, partition, target, "before", known.start - offset)
        if offset > known.end:
            return Translation(topic.target, partition, target, "beyond", offset - known.end)
        return Translation(topic.target, partition, target, "at" if is_inside else "gap")

    def first_unread(self, topic: str, offsets: Mapping[int, int]) -> dict[int, FirstUnread]:
        """Return the first offset that a group should read in each target partition. The topic's keys were hashed
        again.

        ``offsets`` has the group's next offset in each source partition. A partition without an offset counts as
        unread.
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

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        pairs = [(where, target, runs) for where, each in sorted(self._mapped.items()) for target, runs in each.items()]
        document = _Document(
            self.run,
            [*self.topics.values()],
            [known for _, known in sorted(self._restored.items())],
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
        """Parse an object's bytes; ``raw`` is None if the object is too large. ``where`` names the object in errors.

        Raise CorruptDataError for a damaged object, and NewerVersionError for an object written by a later release.
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
            made.extend(_decode(pair, part))
            begin += pair.runs
        return made


class OffsetMapFile:
    """The offset map of a run of ``restore produce`` in the bucket, and the object's etag, which the next save
    requires. Not thread-safe.
    """

    def __init__(self, store: ObjectStore, prefix: str, run: str) -> None:
        """Load the map, or create an empty map."""
        check_run(run)
        self._store = store
        self._key = _key(prefix, run)
        self._etag: str | None = None
        try:
            self._etag = self._etag_now()
            self.map = load_map(store, prefix, run)
        except ObjectNotFoundError:
            self.map = OffsetMap(run)

    @property
    def is_new(self) -> bool:
        """True if the bucket has no map of this run yet."""
        return self._etag is None

    def save(self) -> None:
        """Write the map. Raise PreconditionFailedError if another process has written the object since it was
        loaded."""
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
    """Return the offset map (source to target) of a run of ``restore produce``. Raise ObjectNotFoundError if the run
    has no map.
    """
    check_run(run)
    key = _key(prefix, run)
    try:
        raw = store.get_small(key, _MOST_STORED)
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            f"the bucket has no offset map of a run {run}: tieredstore restore offsets lists the runs"
        ) from error
    loaded = OffsetMap.parse(raw, _key("", run))
    if loaded.run != run:
        raise CorruptDataError(f"{_key('', run)} is the map of another run, {loaded.run}")
    return loaded


def list_runs(store: ObjectStore, prefix: str) -> list[str]:
    """Return the names of all runs that have an offset map."""
    folder = f"{prefix}{_FOLDER}"
    keys = (info.key.removeprefix(folder) for info in store.list(folder))
    return [key.removesuffix("/offsets") for key in keys if key.endswith("/offsets")]


def _key(prefix: str, run: str) -> str:
    return f"{prefix}{_FOLDER}{run}/offsets"


def _is_valid(run: OffsetRun) -> bool:
    ends = run.end, run.target_end
    return min(run.start, run.target_start, run.gaps, run.length - 1) >= 0 and max(ends) <= MAX_OFFSET + 1


def _first_unread(runs: _PairRuns, offset: int) -> int | None:
    """Return the target offset of the first record whose source offset is at least ``offset``; None if there is no such
    record. If the record's offset run has gaps, the exact target offset is unknown. In this case, return the lowest
    possible offset."""
    at = runs.find(offset)
    if at == len(runs):
        return None
    run = runs[at]
    least_read = max(0, run.length - (run.end - offset))
    return run.target_start + least_read


def _read_again(runs: _PairRuns, offset: int, start: int) -> int:
    """Return the maximum number of records that a group reads again. These records have source offsets before
    ``offset``, and target offsets from ``start`` on."""
    at, first = runs.find(offset), bisect_right(runs.target_end, start)
    read, skipped = runs.total_before(at), runs.total_before(first)
    if at < len(runs):
        read += min(runs[at].length, max(0, offset - runs[at].start))
    if first < len(runs):
        skipped += max(0, start - runs[first].target_start)
    return max(0, read - skipped)


def _encode(runs: _PairRuns, columns: Sequence[array[int]]) -> None:
    end = target_end = 0
    for run in runs:
        for column, value in zip(
            columns, (run.length, run.start - end, run.target_start - target_end, run.gaps, 0), strict=True
        ):
            column.append(value)
        end, target_end = run.end, run.target_end


def _decode(pair: _Pair, columns: Sequence[array[int]]) -> Iterator[OffsetRun]:
    end = target_end = 0
    for length, missing, target_missing, gaps, target_gaps in zip(*columns, strict=True):
        if target_gaps:
            raise CorruptDataError(f"an offset run of {pair.topic}-{pair.partition} has gaps in the target")
        run = OffsetRun(
            pair.topic, pair.partition, end + missing, pair.target, target_end + target_missing, length, gaps
        )
        yield run
        end, target_end = run.end, run.target_end


def _planes(column: array[int]) -> bytes:
    """Return the lowest bytes of all values, then the second lowest bytes, and so on."""
    raw = struct.pack(f"<{len(column)}q", *column)
    return b"".join(raw[at::8] for at in range(8))


def _column(planes: bytes) -> array[int]:
    raw, count = bytearray(len(planes)), len(planes) // 8
    for at in range(8):
        raw[at::8] = planes[at * count : (at + 1) * count]
    return array("q", struct.unpack(f"<{count}q", raw))


def _decompress(frame: bytes) -> bytes:
    # Check the claimed size first, because decompress() allocates that much memory even if it is over the limit.
    claimed = zstandard.frame_content_size(frame)
    if not 0 <= claimed <= _MOST_BYTES:
        raise CorruptDataError(f"it does not declare a size up to {_MOST_BYTES} bytes")
    return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)


_Number = Annotated[int, Field(ge=0, le=MAX_INT32)]
_Offset = Annotated[int, Field(ge=0, le=MAX_OFFSET + 1)]


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class _Partition:
    """The range of restored offsets of a source partition: ``start`` is inclusive, ``end`` exclusive."""

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
    """The line of JSON at the beginning of the map's frame."""

    run: str
    topics: list[MappedTopic]
    partitions: list[_Partition]
    pairs: list[_Pair]


_DOCUMENT: Final = TypeAdapter(_Document)
