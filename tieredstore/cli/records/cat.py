"""``tieredstore cat``: the records of a topic."""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from tieredstore.cli.app.arguments import SettingsPath, SomePartition, SomePartitions, StoreUrl, Topic, TopicId
from tieredstore.cli.app.broker_options import BootstrapServer, KafkaConfig, KafkaProperties, client_properties
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.completion import complete_offset
from tieredstore.cli.records.record_filter import Pattern, first_of
from tieredstore.cli.records.record_output import AsJson, AsText, CodedBytes, Format, record_writer
from tieredstore.cli.records.record_places import check_window, choose_partitions, parse_place
from tieredstore.cli.records.uncommitted import LeftOut
from tieredstore.cli.terminal.output import complain
from tieredstore.errors import ConfigError
from tieredstore.model import Earliest, Latest, Place, Uuid, hint_of_number
from tieredstore.process.interruption import Interrupted

if TYPE_CHECKING:
    from tieredstore.cli.records.record_filter import PartitionRecords
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.reader import TopicReader
    from tieredstore.reading.windows import Windows

_MATCHED: Final = ("key", "value")
_POLL_S: Final = 1.0

ACCEPT_LOSS: Final = "use --data-loss report"
"""What a person does who puts up with losses."""


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


DataLossError: TypeAlias = Annotated[
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
    data_loss: DataLossError = DataLossPolicy.FAIL,
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
    if follow and last is not None:
        raise ConfigError("--follow has no end: leave --to out, or --follow")
    client = client_properties(bootstrap_server, kafka_config, kafka_properties)
    from tieredstore.reading.query import LogQuery, QueryWords
    from tieredstore.reading.reader import TopicReader
    from tieredstore.records.settings import ReadSettings

    query = LogQuery.of_topic(
        topic, choose_partitions(partition, partitions), isolation=isolation.value, on_data_loss=data_loss.value,
        client=client, topic_id=None if topic_id is None else Uuid.parse(topic_id),
        words=QueryWords(accept_loss=ACCEPT_LOSS, topic_ids="--topic-id", choose_topic_id="--topic-id"),
    )  # fmt: skip
    pattern = None if grep is None else Pattern(grep)
    # Offsets tell how far was read, whatever is shown.
    columns = tuple(dict.fromkeys((*columns, *(() if grep is None else _MATCHED), "offset")))
    with (
        open_chosen_bucket(settings, store) as place,
        place.manager() as manager,
        TopicReader(lambda: manager, query, ReadSettings(columns=columns)) as reader,
    ):
        snapshot, left_out = reader.snapshot(), LeftOut(reader)
        records = (
            records_as_they_come(reader, snapshot, left_out, first)
            if follow
            else records_till_end(reader, snapshot, left_out, first, last)
        )
        try:
            with closing(records):
                shown: Iterable[PartitionRecords] = records if pattern is None else pattern.filtered(records)
                if count is not None:
                    shown = first_of(shown, count)
                width = max(len(str(max(log.end - 1, 0))) for log in snapshot.logs.values())
                write(left_out.noting(shown), width)
        except (Interrupted, KeyboardInterrupt):
            left_out.tell(was_stopped=True)
            raise
        left_out.tell()


def records_till_end(
    reader: TopicReader, snapshot: LogSnapshot, left_out: LeftOut, start: Place | None, stop: Place | None
) -> Generator[PartitionRecords]:
    """One partition after the other, up to where the logs end now."""
    for where, (first, last) in _windows(reader, snapshot, start, stop).items():
        log = snapshot.logs[where]
        with closing(reader.read(log, first, last, aborted=left_out.begin(log, first, last))) as batches:
            for records in batches:
                yield log.partition, records
        left_out.reached(log.partition, last)


def records_as_they_come(
    reader: TopicReader, snapshot: LogSnapshot, left_out: LeftOut, start: Place | None
) -> Generator[PartitionRecords]:
    """First those that there are and then those that come, without an end."""
    windows = _windows(reader, snapshot, start, None, are_followed=True)
    with reader.follow({where: snapshot.logs[where].position(first) for where, (first, _) in windows.items()}) as tail:
        try:
            while True:
                if (given := tail.poll(_POLL_S)) is not None:
                    yield given.where[1], given.records
        finally:
            tail.close()
            left_out.aborted_in_tail = tail.aborted


def _windows(
    reader: TopicReader, snapshot: LogSnapshot, start: Place | None, stop: Place | None, *, are_followed: bool = False
) -> Windows:
    """What to read of each partition; a number within the logs that looks like a time is told of on stderr."""
    lookup = reader.lookup(snapshot)
    first, last = Earliest() if start is None else start, Latest() if stop is None else stop
    windows = lookup.clamped(first, last)
    for option, place in (("--from", start), ("--to", stop)):
        if isinstance(place, int) and (hint := hint_of_number(place)) is not None:
            complain(f"{option} {place} is taken for an offset; {hint}")
    if are_followed:
        windows = {where: (begin, begin) for where, (begin, _) in windows.items()}
    lookup.check_readable(windows, first, last)
    return windows
