"""``tieredstore offsets``: which offsets of a topic there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tieredstore.catalog import Catalog, load_catalog
from tieredstore.catalog.absence import absence
from tieredstore.cli.app.arguments import Json, SettingsPath, SomePartition, SomePartitions, StoreUrl, Topic, TopicId
from tieredstore.cli.app.broker_options import BootstrapServer, KafkaConfig, KafkaProperties, client_properties
from tieredstore.cli.app.chosen_bucket import opened
from tieredstore.cli.bucket.offset_rows import show_offsets
from tieredstore.cli.records.record_places import chosen_partitions
from tieredstore.cli.records.record_rows import arrow_module
from tieredstore.cli.terminal.offsets_plot import OffsetsPlot
from tieredstore.cli.terminal.output import complain
from tieredstore.cli.terminal.plots import PlotFile
from tieredstore.model import TopicId as KnownTopicId
from tieredstore.model import Uuid
from tieredstore.ops.offsets import PartitionOffsets, partition_offsets, with_broker

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
    chosen = chosen_partitions(partition, partitions)
    with opened(settings, store) as place, place.manager() as manager:
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
    live = arrow_module("tieredstore.live")
    timeout_s: float = arrow_module("tieredstore.partitions.log_query").timeout_of(client)
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
