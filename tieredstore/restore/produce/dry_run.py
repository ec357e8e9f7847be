"""Forecast of a run of ``restore produce``, and of the obstacles to it: for ``--dry-run``, and before each run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute

from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.ops.doctor.checkup import Check, Verdict
from tieredstore.records.columns import int64_values
from tieredstore.restore.produce.source import SourceTopics, header_lists
from tieredstore.restore.produce.target import TargetCluster
from tieredstore.restore.produce.target_checks import (
    ScannedRecords,
    SourceTopic,
    check_target,
    check_transactions,
    unknown_to_clients,
)
from tieredstore.restore.produce.transactions import TRANSACTION_MS

if TYPE_CHECKING:
    from tieredstore.restore.produce.source import SourceBatch
    from tieredstore.restore.produce.target import NewTopic, NewTopics
    from tieredstore.restore.produce.transactions import Headers

_compute: Final[Any] = pyarrow.compute

RECORDS_PER_S: Final = 100_000
BYTES_PER_S: Final = 20 * 1024 * 1024
"""The assumed speed of a run, by records or by bytes of keys, values and headers, whichever is slower. Records of 500
bytes came at 20 MB a second, with one broker and the run on two busy cores.
"""

_RECORD_BYTES: Final = 40
"""What a record needs beside key, value and headers, at most: lengths, time, offset."""
_HEADER_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of an examination. ``records`` and ``size`` are exact if the records were scanned; otherwise they are
    the number of offsets, and the bytes of the segments.
    """

    checks: Sequence[Check]
    records: int
    size: int
    missing: Mapping[str, NewTopic]
    """Target topics that do not exist, and how to create them."""

    @property
    def expected_s(self) -> float:
        """The expected seconds of the run at the assumed speed."""
        return max(self.records / RECORDS_PER_S, self.size / BYTES_PER_S)

    def refuse(self) -> None:
        """Raise ConfigError, which names all of it, if the target would refuse records, or delete them at once.

        Raise ResourceNotFoundError for a missing topic.
        """
        bad = [check for check in self.checks if check.outcome is Verdict.BAD]
        kind = ResourceNotFoundError if any(check.check == "topic" for check in bad) else ConfigError
        if bad:
            raise kind("; ".join(check.detail for check in bad))


def examine(
    topics: SourceTopics, properties: Mapping[str, str], *, new: NewTopics | None = None, scan: bool = False
) -> DryRun:
    """Compare what a run of ``restore produce`` would restore with the target's topics. ``scan`` reads all records.

    A missing topic is created later if ``new`` says how. Raise the errors of the brokers.
    """
    options, is_rehashed, now_ms = topics.options, topics.options.partitioner != "keep", int(time.time() * 1000)
    checks = [Check("source", Verdict.WARN, sentence) for sentence in topics.lacks]
    sources: list[SourceTopic] = []
    missing: dict[str, NewTopic] = {}
    with TargetCluster(properties) as cluster:
        ranges = topics.ranges()
        spans, scanned = topics.spans(ranges), _scan(topics.batches(ranges)) if scan else {}
        for topic, name in options.topics.items():
            partitions = {number: each for (of, number), each in spans.items() if of == topic}
            source = SourceTopic(topic, partitions, scanned.get(topic), is_backup=topics.is_backup)
            sources.append(source)
            if (target := cluster.target(name)) is not None:
                checks += check_target(source, target, is_rehashed=is_rehashed, now_ms=now_ms)
                continue
            created = None if new is None else new(topic, topics.topic_ids[topic])
            if created is not None:
                # Without a count of its own, a topic gets that of the bucket's partitions.
                created = replace(created, partition_count=created.partition_count or source.partition_count)
                missing[name] = created
            checks.append(_check_missing(name, created, source.partition_count, is_rehashed=is_rehashed))
        needed_ms = int(properties.get("transaction.timeout.ms", TRANSACTION_MS))
        checks += [check_transactions(needed_ms, cluster.longest_transaction_ms()), *unknown_to_clients(options.run)]
    return DryRun(checks, sum(each.records for each in sources), sum(each.size for each in sources), missing)


def prepare_target(topics: SourceTopics, properties: Mapping[str, str], new: NewTopics | None) -> list[str]:
    """Create missing topics if ``new`` says how, and return their names.

    Raise ConfigError if the target would refuse records or delete them at once, and BrokerError if it creates no topic.
    """
    found = examine(topics, properties, new=new)
    found.refuse()
    if found.missing:
        with TargetCluster(properties) as cluster:
            for topic, created in found.missing.items():
                cluster.create(topic, created)
        examine(topics, properties).refuse()
    return sorted(found.missing)


def _scan(batches: Iterable[SourceBatch]) -> dict[str, ScannedRecords]:
    """Read all records, and return what they are, by topic."""
    scanned: dict[str, ScannedRecords] = {}
    for batch in batches:
        before = scanned.get(batch.where[0], ScannedRecords())
        scanned[batch.where[0]] = before if batch.records is None else add_records(before, batch.records)
    return scanned


def add_records(before: ScannedRecords, records: Any) -> ScannedRecords:
    """Return the scan with these records, a record batch with the columns of a source's batches."""
    keys, values = records.column("key"), records.column("value")
    sizes = _compute.add(*(_compute.fill_null(_compute.binary_length(each), 0) for each in (keys, values)))
    headers = header_lists(records.column("headers"))
    if any(headers):
        sizes = _compute.add(sizes, pyarrow.array([_size_of(each) for each in headers], sizes.type))
    times = int64_values(records, "timestamp")
    known = [time for time in times if time >= 0]
    earliest, latest = min(known, default=None), max(known, default=None)
    return ScannedRecords(
        before.records + len(keys),
        before.size + int(_compute.sum(sizes).as_py()),
        max(before.largest, int(_compute.max(sizes).as_py()) + _RECORD_BYTES),
        min((time for time in (before.earliest_ms, earliest) if time is not None), default=None),
        max((time for time in (before.latest_ms, latest) if time is not None), default=None),
        before.without_key + int(keys.null_count),
        before.at_epoch + (sum(time == 0 for time in times) if earliest == 0 else 0),
    )


def _size_of(headers: Headers | None) -> int:
    return sum(_HEADER_BYTES + len(name.encode()) + len(value or b"") for name, value in headers or ())


def _check_missing(name: str, new: NewTopic | None, needed: int, *, is_rehashed: bool) -> Check:
    if new is None:
        detail = f"there is no topic {name} in the cluster: create it, or give --create-with"
        return Check("topic", Verdict.BAD, detail)
    count = new.partition_count or 0
    if count < needed and not is_rehashed:
        return Check("partitions", Verdict.BAD, f"{name} would get {count} partitions, and the bucket has {needed}")
    settings = ", ".join(f"{name}={value}" for name, value in new.settings.items()) or "no settings of its own"
    return Check("topic", Verdict.WARN, f"{name} does not exist, and is created with {count} partitions: {settings}")
