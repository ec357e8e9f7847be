"""Listings in which most is as usual, and the one question put to each: do all ways see the same segments?"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from unittest import mock

from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog import listing
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.segment_objects import SegmentObjects
from tieredstore.catalog.usual import grouped
from tieredstore.format.keys import Suffix, main_path, object_key
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition, Uuid

_ODD = (
    "clicks", ".log", "/.indexes", "x.rsm-manifest", "é/0/1.log", "a-b/0/c.log", "clicks.indexes", "\ud7ff.log",
    "a-AAAAAAAAAAAAAAAAAAAAAA/0/00000000000000000000-AAAAAAAAAAAAAAAAAAAAAB.indexes",
    "a-AAAAAAAAAAAAAAAAAAAAAA/00/00000000000000000000-AAAAAAAAAAAAAAAAAAAAAA.indexes",
    "a-AAAAAAAAAAAAAAAAAAAAAA/0/99999999999999999999-AAAAAAAAAAAAAAAAAAAAAA.indexes",
    "a-AAAAAAAAAAAAAAAAAAAAAA/0/٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٧-AAAAAAAAAAAAAAAAAAAAAA.indexes",
)  # fmt: skip


def listings(seed: int, count: int) -> Iterator[tuple[str, list[str]]]:
    """``count`` prefixes with sorted keys, the same ones for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        prefix = chance.choice(("", "", "kafka/", "é", "clicks-"))
        keys = set(itertools.chain.from_iterable(_keys(chance, prefix) for _ in range(chance.randrange(8))))
        for _ in range(chance.choice((0, 0, 1, 3))):
            odd = chance.choice(_ODD)
            ending = chance.choice(("", ".indexes", ".log", ".rsm-manifest"))
            keys.add(chance.choice((prefix, "")) + odd.rpartition(".")[0] + (ending or "." + odd.rpartition(".")[2]))
        yield prefix, sorted(keys)


def _keys(chance: random.Random, prefix: str) -> list[str]:
    """Of one segment: nearly always its three, unharmed."""
    where = TopicIdPartition(Uuid(bytes([chance.randrange(2)] * 16)), chance.choice(("a", "a-b", "ü.x")), 7)
    path = main_path(RemoteLogSegmentId(where, Uuid(chance.randbytes(16))), chance.choice((0, 5, 2**63 - 1)))
    keys = [object_key(prefix, path, suffix) for suffix in Suffix]
    if chance.random() < 0.3:
        keys.pop(chance.randrange(3))
    if chance.random() < 0.2:
        place = chance.randrange(len(path))
        damaged = path[:place] + chance.choice("A/-.٣") + path[place + chance.randrange(2) :]
        keys = [key.replace(path, damaged) for key in keys]
    if chance.random() < 0.2:
        keys.append(keys[0] + chance.choice((".log", "x", "~")))
    return keys


def seen_both_ways(prefix: str, keys: list[str]) -> int:
    """How many segments are put together at a glance; object by object all are the same."""
    store = MemoryObjectStore()
    for key in keys:
        store.put(key, b"x" * len(key))
    at_once = list(list_segments(store, prefix))
    with mock.patch.object(listing, "grouped", _as_listed):
        assert list(list_segments(store, prefix)) == at_once
    return sum(isinstance(listed, SegmentObjects) for listed in grouped(list(store.list(prefix)), prefix))


def _as_listed(listed: list[ObjectInfo], _prefix: str) -> list[ObjectInfo]:
    return listed
