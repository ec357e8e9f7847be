"""``tieredstore offsets``: which offsets of a topic there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tieredstore.catalog import Catalog, Lineage, load_catalog
from tieredstore.catalog.absence import absence
from tieredstore.cli.app.arguments import Json, SettingsPath, SomePartition, SomePartitions, StoreUrl, Topic, TopicId
from tieredstore.cli.app.broker_options import BootstrapServer, KafkaConfig, KafkaProperties, client_properties
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.records.record_places import choose_partitions
from tieredstore.cli.terminal.output import complain, human_time
from tieredstore.cli.terminal.plots import COLORS, RED, Picture, PlotFile, label, module
from tieredstore.cli.terminal.rows import Field, Row, column, field
from tieredstore.cli.terminal.tables import moment, number, text
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.model import TopicId as KnownTopicId
from tieredstore.ops.offsets import Extent, PartitionOffsets, partition_offsets, with_broker

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager


def offsets(
    topic: Topic,
    partition: SomePartition = None,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    partitions: SomePartitions = None,
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
    chosen = choose_partitions(partition, partitions)
    with open_chosen_bucket(settings, store) as place, place.manager() as manager:
        catalog, incarnation = _catalog(manager, topic, topic_id)
        rows = partition_offsets(catalog, topic, incarnation)
        if client is not None:
            rows = _beside_broker(rows, client, topic, manager.layout.topic_id(topic, incarnation))
        there = {row.partition for row in rows}
        if missing := [number for number in chosen or () if number not in there]:
            live = None if client is None else {topic: sorted(there)}
            raise absence(manager.store, manager.layout.prefix, {topic: missing}, topic_id=incarnation, live=live)
    if chosen is not None:
        rows = [row for row in rows if row.partition in chosen]
    show_offsets(rows, topic, incarnation, as_json=as_json, broker=client is not None)
    if picture is not None:
        picture.save(topic, rows, broker=client is not None)


def _beside_broker(
    stored: list[PartitionOffsets], client: Mapping[str, str], topic: str, topic_id: KnownTopicId
) -> list[PartitionOffsets]:
    from tieredstore import live
    from tieredstore.reading.query import timeout_of

    timeout_s = timeout_of(client)
    with live.LiveCluster(client, isolation="read_uncommitted", timeout_s=timeout_s) as cluster:
        return with_broker(stored, cluster, topic, topic_id)


def _catalog(manager: RemoteStorageManager, topic: str, topic_id: str | None) -> tuple[Catalog, Uuid]:
    """The topic's catalog and the incarnation meant; segments of it that do not count are told of on stderr."""
    wanted = None if topic_id is None else Uuid.parse(topic_id)
    catalog = load_catalog(manager, topic=topic, topic_id=wanted)
    if not catalog.lives and not catalog.problems:
        raise absence(manager.store, manager.layout.prefix, {topic: []}, topic_id=wanted)
    incarnation = catalog.incarnation(topic, wanted).topic_id
    for problem in catalog.problems:
        if problem.segment_id.topic_id_partition.topic_id == incarnation:
            complain(str(problem))
    return catalog, incarnation


def show_offsets(
    partitions: Sequence[PartitionOffsets], topic: str, topic_id: Uuid, *, as_json: bool, broker: bool
) -> None:
    """JSON or a table; with the broker's offsets where ``broker`` tells that one was asked."""
    live: tuple[Field[PartitionOffsets], ...] = (
        field("broker_earliest_offset", lambda known: known.broker and known.broker[0], number("BROKER FROM")),
        field("broker_end_offset", lambda known: known.broker and known.broker[1], number("BROKER END")),
    )
    row: Row[PartitionOffsets] = Row(
        field("topic", lambda _: topic),
        field("topic_id", lambda _: topic_id),
        field("partition", lambda known: known.partition, number("PARTITION")),
        field(
            "earliest_offset",
            lambda known: None if known.lineage is None else known.lineage.earliest_offset,
            number("EARLIEST"),
        ),
        field("end_offset", lambda known: None if known.lineage is None else known.lineage.end_offset, number("END")),
        field("segments", lambda known: len(_segments(known.lineage)), number("SEGMENTS", rank=3)),
        field("max_timestamp_ms", lambda known: _latest_time(known.lineage)),
        field("lost", lambda known: [{"start": start, "stop": stop} for start, stop in known.lost]),
        *(live if broker else ()),
        column(moment("LAST RECORD", rank=1), lambda known: human_time(_latest_time(known.lineage))),
        column(text("LOST OFFSETS"), _lost),
    )
    row.show(partitions, as_json=as_json)


