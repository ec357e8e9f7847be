"""``tieredstore delete``: one segment out of the store."""

from __future__ import annotations

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog import SegmentObjects
from tieredstore.cli.address import Address, resolve_objects
from tieredstore.cli.arguments import BaseOffset, DryRun, Partition, SegmentId, SettingsPath, StoreUrl, Topic, TopicId
from tieredstore.cli.opened import opened
from tieredstore.cli.output import print_lines
from tieredstore.format.keys import Suffix
from tieredstore.model import human_bytes


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
    address = Address.parse(topic, partition, base_offset, topic_id, segment_id)
    with opened(settings, store) as place:
        found = resolve_objects(place, address)
        where = f"segment {found.segment_id.id} of {found.segment_id.topic_id_partition} at offset {found.start_offset}"
        objects = [f"  {place.layout.shown(info.key)} ({human_bytes(info.size)})" for _, info in found.objects]
        print_lines([f"{'would delete' if dry_run else 'deleting'} {where}", *objects])
        if not dry_run:
            delete_objects(place.store, found)
            print_lines(["deleted"])


def delete_objects(store: ObjectStore, found: SegmentObjects) -> None:
    """Delete the manifest, then the rest, so that a half deleted segment is never visible."""
    manifest = [info.key for suffix, info in found.objects if suffix is Suffix.MANIFEST]
    if manifest:
        store.delete(manifest)
    store.delete([info.key for suffix, info in found.objects if suffix is not Suffix.MANIFEST])
