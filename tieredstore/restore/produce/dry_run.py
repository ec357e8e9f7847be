"""Forecast of a run of ``restore produce``, and checks for obstacles. ``--dry-run`` shows the results, and each run
begins with these checks.

If the source's records are not scanned, the sizes and latest times of segments come from the manifests in the bucket.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import BrokerDeniedError, BrokerUnavailableError, ConfigError, ResourceNotFoundError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.limits import MAX_INT64
from tieredstore.live import LiveReader
from tieredstore.model import human_bytes, utc_text
from tieredstore.ops.doctor.checkup import Check, Verdict
from tieredstore.restore.produce.continuation import check_new, check_same, check_stops, first_position, next_offsets
from tieredstore.restore.produce.runs import CONTROL_TOPIC, ControlTopic
from tieredstore.restore.produce.source import SourceTopics, header_lists
from tieredstore.restore.produce.target import TargetCluster, TargetTopic, check_control
from tieredstore.restore.produce.transactions import SETTLES_S, TRANSACTION_MS
from tieredstore.restore.retention import number_of, select_deleted

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Span
    from tieredstore.model import OffsetSpan, TopicPartition
    from tieredstore.restore.produce.runs import RunPosition, SourceRange
    from tieredstore.restore.produce.source import SourceBatch
    from tieredstore.restore.produce.target import NewTopic, NewTopics
    from tieredstore.restore.produce.transactions import Headers

_BEFORE: Final = ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms")
_AFTER: Final = ("message.timestamp.after.max.ms", "message.timestamp.difference.max.ms")
_KEEP_ALL: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_LOOK_S: Final = 5.0
"""Longest time that a dry run waits for the end of a transaction in the control topic. The broker writes the end marker
a moment after the commit."""
_BATCH_BYTES: Final = 61
"""Size of a batch's header in bytes. ``max.message.bytes`` limits the size of a batch including this header, even if
the batch has a single record."""


@dataclass(frozen=True, slots=True)
class ScannedRecords:
    """The result of a scan of a topic's records. ``largest`` is the uncompressed size in bytes of the largest record.

    The fields for times are in milliseconds, and None if the topic has no records.
    """

    records: int = 0
    size: int = 0
    largest: int = 0
    earliest_ms: int | None = None
    latest_ms: int | None = None
    without_key: int = 0
    at_epoch: int = 0
    """The number of records with the time 0. These records get the time 1, because librdkafka cannot send the
    time 0."""


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """The segments of a topic that a restore reads, by partition. ``scanned`` has the result of a scan of their
    records, if there was one.

    For a restore to a time, the segments end at the cut (the offset where the restore stops).
    """

    topic: str
    partitions: Mapping[int, Sequence[Span]]
    scanned: ScannedRecords | None = None
    is_backup: bool = False
    """True for partitions of a backup. They have no segments, so their sizes and times are unknown in advance."""

    @property
    def partition_count(self) -> int:
        """The number of partitions in the bucket, which is the highest partition number plus 1."""
        return max(self.partitions, default=-1) + 1

    @property
    def times_ms(self) -> tuple[int, int] | None:
        """The earliest and the latest known time of records; None if no time is known. Without a scan, these are the
        latest times of segments."""
        if self.scanned is not None:
            first, last = self.scanned.earliest_ms, self.scanned.latest_ms
            return None if first is None or last is None else (first, last)
        latest = [span.segment.max_timestamp_ms for spans in self.partitions.values() for span in spans]
        known = [time for time in latest if time >= 0]
        return (min(known), max(known)) if known else None


def check_target(source: SourceTopic, target: TargetTopic, *, is_rehashed: bool, now_ms: int) -> Iterator[Check]:
    """Yield the result of each check of the target topic of one source topic."""
    yield _partitions(source, target, is_rehashed=is_rehashed)
    yield _sizes(source, target)
    yield _times(source, target, now_ms)
    yield _replicas(target)
    yield _retention(source, target, is_rehashed=is_rehashed, now_ms=now_ms)
    yield _compaction(source, target)
    yield _rights(target)
    if source.scanned is not None and source.scanned.at_epoch:
        detail = (
            f"{source.scanned.at_epoch} records of {source.topic} have the timestamp 0, and get the timestamp 1: "
            "Kafka's client replaces 0 by the current time"
        )
        yield Check("times", Verdict.WARN, detail)


def check_transactions(needed_ms: int, longest_ms: int | None) -> Check:
    """Check that the brokers allow the transaction timeout that the run needs."""
    if longest_ms is None:
        return _skip("transactions", "transaction.max.timeout.ms: the brokers do not show it to the login")
    if longest_ms < needed_ms:
        detail = (
            f"transaction.max.timeout.ms is {longest_ms}, but the run needs {needed_ms}: raise this "
            "limit, or set a shorter transaction.timeout.ms"
        )
        return Check("transactions", Verdict.BAD, detail)
    return Check("transactions", Verdict.GOOD, f"transaction.max.timeout.ms is {longest_ms}")


def warn_of_unknown(run: str) -> Iterator[Check]:
    """Yield warnings about quotas and rights that no client request can look up."""
    yield _skip("quotas", "Kafka clients cannot look up quotas: see kafka-configs --describe --entity-type users")
    detail = f"no request shows in advance whether the login may use the transactional id tieredstore-restore-{run}"
    yield _skip("rights", detail)


def _partitions(source: SourceTopic, target: TargetTopic, *, is_rehashed: bool) -> Check:
    needed, count = source.partition_count, target.partition_count
    name = f"{target.topic} has {count} partitions"
    if is_rehashed:
        return Check("partitions", Verdict.GOOD, f"{name}, and keys are hashed again")
    if needed > count:
        detail = f"{name} in the target, but {needed} in the bucket: add partitions, or hash keys again (--partitioner)"
        return Check("partitions", Verdict.BAD, detail)
    if needed < count:
        return Check(
            "partitions",
            Verdict.WARN,
            f"{name}, but the bucket has {needed}: clients will send keys to other partitions",
        )
    return Check("partitions", Verdict.GOOD, f"{name}, as in the bucket")


def _sizes(source: SourceTopic, target: TargetTopic) -> Check:
    most = number_of(target.settings, "max.message.bytes")
    limit = f"{target.topic} takes messages of {human_bytes(most)} (max.message.bytes={most})"
    if source.scanned is None:
        return _skip("sizes", f"{limit}; only --dry-run reads all records and finds the largest")
    needed = source.scanned.largest + _BATCH_BYTES
    if needed > most:
        return Check("sizes", Verdict.BAD, f"{limit}, and the largest record needs {needed} B: raise the limit")
    return Check("sizes", Verdict.GOOD, f"{limit}; the largest record needs {needed} B")


def _times(source: SourceTopic, target: TargetTopic, now_ms: int) -> Check:
    times, name = source.times_ms, target.topic
    if times is None:
        return _skip("times", f"{name}: no times are known")
    earliest, latest = times
    before, after = _limit(target.settings, _BEFORE), _limit(target.settings, _AFTER)
    if before is not None and earliest < now_ms - before[1]:
        detail = (
            f"{name} refuses records that are too old ({before[0]}={before[1]}), but the oldest record is from "
            f"{utc_text(earliest)}: raise the limit for the restore"
        )
        return Check("times", Verdict.BAD, detail)
    if after is not None and latest > now_ms + after[1]:
        detail = (
            f"{name} refuses records of the future ({after[0]}={after[1]}), but the newest record is from "
            f"{utc_text(latest)}: raise the limit for the restore"
        )
        return Check("times", Verdict.BAD, detail)
    if target.has_append_times:
        detail = (
            f"{name} has LogAppendTime: the run sets CreateTime, and LogAppendTime again at its end. Restored records "
            "keep their times, and show them as CreateTime"
        )
        return Check("times", Verdict.WARN, detail)
    return Check("times", Verdict.GOOD, f"{name} takes records of all these times")


def _limit(settings: Mapping[str, str], names: tuple[str, str]) -> tuple[str, int] | None:
    """Return the name and the value of the limit that applies: the first setting in ``names`` that has a limit. Return
    None if both are unlimited."""
    for name in names:
        if name in settings and number_of(settings, name) < MAX_INT64:
            return name, number_of(settings, name)
    return None


def _replicas(target: TargetTopic) -> Check:
    needed, live = number_of(target.settings, "min.insync.replicas"), target.least_live
    detail = f"a partition of {target.topic} has {live} replicas in sync, and min.insync.replicas is {needed}"
    if live < max(needed, 1):
        return Check("replicas", Verdict.BAD, f"{detail}: bring the brokers back first")
    return Check("replicas", Verdict.GOOD, detail)


def _retention(source: SourceTopic, target: TargetTopic, *, is_rehashed: bool, now_ms: int) -> Check:
    settings = dict(target.settings)
    shown = ", ".join(f"{name}={settings[name]}" for name in ("retention.ms", "retention.bytes"))
    most = number_of(settings, "retention.bytes")
    deletes = "delete" in settings["cleanup.policy"] and max(most, number_of(settings, "retention.ms")) >= 0
    if source.is_backup and deletes:
        detail = (
            f"{target.topic} deletes old records ({shown}). A backup does not tell which records are old: "
            "set both to -1 for the restore"
        )
        return Check("retention", Verdict.BAD, detail)
    if is_rehashed and most >= 0:
        # If keys are hashed again, it is unknown which target partition a record goes to. So divide the target
        # partitions' total limit among the source partitions.
        settings["retention.bytes"] = str(most * target.partition_count // max(1, len(source.partitions)))
    deleted = {number: select_deleted(spans, settings, now_ms) for number, spans in source.partitions.items()}
    size = sum(span.segment.segment_size_in_bytes for spans in deleted.values() for span in spans)
    earliest = None if source.scanned is None else source.scanned.earliest_ms
    kept_ms = number_of(settings, "retention.ms") if deletes else -1
    if not size and earliest is not None and 0 <= kept_ms < now_ms - earliest:
        detail = (
            f"{target.topic} deletes old records ({shown}), and the oldest record is from {utc_text(earliest)}. The "
            "target's segments may begin elsewhere than the bucket's, so set retention.ms to -1 for the restore"
        )
        return Check("retention", Verdict.WARN, detail)
    if not size:
        return Check("retention", Verdict.GOOD, f"{target.topic} would delete nothing at once ({shown})")
    where = ", ".join(
        f"partition {number} up to offset {spans[-1].stop - 1}" for number, spans in sorted(deleted.items()) if spans
    )
    detail = (
        f"{target.topic} would delete {human_bytes(size)} at once ({shown}): {where:.300}. Raise retention for the "
        "restore, or leave the records out"
    )
    return Check("retention", Verdict.BAD, detail)


def _compaction(source: SourceTopic, target: TargetTopic) -> Check:
    policy = target.settings["cleanup.policy"]
    if "compact" not in policy:
        return Check("compaction", Verdict.GOOD, f"{target.topic} is not compacted")
    without = source.scanned.without_key if source.scanned is not None else 0
    refused = f", and would refuse {without} records without a key" if without else ""
    detail = (
        f"{target.topic} has cleanup.policy={policy}: it would delete all but the last record of each key{refused}. "
        "Set delete for the restore, and compact again when consumers have moved"
    )
    return Check("compaction", Verdict.BAD, detail)


def _rights(target: TargetTopic) -> Check:
    needed = {"DESCRIBE", "READ", "WRITE"}
    if target.has_append_times:
        needed.add("ALTER_CONFIGS")
    if target.operations is None:
        return _skip("rights", f"{target.topic}: the brokers do not tell what the login may do")
    if missing := sorted(needed - target.operations):
        return Check("rights", Verdict.BAD, f"the login may not {', '.join(missing)} {target.topic}: allow it")
    return Check("rights", Verdict.GOOD, f"the login may {', '.join(sorted(needed))} {target.topic}")


def _skip(check: str, detail: str) -> Check:
    return Check(check, Verdict.SKIPPED, detail)


RECORDS_PER_S: Final = 100_000
BYTES_PER_S: Final = 20 * 1024 * 1024
"""Two assumed limits on the speed of a run: records per second, and bytes of keys, values and headers per second. A
test measured 20 MB per second with records of 500 bytes. One broker and the run shared two busy cores.
"""

_RECORD_BYTES: Final = 40
"""Maximum bytes of a record besides key, value and headers: lengths, time and offset."""
_HEADER_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of an examination. ``records`` and ``size`` count the scanned records and their bytes."""

    checks: Sequence[Check]
    records: int
    size: int
    missing: Mapping[str, NewTopic]
    """The missing target topics, with the settings for creating them."""
    losses: Sequence[tuple[TopicPartition, OffsetSpan]] = ()
    """Of the offsets that are still to restore, those that the source has lost. Known only if the records were scanned.
    The ends are exclusive."""

    @property
    def expected_s(self) -> float:
        """The expected duration of the run in seconds, at the assumed speed."""
        return max(self.records / RECORDS_PER_S, self.size / BYTES_PER_S)

    def refuse(self) -> None:
        """Raise ConfigError if the target would refuse records or delete them at once. The message names all failed
        checks.

        Raise ResourceNotFoundError for a missing topic.
        """
        bad = [check for check in self.checks if check.outcome is Verdict.BAD]
        kind = ResourceNotFoundError if any(check.check == "topic" for check in bad) else ConfigError
        if bad:
            raise kind("; ".join(check.detail for check in bad))


