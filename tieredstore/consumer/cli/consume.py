"""``tieredstore consume``: a topic's records as a consumer of bucket and broker gets them."""

from __future__ import annotations

import importlib
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from tieredstore.cli.app.arguments import SettingsPath, StoreUrl, Topic
from tieredstore.cli.app.broker_options import BootstrapServer, KafkaConfig, KafkaProperties, client_properties
from tieredstore.cli.app.chosen_bucket import choose_settings
from tieredstore.cli.records.cat import DataLossError, DataLossPolicy, Isolation, IsolationLevel
from tieredstore.cli.records.record_output import AsJson, AsText, CodedBytes, Format, record_writer
from tieredstore.cli.records.record_places import parse_offset_or_time, parse_place
from tieredstore.cli.records.uncommitted import say_left_out, undecided
from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.model import AtTime, Last, check_offset

if TYPE_CHECKING:
    from tieredstore.cli.records.record_filter import PartitionRecords
    from tieredstore.config import Settings
    from tieredstore.model import TopicPartition

_OFFSET_WIDTH: Final = 8

_Mode: TypeAlias = Literal["kafka_preferred", "remote_preferred", "remote_only"]


def consume(
    topic: Topic,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="GROUP", help="Share the topic with this group, go on where it was, commit."),
    ] = None,
    mode: Annotated[
        _Mode | None,
        typer.Option("--mode", help="Who is read: kafka_preferred with a broker, remote_only without, unless said."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|OFFSET|TIME|-N",
            help="Where partitions begin of which the group has committed nothing; -N: so many offsets before the end.",
        ),
    ] = "earliest",
    exit_eof: Annotated[bool, typer.Option("--exit-eof", help="End when each partition was read to its end.")] = False,
    count: Annotated[
        int | None, typer.Option("-n", "--count", metavar="COUNT", min=1, help="End after so many records.")
    ] = None,
    as_text: AsText = False,
    format_text: Format = None,
    as_json: AsJson = False,
    json_bytes: CodedBytes = None,
    isolation: Isolation = IsolationLevel.READ_COMMITTED,
    data_loss: DataLossError = DataLossPolicy.FAIL,
    bootstrap_server: BootstrapServer = None,
    kafka_config: KafkaConfig = None,
    kafka_properties: KafkaProperties = None,
) -> None:
    """Show the records of a topic as a consumer of bucket and broker gets them, until interrupted.

    With --group it is a member of the group: partitions are shared with the others, and what was written to stdout is
    committed. Without it all partitions are read, and nothing is committed. Partitions take turns; cat shows one after
    the other.

    A TIME is a date with or without a time of day (2026-01-31T08:00:00Z; UTC unless it says otherwise), or @ and
    milliseconds since 1970.

    Example: tieredstore consume -c store.properties orders --group billing --bootstrap-server localhost:9092

    Example: tieredstore consume -c store.properties orders --exit-eof --json
    """
    write, columns = record_writer(
        topic, as_text=as_text, format_text=format_text, as_json=as_json, json_bytes=json_bytes
    )
    place = _start(start)
    client = client_properties(bootstrap_server, kafka_config, kafka_properties)
    chosen = mode or ("remote_only" if client is None else "kafka_preferred")
    if client is None and (group is not None or chosen != "remote_only"):
        raise ConfigError("no broker is named, which groups and other modes need: give --bootstrap-server HOST:PORT")
    properties: dict[str, Any] = {
        "isolation.level": isolation.value,
        **(client or {}),
        "tiered.storage.mode": chosen,
        "tiered.storage.on.data.loss": data_loss.value,
    }
    named = choose_settings(settings, store)
    consumed = ConsumedTopic(ConsumeRequest(topic, group, place, named, properties, columns))
    with closing(consumed), closing(consumed.records(count=count, exits_at_end=exit_eof)) as records:
        write(records, _OFFSET_WIDTH)


def _start(text: str) -> Start:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    return parse_place(text) if text.startswith("-") else parse_offset_or_time(text, "; so are earliest, latest and -5")


Start: TypeAlias = int | AtTime | Last | Literal["earliest", "latest"]
"""Where a partition begins of which nothing is committed."""

_GROUP: Final = "tieredstore-consume"
"""The library's consumer has to be of some group; who names none commits nothing in it, and does not join it."""

_POLL_S: Final = 0.5
_MOST_ROWS: Final = 10_000
_ANSWER_S: Final = 60.0
_BEGINNING, _END = -2, -1
"""As librdkafka numbers the ends of a log."""


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """What is to be shown, and who asks for it."""

    topic: str
    group: str | None
    start: Start
    settings: Settings
    properties: Mapping[str, Any]
    columns: Sequence[str]

    @property
    def has_broker(self) -> bool:
        """Whether the properties name one."""
        return bool(self.properties.get("bootstrap.servers"))


