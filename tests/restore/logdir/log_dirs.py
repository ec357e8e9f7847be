"""A log directory as a broker leaves it when it stops, and a bucket to restore from."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import tieredstore as ts
from tieredstore.catalog.planning import load_catalog
from tieredstore.kafka.checkpoints import format_partition_metadata
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.logdir.prepared import PreparedPartition, PreparedRestore, PreparedTopic
from tieredstore.restore.logdir.restoring import RestoreOptions, restore_logs

CLUSTER: Final = "dGllcmVkc3RvcmVUZXN0cw"
NEW_ID: Final = Uuid(b"a-new-topics-id.")
ALL: Final = RestoreOptions()


def make_log_dir(folder: Path, topics: Mapping[str, int], *, broker: int = 1) -> Path:
    """Make a log directory with empty partitions, given as topics with their number of partitions."""
    folder.mkdir()
    (folder / "meta.properties").write_text(f"version=1\ncluster.id={CLUSTER}\nnode.id={broker}\n")
    (folder / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (folder / name).write_text("0\n2\nother 0 77\norders 0 0\n")
    (folder / "cleaner-offset-checkpoint").write_bytes(b"")
    for topic, partitions in topics.items():
        for number in range(partitions):
            partition = folder / f"{topic}-{number}"
            partition.mkdir()
            for suffix in ("log", "index", "timeindex"):
                (partition / f"{0:020d}.{suffix}").touch()
            (partition / "leader-epoch-checkpoint").write_text("0\n0\n")
            (partition / "partition.metadata").write_bytes(format_partition_metadata(NEW_ID))
    return folder


def prepared(*partitions: TopicIdPartition, brokers: tuple[int, ...] = (1,)) -> PreparedRestore:
    """Return a plan like that of ``restore prepare``. Each topic has as many partitions as ``partitions`` lists for it.

    The plan gets the extents of the logs when :func:`restore` is called.
    """
    topics = sorted({(each.topic, each.topic_id) for each in partitions})
    counts = {topic: sum(each.topic == topic for each in partitions) for topic, _ in topics}
    one = PreparedPartition(brokers, 0, _AS_STORED)
    of = [PreparedTopic(topic, str(old), str(NEW_ID), (one,) * counts[topic]) for topic, old in topics]
    return PreparedRestore(CLUSTER, tuple(of))


_AS_STORED: Final = -1


def with_logs(plan: PreparedRestore, bucket: ts.Bucket) -> PreparedRestore:
    """Add the present extents of the bucket's logs to a plan, like ``restore prepare``."""
    return replace(plan, topics=tuple(_with_logs(topic, bucket) for topic in plan.topics))


def _with_logs(topic: PreparedTopic, bucket: ts.Bucket) -> PreparedTopic:
    catalog = load_catalog(bucket.manager, topic=topic.topic)
    known = list(topic.partitions)
    for number, one in enumerate(known):
        if one.stop == _AS_STORED:
            log = catalog.lineage(topic.topic, number)
            known[number] = replace(one, start=log.earliest_offset, stop=log.end_offset)
    return replace(topic, partitions=tuple(known))


def restore(
    bucket: ts.Bucket,
    log_dirs: Path | Sequence[Path],
    plan: PreparedRestore,
    options: RestoreOptions = ALL,
    **more: bool,
) -> list[tuple[str, int | None, int | None]]:
    """Restore; return the code, and the first and last offset, of each outcome."""
    several = [log_dirs] if isinstance(log_dirs, Path) else log_dirs
    outcomes = restore_logs(bucket.manager, several, with_logs(plan, bucket), options, **more)
    return [(each.code, each.base_offset, each.last_offset) for each in outcomes]


def tree(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder by their paths."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def fresh_bucket(folder: Path, disks: Iterable[Path]) -> Generator[ts.Bucket]:
    """Yield a new bucket with the closed segments of these log directories."""
    folder.mkdir()
    with ts.open(folder) as bucket:
        for disk in disks:
            bucket.upload(disk)
        yield bucket
