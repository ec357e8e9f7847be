"""The offsets of a partition that are in the bucket, on a broker, or in neither, and why the bucket lacks some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError
from tieredstore.model import AtTime, TopicId, Uuid

if TYPE_CHECKING:
    from tieredstore.catalog.watermark import Watermark
    from tieredstore.live import LiveCluster

Extent = tuple[int, int]
"""Offsets from the first up to the second (exclusive)."""

_TIERED: Final = "remote.storage.enable"
_SEGMENT_MS: Final = "segment.ms"


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """A broker's log of a partition. ``until`` is the first offset at or after a requested time, or the log's end.

    With a requested time, ``segment_ms`` is the topic's ``segment.ms``, if the login may read it. ``is_idle`` is True
    if the log has no record younger than that: its active segment then closes only when another record arrives.
    """

    earliest_offset: int
    end_offset: int
    until: int | None = None
    segment_ms: int | None = None
    is_idle: bool = False

    @property
    def extent(self) -> Extent:
        """The log's first offset and its end."""
        return self.earliest_offset, self.end_offset


def lost_between(held: Iterable[Extent]) -> tuple[Extent, ...]:
    """Return the offsets missing between the first and last of ``held``. Retention deleted the offsets before the
    first.
    """
    known = sorted(held)
    return tuple(without(known, (known[0][0], max(end for _, end in known)))) if known else ()


def without(held: Iterable[Extent], of: Extent) -> Iterator[Extent]:
    """Yield the offsets of ``of`` that are not in any of ``held``, which must be sorted."""
    at, end = of
    for start, stop in held:
        if at < min(start, end):
            yield at, min(start, end)
        at = max(at, stop)
    if at < end:
        yield at, end


def why_missing(
    missing: Iterable[Extent], lost: Iterable[Extent], log: BrokerLog, mark: Watermark | None
) -> Iterator[str]:
    """Yield a sentence for each range of offsets that the bucket lacks. ``mark`` is the uploader's watermark."""
    known = list(lost)
    for start, stop in missing:
        holes = () if mark is None else mark.holes
        within = [hole for hole in holes if hole.first_offset < stop and start <= hole.last_offset]
        for hole in within:
            extent = max(start, hole.first_offset), min(stop, hole.last_offset + 1)
            yield f"the uploader could not store {_named(extent)}: {hole.reason}"
        for first, last in without([(hole.first_offset, hole.last_offset + 1) for hole in within], (start, stop)):
            reached = first if mark is None else min(max(first, mark.next_offset), last)
            if first < reached:
                yield f"the uploader stored {_named((first, reached))}, and the bucket does not have them now"
            if reached < last:
                yield _why_not_uploaded((reached, last), known, log)


def _why_not_uploaded(extent: Extent, lost: Iterable[Extent], log: BrokerLog) -> str:
    start, stop = extent
    are = "is" if stop == start + 1 else "are"
    if any(first < stop and start < end for first, end in lost):
        return f"{_named(extent)} {are} not in the bucket, and not all of them on the broker either"
    alone = f"{_named(extent)} {are} on the broker alone; a segment is stored once it is closed"
    if log.segment_ms is None:
        return f"{alone} ({_SEGMENT_MS})"
    if log.is_idle:
        return (
            f"{alone}, and the active one is idle: no record is younger than {_SEGMENT_MS}={log.segment_ms}, and only "
            "another record closes it"
        )
    return f"{alone}, at the latest by the first record after {_SEGMENT_MS}={log.segment_ms}"


def _named(extent: Extent) -> str:
    start, stop = extent
    return f"offset {start}" if stop == start + 1 else f"offsets {start} to {stop - 1}"


def ask_broker(
    cluster: LiveCluster,
    lives: Sequence[tuple[str, TopicId]],
    until: AtTime | None,
    *,
    now_ms: int,
    others: Iterable[str] = (),
) -> dict[tuple[str, Uuid], dict[int, BrokerLog]]:
    """Return the brokers' logs of the bucket's topics, by topic name and bucket's topic id, then by partition.

    Of the topics ``others``, which the bucket lacks, those that the brokers tier are returned too. Topics that the
    brokers lack are absent, and so are other ids than theirs. Raise ConfigError if the bucket has a topic only under
    other ids than the brokers'.
    """
    names = dict.fromkeys(topic for topic, _ in lives)
    more = [topic for topic in others if topic not in names]
    settings = cluster.effective_settings([*(() if until is None else names), *more])
    tiered = [topic for topic in more if settings.get(topic, {}).get(_TIERED) == "true"]
    described = cluster.describe([*names, *tiered])
    own: dict[str, Uuid] = {}
    for topic, live in described.items():
        ids = [one for name, one in lives if name == topic] or [TopicId(live.topic_id)]
        same = [one for one in ids if not one.contradicts(TopicId(live.topic_id))]
        if not same:
            raise ConfigError(
                f"topic {topic!r} was created again: it is {live.topic_id} on the broker and "
                f"{', '.join(str(one.value) for one in ids)} in the bucket"
            )
        own[topic] = same[0].value
    places = [(topic, number) for topic, live in described.items() for number in live.partitions]
    # Use only partitions in ``starts``: a partition that was just added may have no first offset yet.
    starts, ends = cluster.earliest_offsets(places), cluster.end_offsets(places)
    logs: dict[tuple[str, Uuid], dict[int, BrokerLog]] = {life: {} for life in own.items()}
    for place, start in starts.items():
        logs[place[0], own[place[0]]][place[1]] = BrokerLog(start, max(start, ends[place]))
    if until is None:
        return logs
    firsts = cluster.offsets_for_times(dict.fromkeys(starts, until.timestamp_ms))
    rolls = {topic: int(each[_SEGMENT_MS]) for topic, each in settings.items() if _SEGMENT_MS in each}
    youngest = cluster.offsets_for_times({place: now_ms - rolls[place[0]] for place in starts if place[0] in rolls})
    for (topic, number), first in firsts.items():
        log = logs[topic, own[topic]][number]
        logs[topic, own[topic]][number] = replace(
            log,
            until=log.end_offset if first is None else first,
            segment_ms=rolls.get(topic),
            is_idle=youngest.get((topic, number), 0) is None,
        )
    return logs
