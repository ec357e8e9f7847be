"""The objects of segments, found by one listing."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.format.keys import ObjectKey, Suffix, listing_prefix, padded_offset, parse_key
from tieredstore.model import RemoteLogSegmentId, Uuid

__all__ = ["Scope", "SegmentObjects", "list_in_scope", "list_segments"]

_PAGE: Final = 1000
"""Keys that a store lists by one request, S3 and GCS at least."""

_SUFFIXES: Final = {suffix.value: suffix for suffix in Suffix}


@dataclass(frozen=True, slots=True)
class Scope:
    """What a listing is narrowed to; None means any. ``topics`` are several, in place of ``topic`` and the others."""

    topic: str | None = None
    topic_id: Uuid | None = None
    partition: int | None = None
    topics: frozenset[str] | None = None
    first_offset: int | None = None

    def listing_prefix(self, prefix: str) -> str:
        """The longest text that starts all keys in scope; some others may start with it too."""
        if self.topics is not None:
            # What the first and the last of sorted texts begin with, all between them begin with.
            return prefix + _common(min(self.topics, default=""), max(self.topics, default=""))
        return listing_prefix(prefix, self.topic, self.topic_id, self.partition)

    def start_after(self, prefix: str) -> str | None:
        """A text that comes right before the keys of ``first_offset``: what lies before it is not even listed.

        Only within one partition are keys in the order of offsets. Those whose offsets a JVM wrote in other digits
        than ASCII's come after all others.
        """
        if self.first_offset is None or self.topic is None or self.topic_id is None or self.partition is None:
            return None
        return f"{self.listing_prefix(prefix)}{padded_offset(self.first_offset)}"

    def holds(self, segment_id: RemoteLogSegmentId, start_offset: int) -> bool:
        """Whether the segment is in scope."""
        where = segment_id.topic_id_partition
        return (
            (self.topic is None or where.topic == self.topic)
            and (self.topics is None or where.topic in self.topics)
            and (self.topic_id is None or where.topic_id == self.topic_id)
            and (self.partition is None or where.partition == self.partition)
            and (self.first_offset is None or start_offset >= self.first_offset)
        )


def list_segments(
    store: ObjectStore,
    prefix: str = "",
    *,
    topic: str | None = None,
    topic_id: Uuid | None = None,
    partition: int | None = None,
    first_offset: int | None = None,
) -> Iterator[SegmentObjects]:
    """The segments under ``key.prefix``, in key order, incomplete ones too; objects that are not ours are passed over.

    One listing, consumed page by page. With ``first_offset`` come segments that begin there or later; of one partition
    (all three of its parts given) the earlier ones cost no requests. Keywords narrow it, few of them at a time.
    """
    return list_in_scope(store, prefix, Scope(topic, topic_id, partition, first_offset=first_offset))


def list_in_scope(store: ObjectStore, prefix: str, scope: Scope) -> Iterator[SegmentObjects]:
    """:func:`list_segments` of one scope."""
    key: ObjectKey | None = None
    path = foreign = ""
    objects: list[tuple[Suffix, ObjectInfo]] = []
    for info in _list(store, prefix, scope):
        # The three keys of a segment differ in their suffixes only, so that a sorted listing has them side by side:
        # what they say is parsed once.
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


def _list(store: ObjectStore, prefix: str, scope: Scope) -> Iterator[ObjectInfo]:
    """The objects in scope and some beside them, in key order.

    Of several topics the keys are listed together: one request has a thousand of them, and a request for each topic
    would be made before anything is known. Where much lies between two topics that nobody asked for, those that are
    left are halved, and the halves are listed by themselves: a few topics of a large store cost a few pages each.
    """
    if scope.topics is None:
        return store.list(scope.listing_prefix(prefix), scope.start_after(prefix))
    return _list_together(store, [listing_prefix(prefix, topic) for topic in scope.topics])


def _list_together(store: ObjectStore, prefixes: Iterable[str]) -> Iterator[ObjectInfo]:
    """What starts with one of ``prefixes`` in key order, and less than a page at a time of what lies between them.

    By prefixes alone: a listing that starts behind a key still asks some services for all pages before it.
    """
    groups: list[list[str]] = [_without_nested(prefixes)]
    crowded: set[str] = set()
    while groups:
        ahead: deque[str] = deque(groups.pop())
        if not ahead:
            continue
        common = _common(ahead[0], ahead[-1])
        # What was too much in between would be met again.
        is_given_up = common in crowded
        passed = 0
        for info in () if is_given_up else store.list(common):
            while ahead and not info.key.startswith(ahead[0]) and info.key > ahead[0]:
                ahead.popleft()
            if not ahead:
                break
            if info.key.startswith(ahead[0]):
                passed = 0
                yield info
                continue
            passed += 1
            if passed == _PAGE:
                is_given_up = True
                crowded.add(common)
                break
        if is_given_up:
            rest = list(ahead)
            # The first half is next.
            groups += [rest[len(rest) // 2 :], rest[: len(rest) // 2]]


def _common(first: str, last: str) -> str:
    """What both begin with."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(letter for letter, _ in same)


def _without_nested(prefixes: Iterable[str]) -> list[str]:
    """Sorted, without those whose keys another one's listing has too."""
    outer: list[str] = []
    for prefix in sorted(prefixes):
        if not outer or not prefix.startswith(outer[-1]):
            outer.append(prefix)
    return outer


_EVERY: Final = tuple(Suffix)


@dataclass(frozen=True, slots=True)
class SegmentObjects:
    """The objects found under one main path (what lies between prefix and suffix in their keys); up to three."""

    segment_id: RemoteLogSegmentId
    start_offset: int
    objects: tuple[tuple[Suffix, ObjectInfo], ...]
    main_path: str

    def find(self, suffix: Suffix) -> ObjectInfo | None:
        """The object with this suffix, if it is there."""
        for own, info in self.objects:
            if own is suffix:
                return info
        return None

    @property
    def missing(self) -> tuple[Suffix, ...]:
        """The suffixes of the objects that are not there: () for a whole segment."""
        present = [suffix for suffix, _ in self.objects]
        return tuple(suffix for suffix in _EVERY if suffix not in present)

    @property
    def stored_size(self) -> int:
        """Bytes of all objects found."""
        return sum(info.size for _, info in self.objects)