def examine(
    topics: SourceTopics, properties: Mapping[str, str], *, new: NewTopics | None = None, scan: bool = False
) -> DryRun:
    """Check whether the target's topics can take the records that a run of ``restore produce`` would restore. With
    ``scan``, read the records that the run has not restored yet, and check whether the run could begin or continue.

    A missing topic is no obstacle if there is ``new``, which returns the settings for creating it.

    Raise the brokers' errors and, with ``scan``, DataLossError for missing offsets.
    """
    options, is_rehashed, now_ms = topics.options, topics.options.partitioner != "keep", int(time.time() * 1000)
    checks = [Check("source", Verdict.WARN, sentence) for sentence in topics.lacks]
    missing: dict[str, NewTopic] = {}
    losses: Sequence[tuple[TopicPartition, OffsetSpan]] = ()
    with TargetCluster(properties) as cluster:
        ranges = topics.ranges()
        spans, scanned = topics.spans(ranges), dict[str, ScannedRecords]()
        if scan:
            found_run, left = _check_run(topics, cluster, properties)
            checks += found_run
            topics.check(left)
            losses = topics.losses_in(left)
            scanned = dict.fromkeys(options.topics, ScannedRecords()) | _scan(topics.batches(left))
        for topic, name in options.topics.items():
            partitions = {number: each for (of, number), each in spans.items() if of == topic}
            source = SourceTopic(topic, partitions, scanned.get(topic), is_backup=topics.is_backup)
            if (target := cluster.target(name)) is not None:
                checks += check_target(source, target, is_rehashed=is_rehashed, now_ms=now_ms)
                continue
            created = None if new is None else new(topic, topics.topic_ids[topic])
            if created is not None:
                # If the caller gives no number of partitions, the topic gets as many partitions as in the bucket.
                created = replace(created, partition_count=created.partition_count or source.partition_count)
                missing[name] = created
                # All other settings come from the cluster's defaults. They are checked after the topic is created.
                planned = TargetTopic(name, created.partition_count or 0, 0, _KEEP_ALL | created.settings, {}, None)
                found = (
                    _retention(source, planned, is_rehashed=is_rehashed, now_ms=now_ms),
                    _compaction(source, planned),
                )
                checks += [check for check in found if check.outcome is Verdict.BAD]
            checks.append(_check_missing(name, created, source.partition_count, is_rehashed=is_rehashed))
        needed_ms = int(properties.get("transaction.timeout.ms", TRANSACTION_MS))
        checks += [check_transactions(needed_ms, cluster.longest_transaction_ms()), *warn_of_unknown(options.run)]
    records, size = sum(each.records for each in scanned.values()), sum(each.size for each in scanned.values())
    return DryRun(checks, records, size, missing, losses)


