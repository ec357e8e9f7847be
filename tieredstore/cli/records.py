"""``tieredstore cat`` and ``offsets``: the records of a topic, and which offsets of it there are."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tieredstore.catalog import Catalog, load_catalog
from tieredstore.catalog.absence import absence
from tieredstore.cli.arguments import Json, SettingsPath, StoreUrl, Topic, TopicId
from tieredstore.cli.live_client import BootstrapServer, KafkaConfig, KafkaProperties, client_properties
from tieredstore.cli.logs import ACCEPT_LOSS, LogRequest, records_across_seam, records_as_they_come
from tieredstore.cli.offset_rows import show_offsets
from tieredstore.cli.offsets_plot import OffsetsPlot
from tieredstore.cli.opened import opened
from tieredstore.cli.output import complain
from tieredstore.cli.plots import PlotFile
from tieredstore.cli.record_rows import SHOWN, arrow_module, header_line, json_lines, text_lines
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid
from tieredstore.ops.offsets import PartitionOffsets, partition_offsets, with_broker

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.records import Place, RecordReader
    from tieredstore.remote import RemoteStorageManager

_OFFSET: Final = re.compile(r"\d{1,19}", re.ASCII)
_MILLISECONDS: Final = re.compile(r"@(\d{1,18})", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class IsolationLevel(enum.Enum):
    """Kafka's ``isolation.level``."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class DataLossPolicy(enum.Enum):
    """What becomes of a read that meets offsets which no segment holds."""

    FAIL = "fail"
    REPORT = "report"


def cat(
    topic: Topic,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="P", min=0, help="One partition instead of all.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="OFFSET|TIME", help="The first offset, or the first record of TIME or later."),
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--to", metavar="OFFSET|TIME", help="Where to end; that record is not shown.")
    ] = None,
    isolation: Annotated[
        IsolationLevel, typer.Option("--isolation", help="read_committed leaves out aborted transactions.")
    ] = IsolationLevel.READ_UNCOMMITTED,
    data_loss: Annotated[
        DataLossPolicy, typer.Option("--data-loss", help="What to do where offsets are in no segment.")
    ] = DataLossPolicy.FAIL,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a record; bytes as base64.")] = False,
    topic_id: TopicId = None,
    bootstrap_server: BootstrapServer = None,
    kafka_config: KafkaConfig = None,
    kafka_properties: KafkaProperties = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until interrupted.")] = False,
) -> None:
    """Show the records of a topic, by partition and offset.

    With --bootstrap-server the bucket is read up to its end and the broker from exactly there.

    A TIME is a date with or without a time of day (2026-01-31T08:00:00Z; UTC unless it says otherwise), or @ and
    milliseconds since 1970. What a read has to report goes to stderr.

    Example: tieredstore cat -c store.properties orders --from 2026-01-31 --to 2026-02-01 --isolation read_committed
    """
    first, last = (None if text is None else parse_place(text) for text in (start, stop))
    client = client_properties(bootstrap_server, kafka_config, kafka_properties)
    if follow or client is not None:
        request = LogRequest(topic, partition, first, last, isolation.value, data_loss.value, topic_id, client)
        with opened(settings, store) as place, place.manager() as manager:
            show = records_as_they_come if follow else records_across_seam
            _show(show(manager, request), as_json=as_json)
        return
    records = arrow_module("tieredstore.records")
    chosen = records.ReadSettings(
        columns=SHOWN, isolation=isolation.value, on_data_loss=data_loss.value, accept_loss=ACCEPT_LOSS
    )
    with opened(settings, store) as place, place.manager() as manager:
        catalog, incarnation = _catalog(manager, topic, partition, topic_id)
        reader: RecordReader = records.RecordReader(manager, catalog, chosen)
        partitions = _partitions(catalog, topic, incarnation, data_loss) if partition is None else (partition,)
        if isinstance(first, int) and isinstance(last, int) and first > last:
            raise ConfigError(f"there are no offsets from {first} up to {last}: the window ends before it begins")
        if not as_json:
            sys.stdout.write(header_line())
        for number in partitions:
            bounds = (_at(records, first), _at(records, last))
            with reader.read(topic, number, *bounds, topic_id=incarnation) as read:
                for batch in read:
                    sys.stdout.writelines((json_lines if as_json else text_lines)(batch, number))


