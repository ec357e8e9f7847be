"""The choice of each restored record's target partition, in the way that the applications' Kafka clients choose it.

The hash must be the hash that the applications use. Otherwise, new records of a key would go to another partition than
the key's restored records. Java's clients use murmur2; librdkafka's default partitioner uses CRC-32.

librdkafka offers both hashes, but a run must know each record's partition before it sends the record. The run verifies
offsets by the number of records in each partition.

This module needs only the records' keys. It is therefore separate from ``producing``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from zlib import crc32

from tieredstore.restore.produce.runs import Partitioner

_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """Return a key's hash as Java's clients compute it, as a positive number (``Utils.toPositive``)."""
    length = len(key)
    hashed = _SEED ^ length
    for word in struct.unpack(f"<{length // 4}I", key[: length // 4 * 4]):
        mixed = word * _M & _MASK
        mixed = (mixed ^ mixed >> 24) * _M & _MASK
        hashed = hashed * _M & _MASK ^ mixed
    if length % 4:
        hashed = (hashed ^ int.from_bytes(key[length // 4 * 4 :], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return (hashed ^ hashed >> 15) & _POSITIVE


# Keys repeat, so hashes are cached. Computing a hash takes as long as all other work on a record.
_HASHES: Final[Mapping[Partitioner, Callable[[bytes], int]]] = {"java": lru_cache(65_536)(murmur2), "librdkafka": crc32}


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The rule that distributes a topic's records over ``count`` target partitions by a hash of their keys.

    Clients choose random partitions for records without a key, but a restore must be repeatable. So such a record goes
    to the partition with its source partition's number, modulo ``count``. Java's clients hash an empty key, but
    librdkafka treats it as no key.
    """

    partitioner: Partitioner
    count: int

    def partitions(self, keys: Iterable[bytes | None], source: int) -> list[int]:
        """Return the target partitions of records with these keys, which come from partition ``source``."""
        hash_of, count, without_key = _HASHES[self.partitioner], self.count, source % self.count
        if self.partitioner == "java":
            return [without_key if key is None else hash_of(key) % count for key in keys]
        return [hash_of(key) % count if key else without_key for key in keys]

    def shares(self, keys: Sequence[bytes | None], source: int) -> dict[int, list[int]]:
        """Return the indexes of the keys by target partition."""
        shares: dict[int, list[int]] = {}
        for place, partition in enumerate(self.partitions(keys, source)):
            shares.setdefault(partition, []).append(place)
        return shares
