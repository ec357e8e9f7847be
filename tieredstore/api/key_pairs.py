"""Key pairs: what each pair encrypts, what needs a pair, and rotation of segments to another pair.

The bucket imports this module on first use, because this module imports the key ring.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from tieredstore.api.outcomes import Outcome, status_of
from tieredstore.api.rows import KeyUse, Table, tell_each, time_of
from tieredstore.catalog.listing import Scope
from tieredstore.errors import ConfigError
from tieredstore.ops.keys.rotation import Rotation, RotationStep
from tieredstore.ops.keys.use import KeyNeed, NeedReason, RotationNotes, each_counted, needs_of
from tieredstore.ops.listing import ListedSegment, SegmentTotals, list_encrypted, load_stream
from tieredstore.ops.snapshots.storing import Snapshots, StoredSnapshot
from tieredstore.remote.key_ring import key_ring_of

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.api.scopes import Scopes
    from tieredstore.ops.bucket import Bucket as OpenBucket


def count_uses(
    opened: OpenBucket,
    key_id: str | None,
    on_listed: Callable[[ListedSegment], object],
    on_need: Callable[[KeyNeed], object],
) -> Table[KeyUse]:
    """Return the uses of all pairs, or of ``key_id`` alone. Call ``on_need`` for everything that needs ``key_id``.

    The returned rows count only stored data. A reader's cache may need a pair too, but the rows do not count caches.
    """
    if key_id is not None and not (isinstance(cast("object", key_id), str) and key_id.strip()):
        raise ConfigError(f"key_id is {key_id!r:.60}; give the id of a key pair")
    totals: dict[str | None, SegmentTotals] = {}
    listed = list_encrypted(opened.store, opened.prefix, Scope())
    loaded = each_counted(load_stream(opened.store, listed, rules=opened.manifest_rules), totals)
    if key_id is None:
        for one in loaded:
            on_listed(one)
        return Table(_row(own, sums) for own, sums in sorted(totals.items(), key=lambda row: row[0] or ""))
    may_need, cached_ms = 0, opened.settings.fetch.manifest_cache.retention_ms
    for need in needs_of(opened.store, opened.prefix, tell_each(loaded, on_listed), key_id, cached_ms=cached_ms):
        may_need += need.reason not in (NeedReason.WRAPPED, NeedReason.CACHED)
        on_need(need)
    used = _row(key_id, totals.get(key_id, SegmentTotals()), may_need)
    return Table([used] if used.segments or may_need else [])


def _row(key_id: str | None, sums: SegmentTotals, may_need: int | None = None) -> KeyUse:
    times = time_of(sums.oldest_ms), time_of(sums.newest_ms)
    return KeyUse(key_id, sums.segments, sums.size, sums.stored_size, *times, may_need)


def rotate_segments(bucket: Bucket, scopes: Scopes, parallel: int) -> Callable[[bool], Generator[Outcome]]:
    """Return a function that rotates the segments in scope, or only plans the rotation. Raises ConfigError without
    encryption."""
    opened = bucket.opened()
    opened.refuse_raw("keys rotate", "objects in this layout are not encrypted")
    ring = key_ring_of(opened.settings)
    if ring is None:
        raise ConfigError(
            "the settings have no key ring to rotate to: set encryption.enabled, encryption.key.pair.id (the new pair) "
            "and encryption.key.pairs (the new pair and the old ones)"
        )
    chosen = list(scopes.of(opened.store, opened.prefix))

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        opened = bucket.opened()
        notes = RotationNotes(opened.store, opened.prefix)
        rotation = Rotation(
            opened.store, ring, rules=opened.manifest_rules, dry_run=dry_run, parallel=parallel, notes=notes
        )
        found = [rotation.run(list_encrypted(opened.store, opened.prefix, scope)) for scope in chosen]
        if not scopes.topics:
            # If no topic is named, rotate the snapshots too, because they belong to no topic. A process that writes a
            # snapshot during the rotation uses its own active pair.
            found.append(rotation.run_snapshots(Snapshots(opened.store, opened.prefix, ring)))
        for steps_of in found:
            for step in steps_of:
                yield _outcome(step, dry_run=dry_run)
        notes.at_end()

    return outcomes


def _outcome(step: RotationStep, *, dry_run: bool) -> Outcome:
    """Return the outcome of rewrapping the data key of a segment or a snapshot. For a snapshot, ``name`` is the key of
    its object."""
    item = step.item
    outcome = Outcome(
        action="rotate_keys", status=status_of(step.outcome, dry_run=dry_run), code=step.outcome.value,
        key_id=step.key_id, reason=step.reason,
    )  # fmt: skip
    if isinstance(item, StoredSnapshot):
        return replace(outcome, name=item.key, kind="snapshot")
    segment = item.segment_id
    return replace(outcome, base_offset=item.start_offset, segment_id=segment.id).of(segment.topic_id_partition)
