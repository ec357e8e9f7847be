"""Hash bits that spread a bucket's partitions over the service's shards, computed as in Pinterest's uploader."""

from __future__ import annotations

import hashlib

from tieredstore.model import TopicIdPartition


def entropy_bits(cluster: str, topic: str, partition: int, count: int) -> str:
    """Return the first ``count`` bits of MD5(``cluster-topic-partition``), highest first, as text of 0 and 1."""
    digest = hashlib.md5(f"{cluster}-{topic}-{partition}".encode(), usedforsecurity=False).digest()
    return f"{int.from_bytes(digest, 'big'):0128b}"[:count]


def bits_folder(cluster: str, where: TopicIdPartition, count: int) -> str:
    """Return the bits and a slash, which follow the prefix in a key. Return an empty text if ``count`` is 0."""
    return f"{entropy_bits(cluster, where.topic, where.partition, count)}/" if count else ""


def all_folders(count: int) -> list[str]:
    """Return the names of all folders of ``count`` bits, sorted. If ``count`` is 0, there is one folder with an empty
    name."""
    return [f"{number:0{count}b}/" for number in range(1 << count)] if count else [""]
