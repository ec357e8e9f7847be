"""The objects of segments, found by one listing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.format.keys import ObjectKey, Suffix, listing_prefix, padded_offset, parse_key
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition, Uuid

_PAGE: Final = 1000
"""Keys that a store lists by one request, S3 and GCS at least."""

_SUFFIXES: Final = {suffix.value: suffix for suffix in Suffix}


@dataclass(frozen=True, slots=True)
class SegmentObjects:
    """The objects found under one main path (what lies between prefix and suffix in their keys); up to three."""

    segment_id: RemoteLogSegmentId
    start_offset: int
    objects: tuple[tuple[Suffix, ObjectInfo], ...]
    main_path: str

    def find(self, suffix: Suffix) -> ObjectInfo | None:
        """The object with this suffix, if it is there."""
        return next((info for own, info in self.objects if own is suffix), None)

    @property
    def missing(self) -> tuple[Suffix, ...]:
        """The suffixes of the objects that are not there: () for a whole segment."""
        present = {suffix for suffix, _ in self.objects}
        return () if len(present) == len(_SUFFIXES) else tuple(suffix for suffix in Suffix if suffix not in present)

    @property
    def stored_size(self) -> int:
        """Bytes of all objects found."""
        return sum(info.size for _, info in self.objects)


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
            ends = min(self.topics, default=""), max(self.topics, default="")
            same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
            return prefix + "".join(letter for letter, _ in same)
        return listing_prefix(prefix, self.topic, self.topic_id, self.partition)

    def start_after(self, prefix: str) -> str | None:
        """A text that comes right before the keys of ``first_offset``: what lies before it is not even listed.

        Only within one partition are keys in the order of offsets. Those whose offsets a JVM wrote in other digits
        than ASCII's come after all others.
        """
        if self.first_offset is None or self.topic is None or self.topic_id is None or self.partition is None:
            return None
        return f"{self.listing_prefix(prefix)}{padded_offset(self.first_offset)}"

    def holds(self, key: ObjectKey) -> bool:
        """Whether the object is in scope."""
        where = key.segment_id.topic_id_partition
        return (
            (self.topic is None or where.topic == self.topic)
            and (self.topics is None or where.topic in self.topics)
            and (self.topic_id is None or where.topic_id == self.topic_id)
            and (self.partition is None or where.partition == self.partition)
            and (self.first_offset is None or key.start_offset >= self.first_offset)
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
    (all three of its parts given) the earlier ones cost no requests.
    """
    return list_in_scope(store, prefix, Scope(topic, topic_id, partition, first_offset=first_offset))


def list_in_scope(store: ObjectStore, prefix: str, scope: Scope) -> Iterator[SegmentObjects]:
    """:func:`list_segments` of one scope."""
    partitions: dict[TopicIdPartition, TopicIdPartition] = {}
    ours = (entry for entry in _ours(prefix, _listed(store, prefix, scope)) if scope.holds(entry[0]))
    # The three keys of a segment differ in their suffixes only, so that a sorted listing has them side by side.
    for path, group in itertools.groupby(ours, key=lambda entry: entry[0].main_path):
        objects = list(group)
        key = objects[0][0]
        # One value for all segments of a partition: there may be a hundred thousand.
        where = partitions.setdefault(key.segment_id.topic_id_partition, key.segment_id.topic_id_partition)
        infos = tuple((suffix, info) for _, suffix, info in objects)
        yield SegmentObjects(RemoteLogSegmentId(where, key.segment_id.id), key.start_offset, infos, path)


def _listed(store: ObjectStore, prefix: str, scope: Scope) -> Iterator[ObjectInfo]:
    """The objects in scope and some beside them, in key order.

    Of several topics the keys are listed together: one request has a thousand of them, and a request for each topic
    would be made before anything is known. Where much lies between two topics that nobody asked for, the listing
    begins anew behind it, so that a few topics of a large store cost no more than a listing each.
    """
    if not scope.topics:
        start_after = scope.start_after(prefix)
        return iter(()) if scope.topics is not None else store.list(scope.listing_prefix(prefix), start_after)
    return _listed_with_jumps(store, scope.listing_prefix(prefix), [listing_prefix(prefix, t) for t in scope.topics])


def _listed_with_jumps(store: ObjectStore, common: str, prefixes: Iterable[str]) -> Iterator[ObjectInfo]:
    """What starts with one of ``prefixes``, all of which start with ``common``, and less than a page between them."""
    ahead = sorted(prefixes)
    while ahead:
        passed = 0
        # No object has a prefix as its whole key. A new listing is the same as going on, for what is behind its start.
        for info in store.list(common, start_after=ahead[0]):
            while ahead and not info.key.startswith(ahead[0]) and info.key > ahead[0]:
                del ahead[0]
            if not ahead:
                return
            if info.key.startswith(ahead[0]):
                passed = 0
                yield info
                continue
            passed += 1
            if passed == _PAGE:
                break
        else:
            return


def _ours(prefix: str, listed: Iterable[ObjectInfo]) -> Iterator[tuple[ObjectKey, Suffix, ObjectInfo]]:
    """The objects of segments; what the key says but for the suffix is parsed once for the three of them."""
    known, known_path = None, ""
    for info in listed:
        path, _, ending = info.key.rpartition(".")
        if (suffix := _SUFFIXES.get(ending)) is None:
            continue
        if known is None or path != known_path:
            if (key := parse_key(prefix, info.key)) is None:
                continue
            known, known_path = key, path
        yield known, suffix, info
