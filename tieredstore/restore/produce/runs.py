"""A run of ``restore produce``: its options, its position, and the offsets that its records got.

Separate from ``producing``, because the map of offsets, the target's checks and the command need only these types.

A record of the source is named by topic, partition and offset in the bucket. The control topic has two kinds of
records. The key RUN has the run's newest position. The keys RUN/1, RUN/2 … have the offsets of one transaction each,
until the bucket has them. All are JSON (``to_bytes``), and each is in the transaction whose records it describes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Literal, NamedTuple, TypeAlias

from pydantic import TypeAdapter

from tieredstore.catalog.lineage import OffsetSpan
from tieredstore.errors import ConfigError
from tieredstore.model import TopicPartition, Uuid
from tieredstore.records.settings import OnDataLoss
from tieredstore.versions import RESTORE_OFFSETS, RESTORE_POSITION

Partitioner: TypeAlias = Literal["keep", "java", "librdkafka"]
"""The target partition of a record: the source's number, or a hash of the key by Java's clients or by librdkafka."""

OnProgress: TypeAlias = Callable[[int, int], object]
"""Called after each commit with the records and the bytes of keys and values that it added."""

CONTROL_TOPIC: Final = "__tieredstore_restores"
"""The compacted topic of the target cluster that has the positions of all runs. It has one partition."""

SPARSE_RECORDS: Final = 1000
"""The most records of a run with gaps. A group may read as many again in each target partition, and the map of a run
that hashes keys has about a run for as many records.
"""

_NAME: Final = re.compile(r"[A-Za-z0-9._,=-]{1,150}")
_LONGEST_NAME: Final = 150


class OffsetRun(NamedTuple):
    """``length`` records of a source partition, in their order at consecutive offsets of a target partition.

    The source offsets from ``start`` on are consecutive too, except for ``gaps`` offsets. If keys are hashed again, the
    records at these offsets went to other partitions, or there are none; the run does not know which.
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

    def joined(self, later: OffsetRun, *, is_rehashed: bool) -> OffsetRun | None:
        """Join this run and a later run of the same partitions into one; return None if other records lie between them.

        If keys are hashed again, source offsets between the two may be missing; such a run has at most
        ``SPARSE_RECORDS`` records.
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
    """The offsets ``[start, stop)`` of a source partition that a run restores; those from ``next`` on are left.

    The half-open spans ``left_out``, which ascend, are not restored: see ``time_cut``.
    """

    start: int
    next: int
    stop: int
    left_out: tuple[OffsetSpan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """The topics to restore, and how.

    ``topics`` maps source topics to target topics, which exist. ``topic_ids`` choose between incarnations of a source
    topic. ``name`` is the run's; None derives it from the topics. Offsets that are in no segment are an error, or
    logged and left out (``on_data_loss``).
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
        """The name of the run of ``restore produce``. Two processes with one name fence each other."""
        if self.name is not None:
            return self.name
        derived = ",".join(one if one == new else f"{one}={new}" for one, new in sorted(self.topics.items()))
        if len(derived) <= _LONGEST_NAME:
            return derived
        return f"{derived[: _LONGEST_NAME - 17]}-{sha256(derived.encode()).hexdigest()[:16]}"


def check_run(name: str) -> None:
    """Raise ConfigError unless a run can have this name, which is also a part of a key in the bucket."""
    if _NAME.fullmatch(name) is None or name in {".", ".."}:
        raise ConfigError(
            f"the run's name (--run) is {name!r:.60}: it has 1 to {_LONGEST_NAME} letters, digits and . _ - , ="
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPosition:
    """How far a run of ``restore produce`` is. ``ends`` are the offsets after its last record in each target partition.

    The run has written ``offset_records`` records about offsets, under the keys RUN/1, RUN/2 and so on; the offset map
    in the bucket has the first ``mapped`` of them. ``append_times`` are target topics with LogAppendTime, which the run
    sets to CreateTime until it ends. Each has the topic's own setting, or None if the cluster's default applied.
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
        }
        return RESTORE_POSITION.to_bytes(document)

    @classmethod
    def from_bytes(cls, raw: bytes | None, where: str) -> RunPosition:
        """Parse the value of a record; raise CorruptDataError, which begins with ``where``, for another one."""
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


@dataclass(frozen=True, slots=True)
class _StoredOffsets:
    runs: list[OffsetRun]


_POSITION: Final = TypeAdapter(_StoredPosition)
_OFFSETS: Final = TypeAdapter(_StoredOffsets)


def offsets_to_bytes(runs: Iterable[OffsetRun]) -> bytes:
    """Return the value of a record RUN/NUMBER."""
    return RESTORE_OFFSETS.to_bytes({"runs": list(runs)})


def offsets_from_bytes(raw: bytes | None, where: str) -> Sequence[OffsetRun]:
    """Parse the value of a record RUN/NUMBER; raise CorruptDataError, which begins with ``where``, for another one."""
    return RESTORE_OFFSETS.parse(_OFFSETS, raw, where).runs
