"""The stream reader: finds the logs' ends at each trigger, chooses what to read, and handles data loss.

Only ``data_source`` imports this module. The two are separate, because Spark imports ``data_source`` whenever it
searches for data sources.

A stream's offset in a checkpoint is JSON. The topic ids reveal a re-created topic. ``epochs`` has the leader epoch of
the last record that was read from each partition. By this epoch, the stream notices if a new leader has truncated the
log::

    {"version": 1, "offsets": {"orders": {"0": 17, "1": 4}}, "topicIds": {"orders": "VGVzdFRvcGljSWRlbnRpZg"},
     "epochs": {"orders": {"0": 5}}}

The end of the first batch also has ``initialOffsets``, with the same structure as ``offsets``. After a restart, Spark
asks for the start of the first batch again, and by then ``latest`` or a time may mean another offset.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.limits import MAX_INT32, MAX_OFFSET
from tieredstore.model import TopicId, TopicPartition, Uuid, name_of
from tieredstore.partitions.position import Position, stand
from tieredstore.partitions.selections import Assign, Selection, Subscribe
from tieredstore.reading.losses import (
    Loss,
    Losses,
    loss_of_end,
    loss_of_partition,
    loss_of_position,
    loss_of_request,
    loss_of_topic,
)
from tieredstore.reading.snapshots import LogSnapshots
from tieredstore.reading.windows import with_offsets
from tieredstore.spark.source.options import SourceOptions
from tieredstore.spark.source.store_source import manager_of
from tieredstore.spark.source.tasks import plan_tasks, query_of, read_task
from tieredstore.spark.source.trigger_limits import IN_OPTIONS, TriggerDelay, Windows, is_once
from tieredstore.spark.source.workers import each_in_one_sentence, one_sentence
from tieredstore.versions import SPARK_OFFSETS, refuse_newer_offsets

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.live import EpochEnd
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.reading.log_snapshot import LogSnapshot

OnLoss = Callable[[Loss], None]
"""Callback for each data loss. It raises an error if the stream must end."""

Logs = Mapping[TopicPartition, "PartitionLog"]
Answers = Mapping[TopicPartition, "EpochEnd"]
"""By partition: where the leader epoch of the last record that the stream has read ends in the broker's log.
"""

_EPOCHS: Final = "epochs"
_INITIAL: Final = "initialOffsets"


def _partition_of(text: str) -> int:
    """Parse a partition number, which must not have leading zeros."""
    if not _PARTITION.fullmatch(text):
        raise ValueError("a partition's number is expected")
    return int(text)


def _topic_id_of(text: object) -> Uuid:
    try:
        return Uuid.parse(text if isinstance(text, str) else "")
    except ConfigError as error:
        raise ValueError(str(error)) from None


_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_Partition: TypeAlias = Annotated[int, BeforeValidator(_partition_of), Field(le=MAX_INT32)]
_Numbers: TypeAlias = dict[str, dict[_Partition, Annotated[int, Strict(), Field(ge=0, le=MAX_OFFSET)]]]


_ABSENT: Final[_Numbers] = {}
"""Default of an absent field. It may be a plain dict, because pydantic does not validate defaults."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class _Stored:
    """The JSON object that Spark stores as the stream's offset in a checkpoint."""

    version: Annotated[int, Strict(), Field(ge=1)]
    offsets: _Numbers
    topicIds: dict[str, Annotated[Uuid, PlainValidator(_topic_id_of)]]  # noqa: N815  JSON's name, as below
    epochs: _Numbers
    initialOffsets: _Numbers = field(default_factory=lambda: _ABSENT)  # noqa: N815


