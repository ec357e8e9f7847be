"""``tieredstore export``: a topic into files."""

from __future__ import annotations

import enum
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tieredstore.cli.app.arguments import SettingsPath, SomePartitions, StoreUrl, Topic, TopicId
from tieredstore.cli.app.broker_options import BootstrapServer, KafkaConfig, KafkaProperties, client_properties
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.records.cat import DataLossError, DataLossPolicy, IsolationLevel
from tieredstore.cli.records.message_types import (
    InvalidAsNull,
    Isolation,
    KeyType,
    MessageOptions,
    MessageType,
    Registry,
    RegistryConfig,
    SchemaAvro,
    SchemaJson,
    ValueType,
    table_options,
)
from tieredstore.cli.records.query_output import ENDINGS, check_name, write_rows
from tieredstore.cli.records.record_places import choose_partitions
from tieredstore.cli.terminal.output import complain, counted, print_lines
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid, human_bytes

if TYPE_CHECKING:
    from tieredstore.query.topic_read import ReadPlan
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.reader import TopicReader


class Format(enum.Enum):
    """What files are written."""

    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    JSONL = "jsonl"


def export(
    topic: Topic,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="DIR|FILE", help="A folder of files by partition, or one file (- is stdout)."
        ),
    ],
    settings: SettingsPath = None,
    store: StoreUrl = None,
    file_format: Annotated[
        Format | None, typer.Option("--format", help="The files' format; parquet, or what FILE ends with.")
    ] = None,
    partitions: SomePartitions = None,
    parallel: Annotated[
        int | None, typer.Option("--parallel", metavar="N", min=1, help="Files at once; as many as there are cores.")
    ] = None,
    schema_json: SchemaJson = None,
    schema_avro: SchemaAvro = None,
    schema_registry: Registry = None,
    schema_registry_config: RegistryConfig = None,
    key_type: KeyType = MessageType.BINARY,
    value_type: ValueType = MessageType.BINARY,
    invalid: InvalidAsNull = False,
    isolation: Isolation = IsolationLevel.READ_COMMITTED,
    data_loss: DataLossError = DataLossPolicy.FAIL,
    topic_id: TopicId = None,
    bootstrap_server: BootstrapServer = None,
    kafka_config: KafkaConfig = None,
    kafka_properties: KafkaProperties = None,
) -> None:
    """Write the records of a topic into files: Parquet, Arrow, CSV or JSON lines.

    A folder gets files by partition, each named after the offsets that it covers. Each is whole or not there, and the
    next export goes on behind those that are there.

    Example: tieredstore export -c store.properties orders -o orders-files

    Example: tieredstore export -c store.properties orders -o orders.csv --value-type text
    """
    client = client_properties(bootstrap_server, kafka_config, kafka_properties)
    from tieredstore.query.topic_read import ReadPlan
    from tieredstore.query.topic_scan import begin_read
    from tieredstore.reading.query import LogQuery
    from tieredstore.reading.reader import TopicReader

    messages = MessageOptions(
        key_type, value_type, schema_json or (), schema_avro or (), schema_registry, schema_registry_config, invalid
    )
    messages.check_alone(topic)
    options, types_of = table_options(messages, isolation, data_loss, client)
    ending = _ending(output, file_format)
    with open_chosen_bucket(settings, store) as place, place.manager() as manager:
        query = LogQuery.of_topic(
            topic, choose_partitions(None, partitions), isolation=options.isolation,
            on_data_loss=options.on_data_loss, client=client, words=options.words,
            topic_id=None if topic_id is None else Uuid.parse(topic_id),
        )  # fmt: skip
        with TopicReader(lambda: manager, query) as reader:
            snapshot, plan = reader.snapshot(), ReadPlan(types=types_of(topic), parallelism=parallel)
            if _is_one_file(output):
                with begin_read(reader, snapshot, plan, owns_reader=False) as read:
                    write_rows(read.reader(), ending, output)
            else:
                _export_folder(reader, snapshot, output, ending, plan)


def _export_folder(reader: TopicReader, snapshot: LogSnapshot, folder: Path, ending: str, plan: ReadPlan) -> None:
    from tieredstore.query.export import export_files, plan_export
    from tieredstore.query.export_folder import export_folder
    from tieredstore.query.topic_scan import default_parallelism

    at_once, records = plan.parallelism or default_parallelism(), 0
    try:
        with export_folder(folder, reader.query, snapshot, plan, ending):
            files = plan_export(snapshot, folder, ending)
            with closing(export_files(reader, snapshot, files, plan, at_once=at_once)) as done:
                for number, exported in enumerate(done, 1):
                    records += exported.records
                    shown = f"{counted(exported.records, 'record')}  {human_bytes(exported.size)}"
                    print_lines([f"{exported.file.path.name}  {shown}  ({number} of {len(files)})"])
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from None
    complain(
        f"{counted(records, 'record')} in {counted(len(files), 'new file')}"
        if files
        else f"{folder} has all records{'' if reader.query.fails_on_loss else ' that are not lost'}"
    )


def _ending(output: Path, file_format: Format | None) -> str:
    if str(output) == "-" and file_format is None:
        raise ConfigError("-o - has one stream of records: say its --format")
    ending = ENDINGS.get(output.suffix.lower(), "parquet") if _is_one_file(output) else "parquet"
    if file_format is not None:
        ending = file_format.value
        if _is_one_file(output):
            check_name(output, ending)
    return ending


def _is_one_file(output: Path) -> bool:
    """Named for a format, stdout, or no folder but there: a device, or a pipe."""
    if str(output) == "-":
        return True
    if output.is_dir():
        return False
    return output.suffix.lower() in ENDINGS or (output.exists() and not output.is_file())
