"""The source of ``tieredstore cat --group``: a topic's records, read as a group member from bucket and broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from confluent_kafka import OFFSET_BEGINNING
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.api.reading import types_of
from tieredstore.cli.records.record_output import tell_left_out
from tieredstore.consumer import Consumer
from tieredstore.live import faults
from tieredstore.model import Last, check_offset
from tieredstore.query.topic_columns import TOPIC_COLUMNS, TopicColumns, topic_schema
from tieredstore.reading.omitted_records import describe_undecided

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer as KafkaConsumer

    from tieredstore.api.reading import ReadOptions
    from tieredstore.config import Settings
    from tieredstore.model import AtTime, TopicPartition

_POLL_S: Final = 0.5
_MOST_ROWS: Final = 10_000
_ANSWER_S: Final = 60.0


class ConsumedTopic:
    """Reads a topic from bucket and broker as a group member, and commits the records that were written to the output.

    The offset of returned records is stored for the next commit only when the caller asks for more, because the caller
    has then written these records. If the caller fails to write records, the group reads them again.
    """

    def __init__(
        self,
        settings: Settings,
        client: Mapping[str, str],
        topic: str,
        group: str,
        start: int | AtTime | Last | None,
        how: ReadOptions,
        *,
        follows: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the consumer without connecting; raise ConfigError for invalid settings.

        Partitions without a commit of the group begin at ``start``. Unless ``follows`` is true, the read stops at the
        end of each partition.
        """
        self._topic, self._start, self._follows, self._limit = topic, start, follows, how.get("limit")
        self._monotonic = monotonic
        self._types, self._names = types_of(how, "bytes")(topic), how.get("columns", TOPIC_COLUMNS)
        self.schema = topic_schema(self._names, self._types)
        self._trouble = faults.Trouble()
        self._doing = f"consuming topic {topic!r}"
        self._is_assigned = False
        self._held_back: dict[TopicPartition, int] = {}
        """The offset at which each partition was last reported as waiting for an open transaction."""
        self._consumer = Consumer(
            {
                "isolation.level": how.get("isolation"),
                **client,
                "tiered.storage.mode": "kafka_preferred" if client else "remote_only",
                "tiered.storage.on.data.loss": how.get("on_loss"),
                "group.id": group,
                "enable.auto.commit": True,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "error_cb": self._trouble.note,
                "tiered.storage.settings": settings,
            }
        )

    def close(self) -> None:
        """Commit written records, and leave the group."""
        self._consumer.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield records as they arrive. Stop at the limit; without ``follows``, stop at the end of all partitions."""
        with faults.translate_errors(self._doing):
            self._join()
            left, begun = self._limit, self._monotonic()
            while left is None or left > 0:
                batch = self._consumer.poll_arrow(
                    _POLL_S, min(left or _MOST_ROWS, _MOST_ROWS), self._columns_of(0).decoded
                )
                if batch is None:
                    self._check_broker(begun)
                    self._tell_held_back()
                    if not self._follows and self._is_at_end():
                        return
                    continue
                rows = batch.records
                yield self._columns_of(batch.partition).convert(rows, (batch.topic, batch.partition))
                left = None if left is None else left - rows.num_rows
                self._store(batch.topic, batch.partition, batch.next_offset)

    @cache  # noqa: B019  the object lives as long as the command
    def _columns_of(self, partition: int) -> TopicColumns:
        return TopicColumns(self._names, self._types, self._topic, [partition])

    def _store(self, topic: str, partition: int, next_offset: int) -> None:
        self._consumer.store_offsets(offsets=[KafkaPartition(topic, partition, next_offset)])

    def _is_at_end(self) -> bool:
        stats = self._consumer.tiered_stats() if self._is_assigned else None
        return stats is not None and all(one["at_end"] for one in stats.values())

    def _tell_held_back(self) -> None:
        """Report that a partition waits for an open transaction in the bucket. Report each position only once."""
        for where, one in (self._consumer.tiered_stats() if self._is_assigned else {}).items():
            position, stored_end = one["position"], one["stored_end"]
            if one["phase"] != "waiting" or stored_end is None or position is None or position >= stored_end:
                continue
            if self._held_back.get(where) != position:
                self._held_back[where] = position
                tell_left_out([describe_undecided(where, position, stored_end, one["live_end"] or 0)])

    def _check_broker(self, begun: float) -> None:
        """Raise a permanent error of the broker at once. Raise a transient error only if the group has assigned no
        partition within a minute.
        """
        error = self._trouble.final(self._doing)
        if error is not None:
            raise error
        if not self._is_assigned and self._trouble.noted is not None and self._monotonic() > begun + _ANSWER_S:
            raise self._trouble.unavailable(self._doing, _ANSWER_S)

    def _join(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._on_assign)

    def _on_assign(self, consumer: KafkaConsumer, places: list[KafkaPartition]) -> None:
        """Start assigned partitions at the group's commits, and partitions without a commit at the requested offset."""
        self._is_assigned = True
        if self._start is None:
            return  # auto.offset.reset decides where partitions without a commit start
        # Ask the coordinator, because only its answer shows which partitions have no commit.
        known = consumer.committed(places, _ANSWER_S)
        placed = self._place_all([place.partition for place in known if place.offset < 0])
        offsets = {place.partition: place.offset for place in placed}
        for place in places:
            # confluent-kafka assigns this list after the callback, in every group protocol, so change its elements
            # here.
            place.offset = offsets.get(place.partition, place.offset)

    def _place_all(self, partitions: Sequence[int]) -> list[KafkaPartition]:
        """Return the partitions with their start offsets."""
        start = self._start
        if isinstance(start, Last):
            return [self._place(number, self._before_end(number, start.count)) for number in partitions]
        if isinstance(start, int):
            names = {number: f"{self._topic}-{number}" for number in partitions}
            check_offset(start, {name: self._span_of(number)[1] for number, name in names.items()})
            return [self._place(number, start) for number in partitions]
        if start is None:
            return [self._place(number, OFFSET_BEGINNING) for number in partitions]
        asked = [self._place(number, start.timestamp_ms) for number in partitions]
        return self._consumer.offsets_for_times(asked, _ANSWER_S)

    def _before_end(self, number: int, count: int) -> int:
        first, end = self._span_of(number)
        return max(first, end - count)

    def _span_of(self, number: int) -> tuple[int, int]:
        """Return the first offset of a partition and its end (exclusive)."""
        span = self._consumer.get_watermark_offsets(self._place(number, 0), _ANSWER_S)
        if span is None:
            raise self._trouble.unavailable(self._doing, _ANSWER_S)
        return int(span[0]), int(span[1])

    def _place(self, number: int, offset: int) -> KafkaPartition:
        return KafkaPartition(self._topic, number, offset)
