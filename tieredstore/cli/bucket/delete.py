"""``tieredstore delete``: one segment out of the store."""

from __future__ import annotations

from tieredstore.catalog import SegmentObjects
from tieredstore.cli.app.arguments import (
    BaseOffset,
    DryRun,
    Json,
    Partition,
    SegmentId,
    SettingsPath,
    StoreUrl,
    Topic,
    TopicId,
)
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.steps import Yes, is_dry_run, way_to_apply
from tieredstore.cli.terminal.output import JsonValue, print_json, print_lines
from tieredstore.cli.terminal.progress import tell_if_stopped
from tieredstore.cli.terminal.rows import SEGMENT
from tieredstore.errors import StoreError
from tieredstore.model import Uuid, human_bytes
from tieredstore.ops.addresses import SegmentAddress, find_objects
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.garbage.collection import delete_objects
from tieredstore.ops.garbage.holds import Holds


def delete(
    topic: Topic,
    partition: Partition,
    base_offset: BaseOffset,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_id: TopicId = None,
    segment_id: SegmentId = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete a segment from the store. Without --yes, only show its objects.

    With --segment-id also what an unfinished copy or delete left of it (be sure that no copy of it is still running).

    Example: tieredstore delete -c store.properties orders 0 0 --yes
    """
    dry_run = is_dry_run(yes=yes, dry_run=dry_run)
    ids = [None if text is None else Uuid.parse(text) for text in (topic_id, segment_id)]
    with open_chosen_bucket(settings, store) as bucket:
        doomed = find_objects(bucket.store, bucket.prefix, SegmentAddress(topic, partition, base_offset, *ids))
        if not as_json:
            print_lines(_what_goes(bucket, doomed, dry_run=dry_run))
        hold = Holds(bucket.store, bucket.prefix).on(doomed.segment_id.topic_id_partition, doomed.start_offset, None)
        if hold is not None:
            raise StoreError(f"the segment is, or may be, under the legal hold {hold.name!r}: it stays")
        if not dry_run:
            with tell_if_stopped(lambda: f"stopped; what is left of the segment goes by: {_again(doomed)}"):
                delete_objects(bucket.store, doomed)
        if as_json:
            print_json(_row(bucket, doomed, dry_run=dry_run))
        else:
            print_lines([way_to_apply("deleted") if dry_run else "deleted"])


def _name(doomed: SegmentObjects) -> str:
    where = doomed.segment_id
    return f"segment {where.id} of {where.topic_id_partition} at offset {doomed.start_offset}"


def _what_goes(bucket: Bucket, doomed: SegmentObjects, *, dry_run: bool) -> list[str]:
    objects = [f"  {bucket.shown(info.key)} ({human_bytes(info.size)})" for _, info in doomed.objects]
    return [f"{'would delete' if dry_run else 'to delete:'} {_name(doomed)}", *objects]


def _row(bucket: Bucket, doomed: SegmentObjects, *, dry_run: bool) -> JsonValue:
    return {
        **SEGMENT.json(doomed),
        "objects": [
            {"suffix": suffix.value, "object": bucket.shown(info.key), "size": info.size}
            for suffix, info in doomed.objects
        ],
        "stored_size": doomed.stored_size,
        "deleted": not dry_run,
        "dry_run": dry_run,
    }


def _again(doomed: SegmentObjects) -> str:
    """What goes on with it: without its manifest a segment is found by its id alone."""
    where = doomed.segment_id.topic_id_partition
    address = f"{where.topic} {where.partition} {doomed.start_offset}"
    return f"tieredstore delete {address} --segment-id={doomed.segment_id.id} --yes"
