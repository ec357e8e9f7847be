"""``tieredstore cat``: the records of a topic."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from tieredstore.cli.app.arguments import SettingsPath, SomePartition, SomePartitions, StoreUrl, Topic, TopicId
from tieredstore.cli.app.broker_options import BootstrapServer, KafkaConfig, KafkaProperties, client_properties
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.completion import complete_offset
from tieredstore.cli.records.logs import LogReading, LogRequest, check_followed, open_logs
from tieredstore.cli.records.record_filter import Pattern, first_of
from tieredstore.cli.records.record_output import AsJson, AsText, CodedBytes, Format, RecordWriter, record_writer
from tieredstore.cli.records.record_places import check_window, chosen_partitions, parse_place
from tieredstore.process.interruption import Interrupted

if TYPE_CHECKING:
    from tieredstore.cli.records.record_filter import PartitionRecords

_MATCHED: Final = ("key", "value")


class IsolationLevel(enum.Enum):
    """Kafka's ``isolation.level``."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


Isolation: TypeAlias = Annotated[
    IsolationLevel, typer.Option("--isolation", help="read_uncommitted shows aborted and open transactions too.")
]


class DataLossPolicy(enum.Enum):
    """What becomes of a read that meets offsets which no segment holds."""

    FAIL = "fail"
    REPORT = "report"


DataLoss: TypeAlias = Annotated[
    DataLossPolicy, typer.Option("--data-loss", help="What to do where offsets are in no segment.")
]


def cat(
    topic: Topic,
    partition: SomePartition = None,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    partitions: SomePartitions = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="OFFSET|TIME|-N",
            help="The first offset, the first record of TIME or later, or the last N records of each partition.",
            autocompletion=complete_offset,
        ),
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="OFFSET|TIME",
            help="Where to end; that record is not shown.",
            autocompletion=complete_offset,
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", metavar="COUNT", min=1, help="End after so many records.")
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="PATTERN", help="Only records whose key or value has a match of this pattern."),
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until interrupted.")] = False,
    as_text: AsText = False,
    format_text: Format = None,
    as_json: AsJson = False,
    json_bytes: CodedBytes = None,
    isolation: Isolation = IsolationLevel.READ_COMMITTED,
    data_loss: DataLoss = DataLossPolicy.FAIL,
    topic_id: TopicId = None,
    bootstrap_server: BootstrapServer = None,
    kafka_config: KafkaConfig = None,
    kafka_properties: KafkaProperties = None,
) -> None:
    """Show the records of a topic, by partition and offset.

    With --bootstrap-server the bucket is read up to its end and the broker from exactly there.

    A TIME is a date with or without a time of day (2026-01-31T08:00:00Z; UTC unless it says otherwise), or @ and
    milliseconds since 1970. What a read has to report, and what it left out, goes to stderr.

    Example: tieredstore cat -c store.properties orders --from -5

    Example: tieredstore cat -c store.properties orders --from 2026-01-31 --to 2026-02-01 --grep error -n 10
    """
    write, columns = record_writer(
        topic, as_text=as_text, format_text=format_text, as_json=as_json, json_bytes=json_bytes
    )
    first, last = (None if text is None else parse_place(text) for text in (start, stop))
    check_window(first, last)
    request = LogRequest(
        topic, chosen_partitions(partition, partitions), first, last, isolation.value, data_loss.value, topic_id,
        client_properties(bootstrap_server, kafka_config, kafka_properties),
        columns if grep is None else tuple(dict.fromkeys((*columns, *_MATCHED))),
    )  # fmt: skip
    if follow:
        check_followed(request)
    pattern = None if grep is None else Pattern(grep)
    with (
        open_chosen_bucket(settings, store) as place,
        place.manager() as manager,
        open_logs(manager, request) as reading,
    ):
        try:
            _show(reading, write, pattern, count, follow=follow)
        except (Interrupted, KeyboardInterrupt):
            reading.left_out.tell(was_stopped=True)
            raise
        reading.left_out.tell()


def _show(
    reading: LogReading, write: RecordWriter, pattern: Pattern | None, count: int | None, *, follow: bool
) -> None:
    records = reading.records_as_they_come() if follow else reading.records_till_end()
    with closing(records):
        shown: Iterable[PartitionRecords] = records
        if pattern is not None:
            shown = pattern.filtered(shown)
        if count is not None:
            shown = first_of(shown, count)
        write(reading.left_out.noting(shown), reading.offset_width)