class ConsumedTopic:
    """Reads a topic by a consumer of bucket and broker. What was written is committed, if there is a group.

    Offsets are stored only when the caller asks for the next records: what it could not write comes again.
    """

    def __init__(self, request: ConsumeRequest) -> None:
        """ConfigError for what cannot be used; nothing is connected to yet."""
        from tieredstore.consumer import Consumer
        from tieredstore.live import faults

        self._faults = faults
        self._kafka: Any = importlib.import_module("confluent_kafka")
        self._request = request
        self._trouble: Any = self._faults.Trouble()
        self._doing = f"consuming topic {request.topic!r}"
        self._is_assigned = False
        self._held_back: dict[TopicPartition, int] = {}
        """Where each partition was said to wait for the outcome of a transaction."""
        self._consumer = Consumer(
            {
                **request.properties,
                "group.id": request.group or _GROUP,
                "enable.auto.commit": request.group is not None,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "latest" if request.start == "latest" else "earliest",
                "error_cb": self._trouble.note,
                "tiered.storage.settings": request.settings,
            }
        )

    def close(self) -> None:
        """Commit what was written, and leave the group."""
        self._consumer.close()

    def records(self, *, count: int | None, exits_at_end: bool) -> Generator[PartitionRecords, None, None]:
        """Records as they come; up to ``count`` of them, or until each partition was read to its end."""
        with self._faults.translate_errors(self._doing):
            self._join()
            # Offsets tell how far was read, whatever is shown.
            columns = tuple(dict.fromkeys((*self._request.columns, "offset")))
            left, begun = count, time.monotonic()
            while left is None or left > 0:
                batch = self._consumer.poll_arrow(_POLL_S, min(left or _MOST_ROWS, _MOST_ROWS), columns)
                if batch is None:
                    self._check_broker(begun)
                    self._tell_held_back()
                    if exits_at_end and self._is_at_end():
                        return
                    continue
                rows: Any = batch.records
                yield batch.partition, batch.records
                left = None if left is None else left - rows.num_rows
                if self._request.group is not None:
                    self._store(batch.topic, batch.partition, batch.next_offset)

    def _store(self, topic: str, partition: int, next_offset: int) -> None:
        self._consumer.store_offsets(offsets=[self._kafka.TopicPartition(topic, partition, next_offset)])

    def _is_at_end(self) -> bool:
        stats = self._consumer.tiered_stats() if self._is_assigned else None
        return stats is not None and all(one["at_end"] for one in stats.values())

    def _tell_held_back(self) -> None:
        """Say, once at each place, that the bucket goes on there with a transaction that is not decided in it."""
        for where, one in (self._consumer.tiered_stats() if self._is_assigned else {}).items():
            position, stored_end = one["position"], one["stored_end"]
            if one["phase"] != "waiting" or stored_end is None or position is None or position >= stored_end:
                continue
            if self._held_back.get(where) != position:
                self._held_back[where] = position
                say_left_out(undecided(where, position, stored_end))

    def _check_broker(self, begun: float) -> None:
        """Tell of a broker that refuses, at once, and of one that does not answer, when there is nothing to go on."""
        error = self._trouble.final(self._doing)
        if error is not None:
            raise error
        if not self._is_assigned and self._trouble.noted is not None and time.monotonic() > begun + _ANSWER_S:
            raise self._trouble.unavailable(self._doing, _ANSWER_S)

    def _join(self) -> None:
        if self._request.group is not None:
            self._consumer.subscribe([self._request.topic], on_assign=self._on_assign)
            return
        self._is_assigned = True
        self._consumer.assign(self._place_all(self._partitions()))

    def _on_assign(self, consumer: Any, places: list[Any]) -> None:
        """Start where the group was; and where it was nowhere yet, at the place that was asked for."""
        self._is_assigned = True
        if isinstance(self._request.start, str):
            return  # as the reset has it
        # Twice asked, here and by the consumer, since only the answer tells which ones are to be placed.
        known = consumer.committed(places, _ANSWER_S)
        placed = self._place_all([place.partition for place in known if place.offset < 0])
        offsets = {place.partition: place.offset for place in placed}
        for place in places:
            # What is assigned by itself is this very list, whatever the group's protocol.
            place.offset = offsets.get(place.partition, place.offset)

    def _partitions(self) -> Sequence[int]:
        """All partitions of the topic; of the bucket, where no broker is named."""
        topic = self._request.topic
        if self._request.has_broker:
            described = self._consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic]
            if described.error is not None:
                raise self._kafka.KafkaException(described.error)
            return sorted(described.partitions)
        from tieredstore.catalog.planning import load_catalog
        from tieredstore.remote import RemoteStorageManager

        with RemoteStorageManager(self._request.settings) as manager:
            catalog = load_catalog(manager, topic=topic)
            if topic not in catalog.topics():
                raise ResourceNotFoundError(f"topic {topic!r} is not in the bucket")
            return catalog.incarnation(topic).partitions

    def _place_all(self, partitions: Sequence[int]) -> list[Any]:
        """These with the offsets to start at."""
        start = self._request.start
        if isinstance(start, Last):
            return [self._place(number, self._before_end(number, start.count)) for number in partitions]
        if isinstance(start, int):
            names = {number: f"{self._request.topic}-{number}" for number in partitions}
            check_offset(start, {name: self._span_of(number)[1] for number, name in names.items()})
        if isinstance(start, str | int):
            offset = {"earliest": _BEGINNING, "latest": _END}.get(str(start), start)
            return [self._place(number, offset) for number in partitions]
        asked = [self._place(number, start.timestamp_ms) for number in partitions]
        return self._consumer.offsets_for_times(asked, _ANSWER_S)

    def _before_end(self, number: int, count: int) -> int:
        first, end = self._span_of(number)
        return max(first, end - count)

    def _span_of(self, number: int) -> tuple[int, int]:
        """The first offset of a partition, and the one behind its last."""
        span = self._consumer.get_watermark_offsets(self._place(number, 0), _ANSWER_S)
        if span is None:
            raise self._trouble.unavailable(self._doing, _ANSWER_S)
        return int(span[0]), int(span[1])

    def _place(self, number: int, offset: Any) -> Any:
        return self._kafka.TopicPartition(self._request.topic, number, offset)
