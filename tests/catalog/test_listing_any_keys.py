"""Listings of segment keys among damaged and foreign ones: every key of a segment's object is found."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.format.keys import ObjectKey, Suffix, main_path, object_key, parse_key
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition, Uuid

_ODD = (
    "clicks", ".log", "/.indexes", "x.rsm-manifest", "é/0/1.log", "a-b/0/c.log", "clicks.indexes", "\ud7ff.log",
    "a-AAAAAAAAAAAAAAAAAAAAAA/0/00000000000000000000-AAAAAAAAAAAAAAAAAAAAAB.indexes",
    "a-AAAAAAAAAAAAAAAAAAAAAA/00/00000000000000000000-AAAAAAAAAAAAAAAAAAAAAA.indexes",
    "a-AAAAAAAAAAAAAAAAAAAAAA/0/99999999999999999999-AAAAAAAAAAAAAAAAAAAAAA.indexes",
    "a-AAAAAAAAAAAAAAAAAAAAAA/0/٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٧-AAAAAAAAAAAAAAAAAAAAAA.indexes",
)  # fmt: skip


def listings(seed: int, count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield ``count`` prefixes with sorted keys, the same ones for the same seed."""
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
    """Return keys of one segment: nearly always its three, undamaged."""
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


def test_any_listing_has_the_segments_that_its_keys_name() -> None:
    whole = 0
    for prefix, keys in listings(5, 600):
        store = MemoryObjectStore()
        named: dict[str, list[Suffix]] = {}
        for key in keys:
            store.put(key, b"x" * len(key))
            if (parsed := parse_key(prefix, key)) is not None:
                named.setdefault(parsed.main_path, []).append(parsed.suffix)
        listed = list(list_segments(store, prefix))
        assert {segment.main_path: [suffix for suffix, _ in segment.objects] for segment in listed} == named
        for segment in listed:
            for suffix, info in segment.objects:
                assert parse_key(prefix, info.key) == ObjectKey(segment.segment_id, segment.start_offset, suffix)
                assert info.size == len(info.key)
        whole += sum(not segment.missing for segment in listed)
    assert whole > 400