def _lost(known: PartitionOffsets) -> str:
    return ", ".join(f"{start}-{stop - 1}" for start, stop in known.lost) or "none"


def _segments(lineage: Lineage | None) -> set[RemoteLogSegmentMetadata]:
    return set() if lineage is None else {span.segment for span in lineage.spans}


def _latest_time(lineage: Lineage | None) -> int | None:
    if lineage is None:
        return None
    times = [span.segment.max_timestamp_ms for span in lineage.spans]
    return max(times) if min(times) >= 0 else None


_BUCKET, _BROKER = COLORS[:2]
_THICK: Final = 0.38
_TALLEST: Final = 30.0
"""Inches: more than this many partitions share it."""


class OffsetsPlot:
    """A bar for each partition and holder."""

    def __init__(self, path: Path) -> None:
        self._picture = Picture(path)

    def save(self, topic: str, partitions: Sequence[PartitionOffsets], *, broker: bool) -> None:
        """Draw ``partitions``; ``broker`` tells whether one was asked."""
        axes = self._picture.axes(height=min(1.9 + 0.45 * len(partitions), _TALLEST))
        # Bucket above broker; the one alone has all of the height.
        thick = _THICK if broker else 2 * _THICK
        for row, known in enumerate(partitions):
            _draw(axes, known.stored, (row - _THICK, thick), _BUCKET)
            if known.broker is not None:
                _draw(axes, [known.broker], (row, _THICK), _BROKER)
            # With an edge, so that a hole of one offset among millions is seen.
            _draw(axes, known.lost, (row - _THICK, 2 * _THICK), RED, edgecolor=RED, linewidth=1)
        _label(axes, topic, partitions, broker=broker)
        self._picture.save(axes)


def _draw(axes: Any, extents: Sequence[Extent], place: tuple[float, float], color: str, **style: object) -> None:
    axes.broken_barh([(start, stop - start) for start, stop in extents], place, facecolors=color, **style)


def _label(axes: Any, topic: str, partitions: Sequence[PartitionOffsets], *, broker: bool) -> None:
    ticker, patches = module("matplotlib.ticker"), module("matplotlib.patches")
    axes.set_ylim(len(partitions) - 0.5, -0.5)
    locator = ticker.MaxNLocator(nbins=max(2, min(len(partitions), 40)), integer=True)
    rows = [int(row) for row in locator.tick_values(0, max(1, len(partitions) - 1)) if 0 <= row < len(partitions)]
    axes.set_yticks(rows, [str(partitions[row].partition) for row in rows])
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=8, integer=True))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("offset")
    axes.set_ylabel("partition")
    axes.set_title(f"{label(topic).strip()}: {_message(partitions)}", loc="left", fontweight="bold")
    shown = [("bucket", _BUCKET)]
    shown += [("broker", _BROKER)] if broker else []
    shown += [("lost", RED)] if any(known.lost for known in partitions) else []
    handles = [patches.Patch(color=color, label=name) for name, color in shown]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _message(partitions: Sequence[PartitionOffsets]) -> str:
    lost = [extent for known in partitions for extent in known.lost]
    if not lost:
        return "no offset is lost"
    count = sum(stop - start for start, stop in lost)
    return f"{count:,} offsets are lost" if count > 1 else "one offset is lost"
