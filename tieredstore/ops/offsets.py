"""The offsets of a partition that are in the bucket, on a broker, or in neither."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.errors import ConfigError
from tieredstore.model import AtTime, TopicId, Uuid

if TYPE_CHECKING:
    from tieredstore.live import LiveCluster

Extent = tuple[int, int]
"""Offsets from the first up to the second (exclusive)."""


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """A broker's log of a partition. ``until`` is the first offset at or after a requested time, or the log's end."""

    earliest_offset: int
    end_offset: int
    until: int | None = None

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


def ask_broker(
    cluster: LiveCluster, lives: Sequence[tuple[str, TopicId]], until: AtTime | None
) -> dict[tuple[str, Uuid], dict[int, BrokerLog]]:
    """Return the brokers' logs of the bucket's topics, by topic name and bucket's topic id, then by partition.

    Topics that the brokers lack are absent, and so are other ids than theirs. Raise ConfigError if the bucket has a
    topic only under other ids than the brokers'.
    """
    described = cluster.describe(topic for topic, _ in lives)
    own: dict[str, Uuid] = {}
    for topic, live in described.items():
        ids = [one for name, one in lives if name == topic]
        same = [one for one in ids if not one.contradicts(TopicId(live.topic_id))]
        if not same:
            raise ConfigError(
                f"topic {topic!r} was created again: it is {live.topic_id} on the broker and "
                f"{', '.join(str(one.value) for one in ids)} in the bucket"
            )
        own[topic] = same[0].value
    places = [(topic, number) for topic, live in described.items() for number in live.partitions]
    # Use only places in ``starts``: a partition that was just added may have no first offset yet.
    starts, ends = cluster.earliest_offsets(places), cluster.end_offsets(places)
    times = {} if until is None else cluster.offsets_for_times(dict.fromkeys(starts, until.timestamp_ms))
    logs: dict[tuple[str, Uuid], dict[int, BrokerLog]] = {life: {} for life in own.items()}
    for place, start in starts.items():
        end = max(start, ends[place])
        first = times.get(place)
        log = BrokerLog(start, end, None if until is None else end if first is None else first)
        logs[place[0], own[place[0]]][place[1]] = log
    return logs
