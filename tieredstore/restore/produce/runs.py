"""A run of ``restore produce``: its options, its choice of target partitions, and its records in the control topic.

This module is separate from ``producing``, because the offset map, the target's checks and the command need only these
types.

A source record is identified by its topic, partition and offset in the bucket. The control topic has two kinds of
records for a run named RUN. The record with key RUN has the run's newest position. Each record with a key RUN/1, RUN/2
… has the offsets of one transaction. The run later moves these offsets to the offset map in the bucket.

All values are JSON (``to_bytes``). A control record is in the same transaction as the source records that it describes.
"""

from __future__ import annotations

import logging
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias
from zlib import crc32

from pydantic import TypeAdapter

from tieredstore.errors import BrokerUnavailableError, ConfigError, CorruptDataError
from tieredstore.model import OffsetSpan, TopicPartition, Uuid
from tieredstore.records.settings import OnDataLoss
from tieredstore.versions import RESTORE_OFFSETS, RESTORE_POSITION

if TYPE_CHECKING:
    from tieredstore.live import LiveReader

_logger: Final = logging.getLogger(__name__)

Partitioner: TypeAlias = Literal["keep", "java", "librdkafka"]
"""The choice of a record's target partition. With ``keep``, the partition number stays the same. Otherwise, a hash of
the key decides, as in Java's clients or librdkafka."""

OnProgress: TypeAlias = Callable[[int], object]
"""A callback after each commit, which gets the number of committed records."""

CONTROL_TOPIC: Final = "__tieredstore_restores"
"""The compacted topic of the target cluster with the positions of all runs. It has one partition."""

SPARSE_RECORDS: Final = 1000
"""The maximum number of records in an offset run with gaps. A larger number makes the offset map smaller, but a moved
group may read up to this many records again in each target partition.
"""

_NAME: Final = re.compile(r"[A-Za-z0-9._,=-]{1,150}")
_LONGEST_NAME: Final = 150


class OffsetRun(NamedTuple):
    """A sequence of ``length`` records of a source partition. The records are in the same order at consecutive offsets
    of a target partition.

    The source offsets from ``start`` on are consecutive too, except that ``gaps`` of them are missing. Offsets are
    missing only if keys are hashed again. Records at these offsets went to other partitions, or do not exist.
    """

    topic: str
    """The source topic."""
    partition: int
    """The source partition."""
    start: int
    target_partition: int
    target_start: int
    length: int
    gaps: int = 0

    @property
    def end(self) -> int:
        """The source offset after the last record."""
        return self.start + self.length + self.gaps

    @property
    def target_end(self) -> int:
        """The target offset after the last record."""
        return self.target_start + self.length

    def join(self, later: OffsetRun, *, is_rehashed: bool) -> OffsetRun | None:
        """Join this offset run and a later offset run of the same partitions. Return None if other target records lie
        between them, or if the source offsets are not consecutive.

        If keys are hashed again, source offsets between the two offset runs may be missing. An offset run with missing
        offsets has at most ``SPARSE_RECORDS`` records.
        """
        missing, length = later.start - self.end, self.length + later.length
        if later.target_start != self.target_end or missing < 0:
            return None
        gaps = self.gaps + missing + later.gaps
        if gaps and not (is_rehashed and length <= SPARSE_RECORDS):
            return None
        return self._replace(length=length, gaps=gaps)