def _partitions(catalog: Catalog, topic: str, topic_id: Uuid, data_loss: DataLossPolicy) -> tuple[int, ...]:
    """All that there are, those too of which nothing can be read where that is to be an error."""
    readable = catalog.partitions(topic, topic_id)
    lost = catalog.unreadable_partitions(topic, topic_id) if data_loss is DataLossPolicy.FAIL else ()
    return tuple(sorted((*lost, *readable)))


def _show(records: Iterable[tuple[int, pa.RecordBatch]], *, as_json: bool) -> None:
    """The records with their partitions, flushed as they come: somebody may be waiting for them."""
    heading = "" if as_json else header_line()
    for partition, batch in records:
        sys.stdout.write(heading)
        heading = ""
        sys.stdout.writelines((json_lines if as_json else text_lines)(batch, partition))
        sys.stdout.flush()
    sys.stdout.write(heading)


def offsets(
    topic: Topic,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    as_json: Json = False,
    topic_id: TopicId = None,
    bootstrap_server: BootstrapServer = None,
    kafka_config: KafkaConfig = None,
    kafka_properties: KafkaProperties = None,
    plot: PlotFile = None,
) -> None:
    """Show which offsets of each partition of a topic there are.

    The end offset is one more than the last; offsets between the two that no segment holds are lost. With
    --bootstrap-server the broker's offsets are beside them, and lost is what neither has.

    --plot draws bucket and broker side by side, what is lost in red; it needs matplotlib.

    Example: tieredstore offsets -c store.properties orders
    """
    picture = None if plot is None else OffsetsPlot(plot)
    client = client_properties(bootstrap_server, kafka_config, kafka_properties)
    with opened(settings, store) as place, place.manager() as manager:
        catalog, incarnation = _catalog(manager, topic, None, topic_id)
        partitions = partition_offsets(catalog, topic, incarnation)
    if client is not None:
        partitions = _beside_broker(partitions, client, topic, incarnation)
    show_offsets(partitions, topic, incarnation, as_json=as_json, broker=client is not None)
    if picture is not None:
        picture.save(topic, partitions, broker=client is not None)


def _beside_broker(
    stored: list[PartitionOffsets], client: Mapping[str, str], topic: str, topic_id: Uuid
) -> list[PartitionOffsets]:
    live = arrow_module("tieredstore.live")
    timeout_s: float = arrow_module("tieredstore.partitions.log_query").timeout_of(client)
    with live.LiveCluster(client, isolation="read_uncommitted", timeout_s=timeout_s) as cluster:
        return with_broker(stored, cluster, topic, topic_id)


def parse_place(text: str) -> int | datetime:
    """An offset, or the time that a place was given as; ConfigError for what is neither."""
    if _OFFSET.fullmatch(text):
        return int(text)
    try:
        if match := _MILLISECONDS.fullmatch(text):
            return _EPOCH + timedelta(milliseconds=int(match[1]))
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is neither an offset nor a time: 1234, 2026-01-31, 2026-01-31T08:00:00Z and @1769846400000 are"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _at(records: Any, place: int | datetime | None) -> Place | None:
    place_in_log: Place | None = records.AtTime.of(place) if isinstance(place, datetime) else place
    return place_in_log


def _catalog(
    manager: RemoteStorageManager, topic: str, partition: int | None, topic_id: str | None
) -> tuple[Catalog, Uuid]:
    """The topic's catalog and the incarnation meant; segments of it that do not count are told of on stderr."""
    wanted = None if topic_id is None else Uuid.parse(topic_id)
    catalog = load_catalog(manager, topic=topic, topic_id=wanted, partition=partition)
    if not catalog.lives and not catalog.problems:
        asked = [] if partition is None else [partition]
        raise absence(manager.store, manager.layout.prefix, {topic: asked}, topic_id=wanted)
    incarnation = catalog.incarnation(topic, wanted).topic_id
    for problem in catalog.problems:
        if problem.segment_id.topic_id_partition.topic_id == incarnation:
            complain(str(problem))
    return catalog, incarnation
