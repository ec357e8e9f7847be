"""The offsets of a partition that are in the bucket, on a broker, or in neither. Explains why the bucket lacks some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from tieredstore.errors import ConfigError
from tieredstore.model import AtTime, OffsetSpan, TopicId, TopicPartition, Uuid, check_offset

if TYPE_CHECKING:
    from tieredstore.catalog.watermark import Watermark
    from tieredstore.live import LiveCluster

Bounds: TypeAlias = tuple[int | AtTime | None, int | AtTime | None]
"""Start and stop (exclusive), each an offset or a time; None leaves that side open."""

_TIERED: Final = "remote.storage.enable"
_SEGMENT_MS: Final = "segment.ms"


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """A broker's log of a partition. ``until`` is the first offset at or after a requested time, or the log's end.

    If the caller requested a window, the offsets are the bounds of the log's part in the window. This part may be
    empty.

    ``segment_ms`` is the topic's ``segment.ms``, if the caller requested a time and the login may read the setting.
    ``is_idle`` is True if the log's newest record is older than ``segment_ms``. The active segment of an idle log
    closes only when another record arrives.
    """

    earliest_offset: int
    end_offset: int
    until: int | None = None
    segment_ms: int | None = None
    is_idle: bool = False

    @property
    def span(self) -> OffsetSpan:
        """The log's first offset and its end."""
        return self.earliest_offset, self.end_offset

    def within(self, start: int, stop: int) -> BrokerLog:
        """Return the log's part from offset ``start`` up to ``stop``. If the log has no offset there, the part is
        empty.
        """
        earliest, end = (min(max(offset, start), max(start, stop)) for offset in self.span)
        return replace(self, earliest_offset=earliest, end_offset=end)


def lost_between(held: Iterable[OffsetSpan]) -> tuple[OffsetSpan, ...]:
    """Return the offsets missing between the first and last of ``held``. Earlier offsets do not count: retention
    deleted them.
    """
    known = sorted(held)
    return tuple(without(known, (known[0][0], max(end for _, end in known)))) if known else ()


def without(held: Iterable[OffsetSpan], of: OffsetSpan) -> Iterator[OffsetSpan]:
    """Yield the offsets of ``of`` that are not in any of ``held``. ``held`` must be sorted."""
    at, end = of
    for start, stop in held:
        if at < min(start, end):
            yield at, min(start, end)
        at = max(at, stop)
    if at < end:
        yield at, end


def why_missing(
    missing: Iterable[OffsetSpan], lost: Iterable[OffsetSpan], log: BrokerLog, mark: Watermark | None
) -> Iterator[str]:
    """Yield a sentence for each range of offsets that the bucket lacks. ``mark`` is the uploader's watermark."""
    known = list(lost)
    for start, stop in missing:
        holes = () if mark is None else mark.holes
        within = [hole for hole in holes if hole.first_offset < stop and start <= hole.last_offset]
        for hole in within:
            span = max(start, hole.first_offset), min(stop, hole.last_offset + 1)
            yield f"the uploader could not store {_name(span)}: {hole.reason}"
        for first, last in without([(hole.first_offset, hole.last_offset + 1) for hole in within], (start, stop)):
            reached = first if mark is None else min(max(first, mark.next_offset), last)
            if first < reached:
                yield f"the uploader stored {_name((first, reached))}, and the bucket does not have them now"
            if reached < last:
                yield _why_not_uploaded((reached, last), known, log)


def _why_not_uploaded(span: OffsetSpan, lost: Iterable[OffsetSpan], log: BrokerLog) -> str:
    start, stop = span
    are = "is" if stop == start + 1 else "are"
    if any(first < stop and start < end for first, end in lost):
        return f"{_name(span)} {are} not in the bucket, and not all of them on the broker either"
    alone = f"{_name(span)} {are} on the broker alone; a segment is stored once it is closed"
    if log.segment_ms is None:
        return f"{alone} ({_SEGMENT_MS})"
    if log.is_idle:
        return (
            f"{alone}, and the active one is idle: no record is younger than {_SEGMENT_MS}={log.segment_ms}, and only "
            "another record closes it"
        )
    return f"{alone}: the first record after {_SEGMENT_MS}={log.segment_ms} closes it at the latest"


def _name(span: OffsetSpan) -> str:
    start, stop = span
    return f"offset {start}" if stop == start + 1 else f"offsets {start} to {stop - 1}"


def ask_broker(
    cluster: LiveCluster,
    lives: Sequence[tuple[str, TopicId]],
    until: AtTime | None,
    *,
    now_ms: int,
    others: Iterable[str] = (),
    window: Bounds = (None, None),
    check_start: bool = True,
) -> dict[tuple[str, Uuid], dict[int, BrokerLog]]:
    """Return the brokers' logs of the bucket's topics, by topic (name and the bucket's topic id) and by partition.

    ``others`` names topics that the bucket lacks. Their logs are returned too if the brokers tier these topics. The
    result lacks topics that the brokers do not have, and topic ids that differ from the brokers' ids. Each log is cut
    to the ``window``. A time as a bound means the first record at or after that time.

    Raise ConfigError if the bucket has a topic, but not under the brokers' topic id. With ``check_start``, also raise
    ConfigError if the window begins beyond the ends of all logs.
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
                f"topic {topic!r} was created again: its id is {live.topic_id} on the broker and "
                f"{', '.join(str(one.value) for one in ids)} in the bucket"
            )
        own[topic] = same[0].value
    places = [(topic, number) for topic, live in described.items() for number in live.partitions]
    # Use only partitions in ``starts``, because a partition that was just added may have no first offset yet.
    starts, ends = cluster.earliest_offsets(places), cluster.end_offsets(places)
    if isinstance(window[0], int) and check_start:
        check_offset(window[0], {f"{topic}-{number}": ends[topic, number] for topic, number in starts})
    known = {place: BrokerLog(start, max(start, ends[place])) for place, start in starts.items()}
    begins, stops = (_offsets_of(cluster, bound, known) for bound in window)
    logs: dict[tuple[str, Uuid], dict[int, BrokerLog]] = {life: {} for life in own.items()}
    for place, log in known.items():
        part = log.within(begins.get(place, 0), stops.get(place, log.end_offset))
        logs[place[0], own[place[0]]][place[1]] = part
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


def _offsets_of(
    cluster: LiveCluster, bound: int | AtTime | None, logs: Mapping[TopicPartition, BrokerLog]
) -> dict[TopicPartition, int]:
    """Return, for each log, the offset of a window's start or stop. The result is empty if the window has no such
    bound.
    """
    if not isinstance(bound, AtTime):
        return {} if bound is None else dict.fromkeys(logs, bound)
    firsts = cluster.offsets_for_times(dict.fromkeys(logs, bound.timestamp_ms))
    return {place: logs[place].end_offset if first is None else first for place, first in firsts.items()}
