"""``tieredstore delete``: one segment out of the store."""

from __future__ import annotations

from tieredstore.catalog import SegmentObjects
from tieredstore.cli.addresses import objects_at, parse_address
from tieredstore.cli.arguments import BaseOffset, DryRun, Partition, SegmentId, SettingsPath, StoreUrl, Topic, TopicId
from tieredstore.cli.last_words import said_if_stopped
from tieredstore.cli.opened import opened
from tieredstore.cli.output import print_lines
from tieredstore.model import human_bytes
from tieredstore.ops.deletion import delete_objects


def delete(
    topic: Topic,
    partition: Partition,
    base_offset: BaseOffset,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_id: TopicId = None,
    segment_id: SegmentId = None,
    dry_run: DryRun = False,
) -> None:
    """Delete a segment from the store, and say what goes.

    With --segment-id also what an unfinished copy or delete left of it (be sure that no copy of it is still running).

    Example: tieredstore delete -c store.properties orders 0 0 --dry-run
    """
    address = parse_address(topic, partition, base_offset, topic_id, segment_id)
    with opened(settings, store) as bucket:
        doomed = objects_at(bucket, address)
        name = (
            f"segment {doomed.segment_id.id} of {doomed.segment_id.topic_id_partition} at offset {doomed.start_offset}"
        )
        objects = [f"  {bucket.shown(info.key)} ({human_bytes(info.size)})" for _, info in doomed.objects]
        print_lines([f"{'would delete' if dry_run else 'deleting'} {name}", *objects])
        if not dry_run:
            with said_if_stopped(lambda: f"stopped; what is left of the segment goes by: {_again(doomed)}"):
                delete_objects(bucket.store, doomed)
            print_lines(["deleted"])


def _again(doomed: SegmentObjects) -> str:
    """What goes on with it: without its manifest a segment is found by its id alone."""
    where = doomed.segment_id.topic_id_partition
    address = f"{where.topic} {where.partition} {doomed.start_offset}"
    return f"tieredstore delete {address} --segment-id={doomed.segment_id.id}"
