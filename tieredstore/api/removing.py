"""Deletions from a bucket: segments of topics, leftovers, and the rule that aborts unfinished uploads.

The bucket imports this module on first use, because it needs the broker's client and segment checks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING

from tieredstore.api.outcomes import Outcome, Plan, of_garbage, of_removal, status_of
from tieredstore.api.rows import time_of
from tieredstore.api.scopes import is_glob
from tieredstore.backends.base import admin_of
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.errors import ConfigError
from tieredstore.model import AtTime, Uuid
from tieredstore.ops.addresses import SegmentAddress, find_objects
from tieredstore.ops.brokers import open_brokers
from tieredstore.ops.garbage.collection import GarbageCollection, trusted_time_ms
from tieredstore.ops.garbage.lifecycle import add_abort_rule
from tieredstore.ops.garbage.removal import Removal, check_clock

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.api.scopes import Scopes
    from tieredstore.ops.bucket import Bucket as OpenBucket


def check_arguments(scopes: Scopes, stop: int | AtTime | None, segment: object) -> None:
    """Raise ConfigError for arguments that select no segments, or that apply an offset to several logs."""
    names_one_topic = len(scopes.topics) == 1 and not is_glob(scopes.topics[0])
    if not scopes.topics:
        raise ConfigError("name at least one topic")
    if isinstance(stop, int) and (scopes.partitions is None or not names_one_topic):
        raise ConfigError(
            "stop (--to) is an offset, which needs one topic and its partitions (partitions=, -p): offsets differ "
            "between partitions"
        )
    if segment is None:
        return
    if stop is not None:
        raise ConfigError("segment (--segment) and stop (--to) exclude each other: give one of them")
    if isinstance(segment, bool) or not isinstance(segment, int | Uuid):
        raise ConfigError(f"segment is of the type {type(segment).__name__}; give the offset it begins at, or its id")
    if not names_one_topic or len(scopes.partitions or ()) != 1:
        raise ConfigError("segment (--segment) needs its partition: name one topic and one partition (-p)")


def plan_removal(
    bucket: Bucket, scopes: Scopes, stop: int | AtTime | None, segment: int | Uuid | None, *, force: bool, parallel: int
) -> Plan:
    """Return the plan to delete segments. If ``segment`` names a single segment, it is looked up now, not when the plan
    is applied. If ``stop`` is a time, raise StoreError for a clock that is ahead."""
    opened = bucket.opened()
    if segment is None:
        chosen, only = scopes.of_one_life(opened.store, opened.prefix), None
    else:
        only = _find(opened, scopes, segment)
        chosen = [Scope.of(only.segment_id.topic_id_partition)]
    as_of_ms = admin_of(opened.store).now_ms()
    if isinstance(stop, AtTime):
        check_clock(opened.store, as_of_ms)

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        opened = bucket.opened()
        with open_brokers(bucket.broker) as brokers:
            removal = Removal(
                opened.store,
                opened.prefix,
                rules=opened.manifest_rules,
                brokers=brokers,
                upload_max_age_ms=opened.settings.upload_max_age_ms,
                force=force,
                leftovers_too=isinstance(segment, Uuid),
                as_of_ms=as_of_ms,
                dry_run=dry_run,
                parallel=parallel,
            )
            # Delete the segments of all partitions in one run, because a run checks the offset before its first
            # deletion.
            every = (list_segments(opened.store, opened.prefix, scope) for scope in chosen)
            listed: Iterable[SegmentObjects] = chain.from_iterable(every)
            following: int | None = None
            if only is not None:
                listed = list(listed)
                starts = (objects.start_offset for objects in listed)
                following = min((start for start in starts if start > only.start_offset), default=None)
                listed = (objects for objects in listed if objects.segment_id == only.segment_id)
            for step in removal.run(listed, stop, following):
                outcome = of_removal(step, dry_run=dry_run)
                yield outcome if only is None else replace(outcome, name=_names(step.item.objects))

    return Plan(
        "remove",
        str(scopes),
        outcomes,
        bounds=_bounds(stop, only),
        as_of_ms=as_of_ms,
    )


def plan_gc(bucket: Bucket, scopes: Scopes, min_age: timedelta, *, unknown_too: bool, parallel: int) -> Plan:
    """Return the plan to delete leftovers of at least ``min_age``."""
    opened = bucket.opened()
    min_age_ms, upload_max_age_ms = min_age // timedelta(milliseconds=1), opened.settings.upload_max_age_ms
    chosen = list(scopes.of(opened.store, opened.prefix))
    as_of_ms = trusted_time_ms(opened.store, min_age_ms, upload_max_age_ms)

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        opened = bucket.opened()
        with open_brokers(bucket.broker) as brokers:
            collection = GarbageCollection(
                opened.store,
                opened.prefix,
                min_age_ms=min_age_ms,
                upload_max_age_ms=upload_max_age_ms,
                brokers=brokers,
                unknown_too=unknown_too,
                as_of_ms=as_of_ms,
                dry_run=dry_run,
                parallel=parallel,
            )
            for scope in chosen:
                yield from (of_garbage(step, opened, dry_run=dry_run) for step in collection.run(scope))

    return Plan("gc", str(scopes), outcomes, bounds={"min_age": min_age}, as_of_ms=as_of_ms)


def plan_abort_rule(bucket: Bucket, min_age: timedelta) -> Plan:
    """Return the plan to add a rule. The rule aborts uploads that are unfinished after ``min_age``, in whole days."""
    days, rest = divmod(min_age, timedelta(days=1))
    if rest or days < 1:
        raise ConfigError(f"min_age is {min_age}: a store's rule counts whole days, so give 1d or more, such as 7d")

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        opened = bucket.opened()
        step = add_abort_rule(
            opened.store,
            opened.prefix,
            days=days,
            upload_max_age_ms=opened.settings.upload_max_age_ms,
            dry_run=dry_run,
        )
        status = status_of(step.outcome, dry_run=dry_run)
        yield Outcome(action="abort_rule", status=status, code=step.outcome.value, name=step.item, reason=step.reason)

    return Plan("abort_rule", bucket.url, outcomes)


def _bounds(stop: int | AtTime | None, only: SegmentObjects | None) -> dict[str, object]:
    if only is not None:
        return {"segment": only.segment_id.id}
    moment = time_of(stop.timestamp_ms) if isinstance(stop, AtTime) else None
    return {} if stop is None else {"stop": moment or stop}


def _find(opened: OpenBucket, scopes: Scopes, segment: int | Uuid) -> SegmentObjects:
    """Find a single segment. A segment found by offset must have a manifest; a segment found by id may be
    incomplete."""
    topic, partition = scopes.topics[0], (scopes.partitions or (0,))[0]
    return find_objects(opened.store, opened.prefix, SegmentAddress(topic, partition, segment, scopes.topic_id))


def _names(objects: SegmentObjects) -> str:
    """Return the names of all objects of a segment, in shell brace notation."""
    return f"{objects.main_path}.{{{','.join(suffix.value for suffix, _ in objects.objects)}}}"
