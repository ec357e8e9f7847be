"""Search for the objects of segments, by one listing."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.format.keys import ObjectKey, Suffix, listing_prefix, padded_offset, parse_key
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition, Uuid

_PAGE: Final = 1000
"""Maximum number of keys that one list request returns, at least in S3 and GCS."""

_SUFFIXES: Final = {suffix.value: suffix for suffix in Suffix}


@dataclass(frozen=True, slots=True)
class Scope:
    """Limits of a listing; None means no limit.

    ``topics`` are several topics, in place of ``topic``, ``topic_id`` and ``partition``.
    """

    topic: str | None = None
    topic_id: Uuid | None = None
    partition: int | None = None
    topics: frozenset[str] | None = None
    first_offset: int | None = None

    @classmethod
    def of(cls, partition: TopicIdPartition, first_offset: int | None = None) -> Scope:
        """Return the scope of one partition, from ``first_offset`` on."""
        return cls(partition.topic, partition.topic_id, partition.partition, first_offset=first_offset)

    def listing_prefix(self, prefix: str) -> str:
        """Return the longest common prefix of all keys in scope. Other keys may have this prefix too."""
        if self.topics is not None:
            # The common prefix of the first and the last of sorted texts is the common prefix of all.
            return prefix + _common(min(self.topics, default=""), max(self.topics, default=""))
        return listing_prefix(prefix, self.topic, self.topic_id, self.partition)

    def start_after(self, prefix: str) -> str | None:
        """Return a text that sorts right before the keys of ``first_offset``. A listing that starts after this text has
        no earlier keys.

        Return None if the scope has several partitions, because their keys are not sorted by offset. Keys with
        non-ASCII digits, which some JVMs write, sort after all others.
        """
        if self.first_offset is None or self.topic is None or self.topic_id is None or self.partition is None:
            return None
        return f"{self.listing_prefix(prefix)}{padded_offset(self.first_offset)}"

    def holds(self, segment_id: RemoteLogSegmentId, start_offset: int) -> bool:
        """Return True if the segment is in scope."""
        where = segment_id.topic_id_partition
        return (
            (self.topic is None or where.topic == self.topic)
            and (self.topics is None or where.topic in self.topics)
            and (self.topic_id is None or where.topic_id == self.topic_id)
            and (self.partition is None or where.partition == self.partition)
            and (self.first_offset is None or start_offset >= self.first_offset)
        )


_EVERYTHING: Final = Scope()


def list_segments(
    store: ObjectStore, prefix: str = "", scope: Scope = _EVERYTHING, *, page: int = _PAGE
) -> Iterator[SegmentObjects]:
    """Yield the segments in scope under ``key.prefix``, in key order. Incomplete segments are included; other objects
    are ignored.

    The call makes one listing, page by page. The scope's ``first_offset`` excludes segments that begin earlier. The
    excluded segments cost no requests if the scope is one partition (topic, id and number). Several topics are listed
    together, because one request returns ``page`` keys, often of many topics.
    """
    key: ObjectKey | None = None
    path = foreign = ""
    objects: list[tuple[Suffix, ObjectInfo]] = []
    if scope.topics is None:
        infos = store.list(scope.listing_prefix(prefix), scope.start_after(prefix))
    else:
        infos = _list_together(store, [listing_prefix(prefix, topic) for topic in scope.topics], page)
    for info in infos:
        # A sorted listing has the three keys of a segment side by side, because they differ only in their suffix. Parse
        # their common part once.
        own, _, ending = info.key.rpartition(".")
        if (suffix := _SUFFIXES.get(ending)) is None or own == foreign:
            continue
        if key is None or own != path:
            parsed = parse_key(prefix, info.key)
            if parsed is None or not scope.holds(parsed.segment_id, parsed.start_offset):
                foreign = own
                continue
            if key is not None:
                yield SegmentObjects(key.segment_id, key.start_offset, tuple(objects), key.main_path)
            key, path, objects = parsed, own, []
        objects.append((suffix, info))
    if key is not None:
        yield SegmentObjects(key.segment_id, key.start_offset, tuple(objects), key.main_path)


def _list_together(store: ObjectStore, prefixes: Iterable[str], page: int) -> Iterator[ObjectInfo]:
    """Yield the keys with one of ``prefixes``, in order. A listing reads past the keys between two prefixes only if
    these keys fill less than a page. If they fill a page, halve the remaining prefixes and list each half separately. A
    few topics of a large store then cost a few pages each.

    The listings are limited by prefixes. A start key is no alternative, because some services read all pages before it.
    """
    groups: list[list[str]] = [_without_nested(prefixes)]
    crowded: set[str] = set()
    while groups:
        ahead: deque[str] = deque(groups.pop())
        if not ahead:
            continue
        common = _common(ahead[0], ahead[-1])
        passed = 0
        # Do not list by a prefix in ``crowded`` again, because its first listing read a whole page of other topics'
        # keys.
        for info in () if common in crowded else store.list(common):
            while ahead and not info.key.startswith(ahead[0]) and info.key > ahead[0]:
                ahead.popleft()
            if not ahead:
                break
            if info.key.startswith(ahead[0]):
                passed = 0
                yield info
                continue
            passed += 1
            if passed == page:
                crowded.add(common)
                break
        if common in crowded:
            rest = list(ahead)
            # Append the first half last, so that the loop takes it next from the stack.
            groups += [rest[len(rest) // 2 :], rest[: len(rest) // 2]]


def _common(first: str, last: str) -> str:
    """Return the common prefix of both texts."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(letter for letter, _ in same)


def _without_nested(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes, sorted, without prefixes that begin with another prefix of the list."""
    outer: list[str] = []
    for prefix in sorted(prefixes):
        if not outer or not prefix.startswith(outer[-1]):
            outer.append(prefix)
    return outer


_EVERY: Final = tuple(Suffix)


@dataclass(frozen=True, slots=True)
class SegmentObjects:
    """Up to three objects under one main path. The main path is the part of a key between prefix and suffix."""

    segment_id: RemoteLogSegmentId
    start_offset: int
    objects: tuple[tuple[Suffix, ObjectInfo], ...]
    main_path: str

    def find(self, suffix: Suffix) -> ObjectInfo | None:
        """Return the object with this suffix, or None."""
        for own, info in self.objects:
            if own is suffix:
                return info
        return None

    @property
    def missing(self) -> tuple[Suffix, ...]:
        """Suffixes of the absent objects; () for a whole segment."""
        present = [suffix for suffix, _ in self.objects]
        return tuple(suffix for suffix in _EVERY if suffix not in present)

    @property
    def stored_size(self) -> int:
        """Size in bytes of all objects found."""
        return sum(info.size for _, info in self.objects)