_STORED: Final = TypeAdapter(_Stored)
_NO_ANSWERS: Final[Answers] = {}


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The next offset to read of each partition, and the ids of the topics.

    ``initial`` is the start of the stream, or None if it is no longer needed. ``epochs`` are the known leader epochs of
    the records before the offsets.
    """

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, Uuid]
    initial: Mapping[TopicPartition, int] | None = None
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])

    @classmethod
    def at(cls, offsets: Mapping[TopicPartition, int], logs: Logs) -> StreamOffsets:
        """Return these offsets with the topic ids and epochs of the logs."""
        known = {where: logs[where].epoch_before(offset) for where, offset in offsets.items()}
        epochs = {where: epoch for where, epoch in known.items() if epoch is not None}
        return cls(dict(offsets), {where[0]: logs[where].topic_id for where in offsets}, epochs=epochs)

    @classmethod
    def from_json(cls, value: object) -> StreamOffsets:
        """Parse the result of :meth:`to_json`. Raise ConfigError for other JSON, such as another source's
        checkpoint."""
        refuse_newer_offsets(SPARK_OFFSETS, value)
        try:
            stored = _STORED.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise _foreign(f"{'.'.join(map(str, first['loc']))[:60]}: {first['msg'][:100]}") from None
        offsets, epochs = _by_partition(stored.offsets), _by_partition(stored.epochs)
        initial = None if stored.initialOffsets is _ABSENT else _by_partition(stored.initialOffsets)
        if stored.topicIds.keys() != {topic for topic, _ in offsets}:
            raise _foreign("topicIds and offsets name different topics")
        if not epochs.keys() | (initial or {}).keys() <= offsets.keys():
            raise _foreign(f"{_EPOCHS} or {_INITIAL} name other partitions than offsets")
        return cls(offsets, stored.topicIds, initial, epochs)

    def to_json(self) -> dict[str, object]:
        """Return the JSON for a checkpoint. Equal offsets give equal texts, because Spark compares texts to see if
        anything is new.
        """
        fields: dict[str, object] = {
            "version": SPARK_OFFSETS.version,
            "offsets": _by_topic(self.offsets),
            "topicIds": {topic: str(topic_id) for topic, topic_id in sorted(self.topic_ids.items())},
            _EPOCHS: _by_topic(self.epochs),
        }
        return fields if self.initial is None else fields | {_INITIAL: _by_topic(self.initial)}

    def as_initial(self) -> StreamOffsets:
        """Return a copy in which these offsets are also the start of the stream."""
        return replace(self, initial=self.offsets)

    def is_at(self, other: StreamOffsets) -> bool:
        """Return True if there is nothing to read between these offsets and ``other``."""
        return self.offsets == other.offsets and self.topic_ids == other.topic_ids

    def with_ends(self, ends: Mapping[TopicPartition, int], logs: Logs) -> StreamOffsets:
        """Return these offsets moved to ``ends``, with topic ids and leader epochs from ``logs``.

        A partition that is not in ``ends`` keeps its offset, even if it does not exist now, because it may appear
        again. Offsets of a topic that was re-created are dropped.
        """
        moved = StreamOffsets.at(ends, logs)
        derived, now = _derived_ids(logs), moved.topic_ids
        stay = {where: at for where, at in self.offsets.items() if self._has_id(where[0], now, derived)}
        kept = {topic: self.topic_ids[topic] for topic, _ in stay}
        # Never replace a real topic id by an id that is derived from the name, because only a real id reveals a
        # re-created topic later.
        ids = {**kept, **{topic: own for topic, own in now.items() if topic not in kept or own != derived.get(topic)}}
        # If a batch reads nothing from a partition, keep the partition's epoch, so that equal offsets give equal texts.
        is_same = {where for where, at in stay.items() if moved.offsets.get(where, at) == at}
        epochs = {where: epoch for where, epoch in moved.epochs.items() if where not in is_same}
        epochs |= {where: epoch for where, epoch in self.epochs.items() if where in is_same}
        initial = stay if self.initial == self.offsets else None
        return StreamOffsets({**stay, **moved.offsets}, ids, initial, epochs)

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """The offsets with their leader epochs."""
        return {where: Position(offset, self.epochs.get(where)) for where, offset in self.offsets.items()}

    def begins(
        self,
        logs: Logs,
        on_loss: OnLoss,
        answers: Answers = _NO_ANSWERS,
        stale: Collection[TopicPartition] = (),
    ) -> dict[TopicPartition, int]:
        """Return the offset from which to read each log. It lies between the log's earliest offset and the log's end.

        New partitions, and partitions of a re-created topic, begin at their earliest offset. ``on_loss`` is called for
        offsets that cannot be read, and for offsets that a new leader removed after the stream had read them.

        Partitions in ``stale`` are left out, because their unread records have an older leader epoch than the last
        record that the stream has read. A partition is not left out if the stream has read nothing from it.
        """
        self._tell_of_gone(logs, on_loss)
        self._tell_of_other_ids(logs, on_loss)
        return {
            where: self._begin(where, log, on_loss, answers.get(where))
            for where, log in sorted(logs.items())
            if where not in stale or self._find_next(where, log.topic_id, log.derived_id) is None
        }

    def windows_to(
        self,
        end: StreamOffsets,
        logs: Logs,
        on_loss: OnLoss,
        answers: Answers = _NO_ANSWERS,
    ) -> Windows:
        """Return the ranges of offsets from these offsets to ``end``. ``on_loss`` is called for offsets that no longer
        exist.

        ``logs`` may be newer than the logs from which ``end`` was determined, if Spark repeats a batch after a restart.
        """
        if end.initial is not None and self.initial == self.offsets:
            # After a restart, these offsets are a newly computed start of the stream, which may already equal the end
            # of the first batch. So take the start that ``end`` records, with the leader epochs of ``end``, which are
            # at least as late as those of the start.
            begun = StreamOffsets(end.initial, end.topic_ids, epochs=end.epochs)
            return begun.windows_to(replace(end, initial=None), logs, on_loss)
        if self.is_at(end):
            return {}
        windows: Windows = {}
        derived = _derived_ids(logs)
        for where, stop in sorted(end.offsets.items()):
            topic_id = end.topic_ids[where[0]]
            known, log = self._find_next(where, topic_id, derived.get(where[0])), logs.get(where)
            if known is not None and known >= stop and not self._is_cut(where, known, log, answers):
                continue
            if log is None or not _agree(log.topic_id, topic_id, log.derived_id):
                on_loss(loss_of_request(where, topic_id, known or 0, stop, None if log is None else log.topic_id))
                continue
            start = self._begin(where, log, on_loss, answers.get(where))
            if stop > log.end:
                on_loss(loss_of_end(where, topic_id, log.end, stop))
            if min(stop, log.end) > start:
                windows[where] = start, min(stop, log.end)
        return windows

    def _has_id(self, topic: str, ids: Mapping[str, Uuid], derived: Mapping[str, Uuid | None]) -> bool:
        own = self.topic_ids[topic]
        return _agree(ids.get(topic, own), own, derived.get(topic))

    def _find_next(self, where: TopicPartition, topic_id: Uuid, derived: Uuid | None) -> int | None:
        """Return the next offset of a partition in the topic with this id, or None if the stream has read nothing from
        it."""
        own = self.topic_ids.get(where[0])
        return self.offsets.get(where) if own is not None and _agree(own, topic_id, derived) else None

    def _is_cut(self, where: TopicPartition, known: int, log: PartitionLog | None, answers: Answers) -> bool:
        position = Position(known, self.epochs.get(where))
        return log is not None and stand(position, log, answers.get(where)).kind == "cut"

    def _begin(self, where: TopicPartition, log: PartitionLog, on_loss: OnLoss, answer: EpochEnd | None) -> int:
        known = self._find_next(where, log.topic_id, log.derived_id)
        if known is None:
            # A new partition that does not begin at 0 has lost records, because retention deleted them before the
            # stream read them. A re-created topic is reported elsewhere, once for all its partitions.
            if log.earliest and _agree(self.topic_ids.get(where[0], log.topic_id), log.topic_id, log.derived_id):
                on_loss(Loss(f"{name_of(where)} is new, but begins at offset {log.earliest} instead of 0"))
            return log.earliest
        standing = stand(Position(known, self.epochs.get(where)), log, answer)
        if standing.kind != "stands":
            on_loss(loss_of_position(known, standing, log))
        return standing.at

    def _tell_of_gone(self, logs: Logs, on_loss: OnLoss) -> None:
        ids, derived = {topic: log.topic_id for (topic, _), log in logs.items()}, _derived_ids(logs)
        for where, at in sorted(self.offsets.items()):
            if where not in logs and self._has_id(where[0], ids, derived):
                on_loss(loss_of_partition(where, self.topic_ids[where[0]], at))

    def _tell_of_other_ids(self, logs: Logs, on_loss: OnLoss) -> None:
        for topic, (topic_id, derived) in sorted(
            {topic: (log.topic_id, log.derived_id) for (topic, _), log in logs.items()}.items()
        ):
            known = self.topic_ids.get(topic, topic_id)
            if not _agree(known, topic_id, derived):
                read = ", ".join(
                    f"{name_of(where)} {at}" for where, at in sorted(self.offsets.items()) if where[0] == topic
                )
                on_loss(loss_of_topic(topic, topic_id, f"{known} was read up to offsets {read}"))


def _derived_ids(logs: Logs) -> dict[str, Uuid | None]:
    return {topic: log.derived_id for (topic, _), log in logs.items()}


def _agree(one: Uuid, other: Uuid, derived: Uuid | None) -> bool:
    """Return True if two topic ids may belong to the same topic."""
    return not TopicId.of(one, derived).contradicts(TopicId.of(other, derived))


def _foreign(reason: str) -> ConfigError:
    return ConfigError(
        f"this source did not write the checkpoint's offsets ({reason}): give the query a checkpointLocation of its own"
    )


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return by_topic


def _by_partition(offsets: _Numbers) -> dict[TopicPartition, int]:
    return {(topic, partition): number for topic, numbers in offsets.items() for partition, number in numbers.items()}


_logger: Final = logging.getLogger(__name__)

_FRESH_S: Final = 1.0
"""Minimum seconds between listings, because listings cost money, and Spark asks a hundred times a second without a
trigger interval.
"""

Json = dict[str, object]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the selected partitions trigger by trigger. Only Spark's checkpoint records its progress.

    Spark calls this stream reader in a separate process to plan. Tasks get a copy of it, but only call ``read``. The
    bucket is listed at most once a second. ``clock`` returns monotonic seconds.
    """

    def __init__(self, options: SourceOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._limits = options.limits
        self._query = query_of(options)
        self._logs = LogSnapshots(partial(manager_of, options.store), self._query, fresh_s=_FRESH_S, clock=clock)
        self._delay = TriggerDelay(clock)
        self._losses = Losses(self._query)
        self._target: StreamOffsets | None = None
        self._has_looked = False

    def __reduce__(self) -> tuple[type[StreamReader], tuple[SourceOptions]]:
        return StreamReader, (self._options,)

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name, as the others are
        """Return the start of a new stream, as set by the option ``startingOffsets`` or one of its variants."""
        with one_sentence():
            snapshot = self._logs.current()
            if self._target is not None:
                snapshot.check_selected(self._query, manager_of(self._options.store))
            starting, too_late = self._options.starting, self._options.timestamp_strategy
            begins = self._logs.lookup(snapshot).find_starts(starting, if_too_late=too_late)
            self._losses.check_readable(
                snapshot, {where: (begin, begin) for where, begin in begins.items()},
                starts_there=with_offsets(starting, begins), stops_there=begins,
            )  # fmt: skip
            return StreamOffsets.at(begins, snapshot.logs).as_initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a placeholder for the limit, which Spark passes to ``latestOffset``."""
        return IN_OPTIONS

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Return the end of the batch that begins at ``start``, or ``start`` if there is nothing to read."""
        with one_sentence():
            read = StreamOffsets.from_json(start)
            snapshot = self._logs.current()
            self._look_for_absent(snapshot, read, ends=self._target is not None or is_once(limit))
            answers, stale = self._logs.epoch_ends(read.positions), self._logs.stale(read.positions)
            begins = read.begins(snapshot.logs, self._losses.accept, answers, stale)
            windows = self._within_reach(snapshot, begins)
            limits = self._limits.under(limit)
            waiting = sum(stop - first for first, stop in windows.values())
            # Do not wait in a run with a fixed end, because it reads only records that are already present.
            if self._target is None and self._delay.has_to_wait(limits, waiting):
                return start
            reached = read.with_ends(limits.admit(windows, snapshot.bytes_between), snapshot.logs)
            return start if reached.is_at(read) else reached.to_json()

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """Return the last known ends of all logs, for Spark's progress reports. Make no request."""
        last = self._logs.last
        return None if last is None else _ends(last).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Make this run end at the present end of each partition."""
        with one_sentence():
            snapshot = self._logs.current()
            ends = {where: (log.end, log.end) for where, log in snapshot.logs.items()}
            self._losses.check_readable(snapshot, ends, starts_there=ends)
            self._target = _ends(snapshot)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the tasks of the batch that :meth:`latestOffset` has just found, or of an earlier batch that Spark
        repeats.
        """
        with one_sentence():
            # Use the snapshot that gave the batch's end, because a newer snapshot would cost a listing and change
            # nothing.
            snapshot = self._logs.last or self._logs.current()
            first, last = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
            windows = first.windows_to(last, snapshot.logs, self._losses.accept, self._logs.epoch_ends(first.positions))
            return plan_tasks(manager_of(self._options.store), snapshot, windows, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return each_in_one_sentence(read_task(partition, self._options))

    def stop(self) -> None:
        """Close the connection to the broker, and drop cached state."""
        self._logs.close()

    def _look_for_absent(self, snapshot: LogSnapshot, read: StreamOffsets, *, ends: bool) -> None:
        """On the first call, check that the topics named in the options exist, because a name may be misspelled. Topics
        in the checkpoint are not checked.

        A run that ends raises ResourceNotFoundError, because it would otherwise seem to succeed. A continuous stream
        logs a warning and waits, because topics may be created later. If a topic in the checkpoint no longer exists,
        the stream reports a data loss.
        """
        if self._has_looked:
            return
        query = replace(self._query, selection=_but(self._query.selection, read.offsets))
        try:
            snapshot.check_selected(query, manager_of(self._options.store))
        except ResourceNotFoundError as error:
            if ends:
                raise
            _logger.warning("%s; the stream waits for it", error)
        self._has_looked = True

    def _within_reach(self, snapshot: LogSnapshot, begins: Mapping[TopicPartition, int]) -> Windows:
        """Return the readable offsets of each partition. If the run has a fixed end, return no offsets beyond it."""
        target, windows = self._target, Windows()
        for where, begin in begins.items():
            log = snapshot.logs[where]
            end = log.end_from(begin)
            if target is None:
                windows[where] = begin, end
            elif where in target.offsets and log.is_of(target.topic_ids[log.topic]):
                windows[where] = begin, max(begin, min(end, target.offsets[where]))
        return windows


def _but(selection: Selection, known: Collection[TopicPartition]) -> Selection:
    """Return ``selection`` without the topics and partitions in ``known``."""
    match selection:
        case Subscribe(topics=topics):
            known_topics = {topic for topic, _ in known}
            return Subscribe(tuple(topic for topic in topics if topic not in known_topics))
        case Assign(partitions=partitions):
            return Assign(tuple(where for where in partitions if where not in known))
        case _:
            return selection


def _ends(snapshot: LogSnapshot) -> StreamOffsets:
    return StreamOffsets.at({where: log.end for where, log in snapshot.logs.items()}, snapshot.logs)
