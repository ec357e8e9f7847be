"""``tieredstore consume``: a topic's records as a consumer of bucket and broker gets them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from tieredstore.cli.app.arguments import SettingsPath, StoreUrl, Topic
from tieredstore.cli.app.broker_options import BootstrapServer, KafkaConfig, KafkaProperties, client_properties
from tieredstore.cli.app.chosen_bucket import choose_settings
from tieredstore.cli.records.cat import DataLoss, DataLossPolicy, Isolation, IsolationLevel
from tieredstore.cli.records.record_output import AsJson, AsText, CodedBytes, Format, record_writer
from tieredstore.cli.records.record_places import parse_offset_or_time, parse_place
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.consumer.cli.consumed import Start

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
    data_loss: DataLoss = DataLossPolicy.FAIL,
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
    from tieredstore.consumer.cli.consumed import ConsumedTopic, ConsumeRequest

    consumed = ConsumedTopic(ConsumeRequest(topic, group, place, named, properties, columns))
    with closing(consumed), closing(consumed.records(count=count, exits_at_end=exit_eof)) as records:
        write(records, _OFFSET_WIDTH)


def _start(text: str) -> Start:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    return parse_place(text) if text.startswith("-") else parse_offset_or_time(text, "; so are earliest, latest and -5")
