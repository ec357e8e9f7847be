"""Names of topics and partitions in a store, listed by few requests, for callers that need only names."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.format.keys import ObjectKey, listing_prefix, parse_key
from tieredstore.model import Uuid

_PAGE: Final = 1000
"""The most keys that one request lists. After this many keys of one folder, the rest of the folder is skipped."""


def topic_names(store: ObjectStore, prefix: str, *, until: float = math.inf) -> list[str]:
    """Return the topics with objects under ``key.prefix``, sorted. This takes one request for each large topic, plus
    one for each thousand keys of small topics.

    ``until`` is a time of ``time.monotonic``. Return only topics listed before this time.
    """
    return sorted({key.segment_id.topic_id_partition.topic for key in _first_keys(store, prefix, prefix, 1, until)})


def partition_numbers(store: ObjectStore, prefix: str, topic: str, *, until: float = math.inf) -> dict[Uuid, list[int]]:
    """Return the partitions of each id of a topic, ascending. The result is empty if the topic is absent.

    Requests and ``until`` are as in ``topic_names``.
    """
    numbers: dict[Uuid, list[int]] = {}
    for key in _first_keys(store, prefix, listing_prefix(prefix, topic), 2, until):
        where = key.segment_id.topic_id_partition
        if where.topic == topic:
            numbers.setdefault(where.topic_id, []).append(where.partition)
    return {topic_id: sorted(own) for topic_id, own in numbers.items()}


def topic_ids(store: ObjectStore, prefix: str, topic: str) -> list[Uuid]:
    """Return the ids under which a topic has objects. This takes fewer requests than listing its partitions."""
    partitions = (
        key.segment_id.topic_id_partition for key in _first_keys(store, prefix, listing_prefix(prefix, topic), 1)
    )
    return sorted({where.topic_id for where in partitions if where.topic == topic})


def base_offsets(
    store: ObjectStore, prefix: str, topic: str, partition: int, *, most: int, until: float = math.inf
) -> list[int]:
    """Return the base offsets of a partition's segments, ascending, for all ids of the topic.

    Return at most ``most`` offsets. Stop listing at ``until``, a time of ``time.monotonic``.
    """
    offsets: set[int] = set()
    for topic_id in partition_numbers(store, prefix, topic, until=until):
        for info in store.list(listing_prefix(prefix, topic, topic_id, partition)):
            key = parse_key(prefix, info.key)
            if key is not None:
                offsets.add(key.start_offset)
            if len(offsets) >= most or time.monotonic() > until:
                break
    return sorted(offsets)[:most]


def _first_keys(
    store: ObjectStore, prefix: str, listed: str, depth: int, until: float = math.inf
) -> Iterator[ObjectKey]:
    """List the keys that begin with ``listed``. From each folder at ``depth`` below the prefix, yield the first segment
    key."""
    folder, passed, is_given = "", 0, False
    after: str | None = None
    while True:
        for info in store.list(listed, after):
            if time.monotonic() > until:
                return
            here = "/".join(info.key[len(prefix) :].split("/", depth)[:depth])
            if here != folder:
                folder, passed, is_given = here, 0, False
            if not is_given and (key := parse_key(prefix, info.key)) is not None:
                is_given = True
                yield key
            passed += 1
            if passed == _PAGE:
                break
        else:
            return
        # Start the listing right after all keys of the folder. The character after "/" is "0".
        after = f"{prefix}{folder}0"
