"""Places legal holds of a bucket, and plans their release.

The bucket imports this module on first use: only ``place_hold`` and ``release_hold`` need it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from tieredstore.api.outcomes import Outcome, Plan
from tieredstore.api.scopes import Scopes, is_glob
from tieredstore.errors import ConfigError, ObjectNotFoundError
from tieredstore.model import AtTime
from tieredstore.ops.garbage.holds import LegalHold, check_free, find_hold, place_hold, release_hold
from tieredstore.query.positions import GivenPlace, window_of

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket


def place(
    bucket: Bucket,
    name: str,
    scopes: Scopes,
    window: tuple[GivenPlace, GivenPlace],
    reason: str,
    *,
    dry_run: bool,
) -> LegalHold:
    """Place a legal hold on the scope's topic and partition, or only check that its name is free. Return the hold."""
    topics, (first, end) = scopes.topics, window_of(*window)
    if len(topics) > 1 or any(map(is_glob, topics)) or len(scopes.partitions or ()) > 1:
        raise ConfigError("a hold covers everything, one topic or one partition: place a separate hold for each")
    topic, partition = next(iter(topics), None), next(iter(scopes.partitions or ()), None)
    if isinstance(end, AtTime):
        raise ConfigError(
            "stop (--to) is a time, but a hold ends at an offset: give an offset, or leave stop out to hold all later "
            "records"
        )
    if isinstance(first, AtTime):
        if topic is None or partition is None:
            raise ConfigError(
                "start (--from) is a time, which needs a topic and a partition: offsets differ between partitions"
            )
        segments = bucket.segments(topic, partition, start=first)
        if not segments:
            raise ConfigError(f"no segment of {topic}-{partition} has records since {window[0]}; choose another start")
        first = min(segment.base_offset for segment in segments)  # of all incarnations, because a hold has no topic id
    hold = LegalHold(name, topic, partition, first, None if end is None else end - 1, reason)
    opened = bucket.opened()
    act = check_free if dry_run else place_hold
    act(opened.store, opened.prefix, hold)
    return hold


def plan_release(bucket: Bucket, name: str) -> Plan:
    """Plan the release of a legal hold. If another hold gets this name later, the plan does not release it."""

    def find() -> LegalHold | None:
        try:
            return find_hold(bucket.opened().store, bucket.opened().prefix, name)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(f"there is no hold {name!r}; see holds() or tieredstore holds list") from error

    planned = find()

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        opened, hold = bucket.opened(), find()
        is_same = hold == planned
        if is_same and not dry_run:
            release_hold(opened.store, opened.prefix, name)
        scope = hold or LegalHold(name)
        yield Outcome(
            action="release_hold", status="failed" if not is_same else "planned" if dry_run else "done",
            code="released" if is_same else "changed", name=name, topic=scope.topic, partition=scope.partition,
            base_offset=scope.first_offset, last_offset=scope.last_offset, stored_size=0,
            reason=None if hold is not None else "the hold cannot be read, so it protects everything",
        )  # fmt: skip

    return Plan("release_hold", name, outcomes)