def _check_run(
    topics: SourceTopics, cluster: TargetCluster, properties: Mapping[str, str]
) -> tuple[list[Check], Mapping[TopicPartition, SourceRange]]:
    """Check whether the run can begin or continue. Also return the offsets that it would restore."""
    run = topics.options.run
    ranges: Mapping[TopicPartition, SourceRange] = topics.ranges()
    try:
        with LiveReader(properties, isolation="read_committed") as reader:
            position, targets = _position(topics, cluster, reader, settles_s=_LOOK_S)
            if position is not None:
                ranges = position.sources
                next_offsets(topics, reader, targets, position)
    except BrokerUnavailableError as error:
        return [_skip("run", f"not all is known of the run {run}: {error}")], ranges
    except (ConfigError, BrokerDeniedError) as error:
        return [Check("run", Verdict.BAD, str(error))], ranges
    if position is None or not position.records:
        return [], ranges
    done = f"{position.records:,} records"
    if position.is_finished:
        detail = f"the run {run} is finished, with {done}: nothing is left to restore"
        return [Check("run", Verdict.WARN, detail)], ranges
    return [Check("run", Verdict.GOOD, f"the run {run} would continue after {done}")], ranges


def _position(
    topics: SourceTopics, cluster: TargetCluster, reader: LiveReader, *, settles_s: float
) -> tuple[RunPosition | None, Sequence[TargetTopic]]:
    """Return the position from which the run would begin or continue, and the target topics. The position is None if
    target topics are missing. Raise ConfigError if the run would refuse to begin or continue."""
    options, position = topics.options, None
    if (control := cluster.target(CONTROL_TOPIC)) is not None:
        check_control(control)
        position = ControlTopic(reader, options.run, settles_s=settles_s).newest_position()
    found = [cluster.target(topic) for topic in options.topics.values()]
    targets = [target for target in found if target is not None]
    if len(targets) < len(found) and position is not None:
        raise ConfigError(
            f"a target topic was deleted after the run {options.run} began: restore by a run of another name (--run)"
        )
    if position is not None:
        check_same(topics, position, targets)
        check_stops(topics, position)
        return position, targets
    if len(targets) == len(found):
        return first_position(topics, reader, targets), targets
    check_new(topics)
    return None, targets