@dataclass(frozen=True, slots=True)
class SourceRange:
    """The offsets ``[start, stop)`` of a source partition that a run restores. The offsets from ``next`` on are not
    restored yet.

    The run does not restore the spans in ``left_out`` (ascending, ends exclusive): see ``time_cut``.
    """

    start: int
    next: int
    stop: int
    left_out: tuple[OffsetSpan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """The topics to restore, and the options of the run.

    ``topics`` maps source topics to existing target topics. ``topic_ids`` selects one of several source topics that had
    the same name. ``name`` is the run's name. If it is None, the name is derived from the topics.

    ``on_data_loss`` decides whether the run raises an error for offsets that are in no segment, or logs them and leaves
    them out.
    """

    topics: Mapping[str, str]
    topic_ids: Mapping[str, Uuid] = field(default_factory=dict[str, Uuid])
    partitioner: Partitioner = "keep"
    name: str | None = None
    on_data_loss: OnDataLoss = "fail"

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError("no topic is named: give TOPIC, or TOPIC=NEW to restore it under another name")
        targets = list(self.topics.values())
        if len(set(targets)) < len(targets):
            twice = next(target for target in targets if targets.count(target) > 1)
            raise ConfigError(f"two topics would be restored into {twice}: give them different names (TOPIC=NEW)")
        check_run(self.run)

    @property
    def run(self) -> str:
        """The name of the run of ``restore produce``. Of two processes with the same run name, the later one fences the
        other."""
        if self.name is not None:
            return self.name
        derived = ",".join(one if one == new else f"{one}={new}" for one, new in sorted(self.topics.items()))
        if len(derived) <= _LONGEST_NAME:
            return derived
        return f"{derived[: _LONGEST_NAME - 17]}-{sha256(derived.encode()).hexdigest()[:16]}"


def check_run(name: str) -> None:
    """Raise ConfigError if a run cannot have this name. The name becomes part of a key in the bucket."""
    if _NAME.fullmatch(name) is None or name in {".", ".."}:
        raise ConfigError(
            f"the run's name (--run) is {name!r:.60}: use 1 to {_LONGEST_NAME} letters, digits and . _ - , ="
        )


_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """Return a key's hash as Java's clients compute it, as a positive number (``Utils.toPositive``)."""
    length = len(key)
    hashed = _SEED ^ length
    for word in struct.unpack(f"<{length // 4}I", key[: length // 4 * 4]):
        mixed = word * _M & _MASK
        mixed = (mixed ^ mixed >> 24) * _M & _MASK
        hashed = hashed * _M & _MASK ^ mixed
    if length % 4:
        hashed = (hashed ^ int.from_bytes(key[length // 4 * 4 :], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return (hashed ^ hashed >> 15) & _POSITIVE


# Keys repeat, so hashes are cached. Computing a hash takes as long as all other work on a record.
_HASHES: Final[Mapping[Partitioner, Callable[[bytes], int]]] = {"java": lru_cache(65_536)(murmur2), "librdkafka": crc32}


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The rule that distributes a topic's records over ``count`` target partitions by a hash of their keys.

    The hash must be the hash that the applications use. Otherwise, new records of a key would go to another partition
    than the key's restored records. Java's clients use murmur2; librdkafka's default partitioner uses CRC-32.

    librdkafka offers both hashes, but a run must know each record's partition before it sends the record. The run
    verifies offsets by the number of records in each partition.

    Clients choose random partitions for records without a key, but a restore must be repeatable. So such a record goes
    to the partition with its source partition's number, modulo ``count``. Java's clients hash an empty key, but
    librdkafka treats it as no key.
    """

    partitioner: Partitioner
    count: int

    def partitions(self, keys: Iterable[bytes | None], source: int) -> list[int]:
        """Return the target partitions of records with these keys, which come from partition ``source``."""
        hash_of, count, without_key = _HASHES[self.partitioner], self.count, source % self.count
        if self.partitioner == "java":
            return [without_key if key is None else hash_of(key) % count for key in keys]
        return [hash_of(key) % count if key else without_key for key in keys]

    def shares(self, keys: Sequence[bytes | None], source: int) -> dict[int, list[int]]:
        """Return the indexes of the keys by target partition."""
        shares: dict[int, list[int]] = {}
        for place, partition in enumerate(self.partitions(keys, source)):
            shares.setdefault(partition, []).append(place)
        return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPosition:
    """The progress of a run of ``restore produce``. ``ends`` has the offset after the run's last record in each target
    partition.

    The run has written ``offset_records`` records about offsets, under the keys RUN/1, RUN/2 and so on. The offset map
    in the bucket has the first ``mapped`` of these records.

    ``append_times`` has the target topics with LogAppendTime. The run sets these topics to CreateTime until it ends.
    Each topic's value is its original setting, or None if the cluster's default applied.

    ``target_ids`` has the ids of the target topics. It is empty if an early release began the run.
    """

    topics: Mapping[str, str]
    topic_ids: Mapping[str, str]
    partitioner: Partitioner
    sources: Mapping[TopicPartition, SourceRange]
    ends: Mapping[TopicPartition, int]
    records: int = 0
    offset_records: int = 0
    mapped: int = 0
    append_times: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    target_ids: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_produced(self) -> bool:
        """True if all records are in the target."""
        return all(source.next >= source.stop for source in self.sources.values())

    @property
    def is_finished(self) -> bool:
        """True if nothing is left to do."""
        return self.is_produced and self.mapped == self.offset_records and not self.append_times

    def to_bytes(self) -> bytes:
        """Return the value of the record with the key RUN."""
        document = {
            "topics": dict(self.topics),
            "topic_ids": dict(self.topic_ids),
            "partitioner": self.partitioner,
            "sources": [[*where, each.start, each.next, each.stop] for where, each in sorted(self.sources.items())],
            "left_out": [[*where, *span] for where, each in sorted(self.sources.items()) for span in each.left_out],
            "ends": [[*where, end] for where, end in sorted(self.ends.items())],
            "records": self.records,
            "offset_records": self.offset_records,
            "mapped": self.mapped,
            "append_times": dict(self.append_times),
            "target_ids": dict(self.target_ids),
        }
        return RESTORE_POSITION.to_bytes(document)

    @classmethod
    def from_bytes(cls, raw: bytes | None, where: str) -> RunPosition:
        """Parse the value of the record with key RUN. Raise CorruptDataError if the value is invalid; the message
        begins with ``where``."""
        stored = RESTORE_POSITION.parse(_POSITION, raw, where)
        left_out: dict[TopicPartition, tuple[OffsetSpan, ...]] = {}
        for topic, number, *span in stored.left_out:
            left_out[topic, number] = (*left_out.get((topic, number), ()), (span[0], span[1]))
        return cls(
            topics=stored.topics,
            topic_ids=stored.topic_ids,
            partitioner=stored.partitioner,
            sources={
                (topic, number): SourceRange(start, begin, stop, left_out.get((topic, number), ()))
                for topic, number, start, begin, stop in stored.sources
            },
            ends={(topic, number): end for topic, number, end in stored.ends},
            records=stored.records,
            offset_records=stored.offset_records,
            mapped=stored.mapped,
            append_times=stored.append_times,
            target_ids=stored.target_ids,
        )


@dataclass(frozen=True, slots=True)
class _StoredPosition:
    topics: dict[str, str]
    topic_ids: dict[str, str]
    partitioner: Partitioner
    sources: list[tuple[str, int, int, int, int]]
    ends: list[tuple[str, int, int]]
    records: int
    offset_records: int
    mapped: int
    left_out: list[tuple[str, int, int, int]] = field(default_factory=list[tuple[str, int, int, int]])
    append_times: dict[str, str | None] = field(default_factory=dict[str, str | None])
    target_ids: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class _StoredOffsets:
    runs: list[OffsetRun]


_POSITION: Final = TypeAdapter(_StoredPosition)
_OFFSETS: Final = TypeAdapter(_StoredOffsets)


def offsets_to_bytes(runs: Iterable[OffsetRun]) -> bytes:
    """Return the value of a record RUN/NUMBER."""
    return RESTORE_OFFSETS.to_bytes({"runs": list(runs)})


def offsets_from_bytes(raw: bytes | None, where: str) -> Sequence[OffsetRun]:
    """Parse the value of a record RUN/NUMBER. Raise CorruptDataError if the value is invalid; the message begins with
    ``where``."""
    return RESTORE_OFFSETS.parse(_OFFSETS, raw, where).runs


_WHERE: Final = CONTROL_TOPIC, 0
_NEWEST: Final = 1000
"""The search for a run's newest position begins with this many records at the end of the control topic."""
_PAUSE_S: Final = 0.05
_TELL_S: Final = 2.0
"""Seconds to wait before a warning. A shorter wait is normal, because the broker writes a transaction's end marker a
moment after the commit."""


class ControlTopic:
    """The control topic's records of one run. ``settles_s`` is the longest time to wait for an open transaction of
    another run."""

    def __init__(self, reader: LiveReader, run: str, *, settles_s: float) -> None:
        self._reader = reader
        self._run = run
        self._settles_s = settles_s

    def newest_position(self) -> RunPosition | None:
        """Return the newest position of the run; None if no position is recorded yet. Call this after
        ``Transactions.start``, which ends the run's old transactions.
        """
        begin, end = self._wait_settled()
        count, key = _NEWEST, self._run.encode()
        while begin < end:
            start = max(begin, end - count)
            newest = [value for each, value in self._records(start, end) if each == key]
            if newest or start == begin:
                where = f"the position of the run {self._run} in {CONTROL_TOPIC}"
                return RunPosition.from_bytes(newest[-1], where) if newest else None
            count *= 4
        return None

    def offset_runs(self, after: int, up_to: int) -> Iterator[Sequence[OffsetRun]]:
        """Yield the offset runs in each record with a key RUN/NUMBER, for numbers above ``after`` and at most
        ``up_to``."""
        wanted = {f"{self._run}/{number}".encode(): number for number in range(after + 1, up_to + 1)}
        begin, end = self._wait_settled()
        for key, value in self._records(begin, end) if wanted else ():
            if key in wanted and value is not None:
                del wanted[key]
                yield offsets_from_bytes(value, f"{key.decode()} in {CONTROL_TOPIC}")
        if wanted:
            missing = next(iter(wanted)).decode()
            raise CorruptDataError(f"{CONTROL_TOPIC} has lost the record {missing} with offsets of restored records")

    def _wait_settled(self) -> tuple[int, int]:
        """Return the topic's first offset and its end. First wait until no transaction is open before that end.

        A reader of committed records stops before the first open transaction. If another run has an open transaction,
        the reader would miss later records of this run, and so the newest position.
        """
        cluster = self._reader.cluster
        end = cluster.end_offsets([_WHERE], "read_uncommitted")[_WHERE]
        begun, is_told = time.monotonic(), False
        while cluster.end_offsets([_WHERE], "read_committed")[_WHERE] < end:
            waited_s = time.monotonic() - begun
            if waited_s > self._settles_s:
                raise BrokerUnavailableError(
                    f"a transaction of another restore is open in {CONTROL_TOPIC}: run that restore again to end the "
                    "transaction, or wait"
                )
            if waited_s > _TELL_S and not is_told:
                _logger.warning("waiting for the end of a transaction of another restore")
                is_told = True
            time.sleep(_PAUSE_S)
        return cluster.earliest_offsets([_WHERE])[_WHERE], end

    def _records(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes | None]]:
        batches = self._reader.read(*_WHERE, start, stop, columns=("key", "value"))
        for batch in batches:
            yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
