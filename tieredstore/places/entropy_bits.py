"""The bits that spread the partitions of a bucket over the service's shards, as Pinterest's uploader computes them."""

from __future__ import annotations

import hashlib

from tieredstore.model import TopicIdPartition


def entropy_bits(cluster: str, topic: str, partition: int, count: int) -> str:
    """Return the first ``count`` bits of MD5(``cluster-topic-partition``), as text of 0 and 1, the highest bit
    first.
    """
    digest = hashlib.md5(f"{cluster}-{topic}-{partition}".encode(), usedforsecurity=False).digest()
    return f"{int.from_bytes(digest, 'big'):0128b}"[:count]


def bits_folder(cluster: str, where: TopicIdPartition, count: int) -> str:
    """Return the part of a key after the prefix: the bits and a slash, nothing for no bits."""
    return f"{entropy_bits(cluster, where.topic, where.partition, count)}/" if count else ""


def all_folders(count: int) -> list[str]:
    """Return all folders of ``count`` bits, sorted; one without a name for no bits."""
    return [f"{number:0{count}b}/" for number in range(1 << count)] if count else [""]