def prepare_target(topics: SourceTopics, properties: Mapping[str, str], new: NewTopics | None) -> list[str]:
    """Create missing topics with the settings that ``new`` returns, and return their names.

    Raise ConfigError if the target would refuse records or delete them at once. Raise BrokerError if a topic cannot be
    created.
    """
    found = examine(topics, properties, new=new)
    found.refuse()
    if found.missing:
        with (
            TargetCluster(properties) as cluster,
            LiveReader(properties, isolation="read_committed") as reader,
        ):
            # Create no topic for a run that would then be refused.
            _position(topics, cluster, reader, settles_s=SETTLES_S)
            for topic, created in found.missing.items():
                cluster.create(topic, created)
        examine(topics, properties).refuse()
    return sorted(found.missing)


def _scan(batches: Iterable[SourceBatch]) -> dict[str, ScannedRecords]:
    """Read all records, and return the scan's result by topic."""
    scanned: dict[str, ScannedRecords] = {}
    for batch in batches:
        before = scanned.get(batch.where[0], ScannedRecords())
        scanned[batch.where[0]] = before if batch.records is None else add_records(before, batch.records)
    return scanned


def add_records(before: ScannedRecords, records: pa.RecordBatch) -> ScannedRecords:
    """Return the result of a scan, extended by ``records``: a record batch with the columns of a source's batches."""
    keys, values = records.column("key"), records.column("value")
    sizes = pc.add(*(pc.fill_null(pc.binary_length(each), 0) for each in (keys, values)))
    headers = header_lists(records.column("headers"))
    if any(headers):
        sizes = pc.add(sizes, pa.array([_size_of(each) for each in headers], sizes.type))
    times = int64_values(records, "timestamp")
    # -1 means that a record has no time. Brokers judge other negative times like times of long ago.
    known = [time for time in (*times, before.earliest_ms, before.latest_ms) if time is not None and time != -1]
    return ScannedRecords(
        before.records + len(keys),
        before.size + int(pc.sum(sizes).as_py()),
        max(before.largest, int(pc.max(sizes).as_py()) + _RECORD_BYTES),
        min(known, default=None),
        max(known, default=None),
        before.without_key + int(keys.null_count),
        before.at_epoch + list(times).count(0),
    )


def _size_of(headers: Headers | None) -> int:
    return sum(_HEADER_BYTES + len(name.encode()) + len(value or b"") for name, value in headers or ())


def _check_missing(name: str, new: NewTopic | None, needed: int, *, is_rehashed: bool) -> Check:
    if new is None:
        detail = f"there is no topic {name} in the cluster: create it, or give --create-with"
        return Check("topic", Verdict.BAD, detail)
    count = new.partition_count or 0
    if count < needed and not is_rehashed:
        return Check(
            "partitions",
            Verdict.BAD,
            f"{name} would get {count} partitions, but the bucket has {needed}: correct the number",
        )
    settings = ", ".join(f"{name}={value}" for name, value in new.settings.items()) or "no settings of its own"
    return Check("topic", Verdict.WARN, f"{name} does not exist: the run creates {count} partitions with {settings}")
