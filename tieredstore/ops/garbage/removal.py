"""Removal of whole segments: all segments of a topic or partition, or only the segments before an offset or a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore, store_time_ms
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.metadata_topic import SegmentState
from tieredstore.catalog.stored import StoredSegment
from tieredstore.errors import StoreError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import DEFAULT_RULES, ManifestRules
from tieredstore.model import AtTime, TopicIdPartition, check_offset
from tieredstore.ops.brokers import BrokersView
from tieredstore.ops.garbage.collection import delete_objects, least_age_ms, written_ms
from tieredstore.ops.garbage.holds import Holds
from tieredstore.ops.listing import ListedSegment, load_stream, reaches
from tieredstore.ops.steps import Outcome, Step
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool

_MAX_AGE_MS: Final = 43_200_000
"""The default of ``upload.max.age.ms``."""

_MOST_AHEAD_MS: Final = 900_000
"""How far this machine's clock may be ahead of the store's. S3 refuses requests of a clock that is further ahead."""


def check_clock(store: ObjectStore, store_ms: int | None) -> None:
    """Raise StoreError if this machine's clock is far ahead of the store's, which shows ``store_ms`` now. Times such as
    "yesterday" are then too late.
    """
    ahead_ms = 0 if store_ms is None else int(time.time() * 1000) - store_ms
    if ahead_ms > _MOST_AHEAD_MS:
        raise StoreError(
            f"this machine's clock is {ahead_ms / 3_600_000:.1f} h ahead of that of {store.identity}, so a time such "
            "as -30d would delete too much: correct the wrong clock, or give an offset"
        )


@dataclass(frozen=True, slots=True)
class Removal:
    """Deletes listed segments, the manifest first. With ``dry_run``, deletes nothing.

    With ``brokers``, a segment stays if the brokers list it. An unlisted segment also stays while it is younger than
    twice ``upload_max_age_ms`` by the store's clock. With ``force``, neither rule protects a segment. Legal holds are
    read repeatedly. Segments written after ``as_of_ms``, by the store's clock, stay.

    Readers never see half a segment, even if a run is stopped or killed. The next run continues. If the stopped run has
    deleted only a segment's manifest, the other objects count as leftovers. The next run removes them only with
    ``leftovers_too``.
    """

    store: ObjectStore
    prefix: str
    _: KW_ONLY
    rules: ManifestRules = DEFAULT_RULES
    brokers: BrokersView | None = None
    upload_max_age_ms: int = _MAX_AGE_MS
    force: bool = False
    leftovers_too: bool = False
    as_of_ms: int | None = None
    dry_run: bool = True
    parallel: int = READERS

    def run(
        self, listed: Iterable[SegmentObjects], stop: int | AtTime | None, following: int | None = None
    ) -> Iterator[Step[ListedSegment]]:
        """Yield a step for each segment. If the partition's listing goes on, ``following`` is the base offset of the
        segment after those listed.

        With ``stop``, take only segments that end before this offset, or whose records are all older than this time.
        Like Kafka's retention, take each partition's oldest segments, up to the first one that stays. So no gap is
        left.

        Memory holds no manifests, and holds the listing only if ``stop`` is an offset. A deletion that the store
        refuses becomes a step. The store's other errors end the run.

        Before any deletion, raise ConfigError if ``stop`` is an offset beyond the end of all listed segments. Such an
        offset would remove everything, and may be meant as a time. Raise ConfigError for ``brokers`` with a store that
        has no clock.
        """
        if isinstance(stop, int):
            listed = list(listed)
            self._check_reached(listed, stop)
        older_than_ms = 0
        if self.brokers is not None:
            now_ms = store_time_ms(self.store) if self.as_of_ms is None else self.as_of_ms
            older_than_ms = now_ms - least_age_ms(self.upload_max_age_ms)
        segments = load_stream(self.store, listed, rules=self.rules, parallel=self.parallel)
        if self.brokers is not None:
            segments = self.brokers.read_behind(segments)
        holds = Holds(self.store, self.prefix)
        if stop is not None:
            yield from self._remove_oldest(_with_following(segments, following), stop, holds, older_than_ms)
            return
        planned = (
            (
                self._judge(segment, older_than_ms)
                if self.leftovers_too or segment.loaded is not None
                else Step(segment, Outcome.LEFTOVER),
                end,
            )
            for segment, end in _with_following(segments, following)
        )
        with ThreadPool(self.parallel, "tieredstore-rm") as pool:
            yield from in_parallel(pool, lambda one: self._remove(holds, *one), planned, at_once=4 * self.parallel)

    def _remove_oldest(
        self,
        listed: Iterable[tuple[ListedSegment, int | None]],
        stop: int | AtTime,
        holds: Holds,
        older_than_ms: int,
    ) -> Iterator[Step[ListedSegment]]:
        """Delete one segment after the other. In parallel, a failure between two successes would leave a gap."""
        ended: TopicIdPartition | None = None
        for segment, following in listed:
            if segment.partition == ended:
                continue
            if segment.loaded is None:
                yield Step(segment, Outcome.LEFTOVER)
            elif not isinstance(segment.loaded, StoredSegment):
                ended = segment.partition
                yield Step(segment, Outcome.UNKNOWN, str(segment.loaded))
            elif (is_reaching := reaches(segment, stop)) is None:
                ended = segment.partition
                lacking = "end offset" if isinstance(stop, int) else "greatest timestamp"
                yield Step(segment, Outcome.UNKNOWN, f"the manifest lacks the {lacking}")
            elif not is_reaching:
                step = self._remove(holds, self._judge(segment, older_than_ms), following)
                # Keep the rest of the partition, because deleting segments after one that stays would leave a gap.
                if step.outcome is not Outcome.DELETED:
                    ended = segment.partition
                yield step
            else:
                ended = segment.partition

    def _judge(self, segment: ListedSegment, older_than_ms: int) -> Step[ListedSegment]:
        """Return the planned step for one segment, by the segment's age and the brokers' records. A segment without a
        record is removed if it is old."""
        outcome, reason, time_ms = Outcome.DELETED, None, written_ms(segment.objects)
        if self.as_of_ms is not None and time_ms is not None and time_ms > self.as_of_ms:
            return Step(segment, Outcome.NEWER, "the segment was written after the plan was made")
        if self.brokers is not None:
            state = self.brokers.state_of(segment.objects.segment_id)
            if state is None and (time_ms is None or time_ms > older_than_ms):
                outcome, reason = Outcome.YOUNG, "no record of the brokers names the segment yet"
            elif state not in {None, SegmentState.DELETE_SEGMENT_FINISHED}:
                outcome, reason = Outcome.LISTED, "the brokers list the segment, so their readers would fail"
        return Step(segment, Outcome.DELETED if self.force else outcome, reason)

    def _remove(self, holds: Holds, planned: Step[ListedSegment], following: int | None) -> Step[ListedSegment]:
        if planned.outcome is not Outcome.DELETED:
            return planned
        segment = planned.item
        # Check again, because a legal hold may have been placed since the plan.
        if (held := _keep_held(segment, following, holds)) is not None:
            return held
        try:
            if not self.dry_run:
                delete_objects(self.store, segment.objects)
        except StoreError as error:
            if error.retryable:
                raise
            return Step(segment, Outcome.REFUSED, str(error))
        return planned

    def _check_reached(self, listed: Iterable[SegmentObjects], offset: int) -> None:
        latest: dict[TopicIdPartition, list[SegmentObjects]] = {}
        for objects in listed:
            if objects.start_offset >= offset:
                check_offset(offset)
                return
            where = objects.segment_id.topic_id_partition
            start = latest[where][0].start_offset if where in latest else -1
            if objects.find(Suffix.MANIFEST) is None:
                continue
            if objects.start_offset > start:
                latest[where] = [objects]
            elif objects.start_offset == start:
                latest[where].append(objects)
        ends: dict[str, int] = {}
        for segment in load_stream(self.store, (one for last in latest.values() for one in last), rules=self.rules):
            if not isinstance(segment.loaded, StoredSegment) or segment.loaded.metadata.end_offset < 0:
                ends.clear()
                break  # the log's end is unknown; the plan keeps this segment and all later ones
            name = f"{segment.partition.topic}-{segment.partition.partition}"
            ends[name] = max(ends.get(name, 0), segment.loaded.metadata.end_offset + 1)
        check_offset(offset, ends)


def _with_following(segments: Iterable[ListedSegment], last: int | None) -> Iterator[tuple[ListedSegment, int | None]]:
    """Yield each segment with the next greater base offset of its partition. ``last`` is that of the last segments."""
    copies: list[ListedSegment] = []
    for segment in segments:
        where, start = segment.partition, segment.objects.start_offset
        if copies and (copies[0].partition, copies[0].objects.start_offset) != (where, start):
            following = start if copies[0].partition == where else None
            yield from ((copy, following) for copy in copies)
            copies = []
        copies.append(segment)
    yield from ((copy, last) for copy in copies)


def _keep_held(segment: ListedSegment, following: int | None, holds: Holds) -> Step[ListedSegment] | None:
    last = None if segment.stored is None else segment.stored.last_offset
    if last is not None:
        # No checksum protects the end in a manifest. The segment may have any offset before the next segment.
        last = None if following is None else max(last, following - 1)
    hold = holds.on(segment.partition, segment.objects.start_offset, last)
    return None if hold is None else Step(segment, Outcome.HELD, f"legal hold {hold.name!r}")
