"""Checks of a target topic before anything is produced: what a broker would refuse, and what it would delete at once.

Separate from ``dry_run``, which gathers the facts: the functions here make no requests. Without a scan of the source's
records, the bucket's manifests tell sizes of segments and their latest times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.limits import MAX_INT64
from tieredstore.model import human_bytes, utc_text
from tieredstore.ops.doctor.checkup import Check, Verdict
from tieredstore.restore.retention import deleted_spans, number_of

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Span
    from tieredstore.restore.produce.target import TargetTopic

_BEFORE: Final = ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms")
_AFTER: Final = ("message.timestamp.after.max.ms", "message.timestamp.difference.max.ms")
_BATCH_BYTES: Final = 61
"""The header of a batch of one record, which counts for ``max.message.bytes``."""


@dataclass(frozen=True, slots=True)
class ScannedRecords:
    """The findings of a scan of all records of a topic. ``largest`` is the size in bytes of one record, uncompressed.

    Times are in milliseconds, and None without a record.
    """

    records: int = 0
    size: int = 0
    largest: int = 0
    earliest_ms: int | None = None
    latest_ms: int | None = None
    without_key: int = 0
    at_epoch: int = 0
    """Records with the time 0, which librdkafka cannot send: they get the time 1."""


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """The segments that a restore reads of a topic, by partition, and a scan of their records if there was one.

    A restore to a time reads them up to the cut, where it stops.
    """

    topic: str
    partitions: Mapping[int, Sequence[Span]]
    scanned: ScannedRecords | None = None
    is_backup: bool = False
    """True for partitions of a backup: they have no segments, so sizes and times are unknown in advance."""

    @property
    def partition_count(self) -> int:
        """The number of partitions in the bucket, by the highest one."""
        return max(self.partitions, default=-1) + 1

    @property
    def size(self) -> int:
        """The bytes of the records; without a scan, those of the segments."""
        segments = (span.segment for spans in self.partitions.values() for span in spans)
        return self.scanned.size if self.scanned else sum(each.segment_size_in_bytes for each in segments)

    @property
    def records(self) -> int:
        """The number of records; without a scan, that of the offsets, which is at least as large."""
        spans = (span for spans in self.partitions.values() for span in spans)
        return self.scanned.records if self.scanned else sum(span.stop - span.start for span in spans)

    @property
    def times_ms(self) -> tuple[int, int] | None:
        """A time of a record that is as early as known, and the latest time; None if they are not known."""
        if self.scanned is not None:
            first, last = self.scanned.earliest_ms, self.scanned.latest_ms
            return None if first is None or last is None else (first, last)
        latest = [span.segment.max_timestamp_ms for spans in self.partitions.values() for span in spans]
        known = [time for time in latest if time >= 0]
        return (min(known), max(known)) if known else None


def check_target(source: SourceTopic, target: TargetTopic, *, is_rehashed: bool, now_ms: int) -> Iterator[Check]:
    """Yield a check of each thing that may go wrong in the target of one topic."""
    yield _partitions(source, target, is_rehashed=is_rehashed)
    yield _sizes(source, target)
    yield _times(source, target, now_ms)
    yield _replicas(target)
    yield _retention(source, target, is_rehashed=is_rehashed, now_ms=now_ms)
    yield _compaction(source, target)
    yield _rights(target)
    if source.scanned is not None and source.scanned.at_epoch:
        detail = (
            f"{source.scanned.at_epoch} records of {source.topic} have the time 0, and get 1 ms: 0 is the client's now"
        )
        yield Check("times", Verdict.WARN, detail)


def check_transactions(needed_ms: int, longest_ms: int | None) -> Check:
    """Check that the brokers allow transactions as long as the run's."""
    if longest_ms is None:
        return _skipped("transactions", "transaction.max.timeout.ms: the login may not see the brokers' settings")
    if longest_ms < needed_ms:
        detail = (
            f"transaction.max.timeout.ms is {longest_ms}, and the run needs {needed_ms}: raise it, or give a shorter "
            "transaction.timeout.ms"
        )
        return Check("transactions", Verdict.BAD, detail)
    return Check("transactions", Verdict.GOOD, f"transaction.max.timeout.ms is {longest_ms}")


def unknown_to_clients(run: str) -> Iterator[Check]:
    """Yield what no request of the client tells."""
    yield _skipped("quotas", "the client cannot ask for them: see kafka-configs --describe --entity-type users")
    detail = f"the right to use the transactional id tieredstore-restore-{run}: no request tells it in advance"
    yield _skipped("rights", detail)


def _partitions(source: SourceTopic, target: TargetTopic, *, is_rehashed: bool) -> Check:
    needed, count = source.partition_count, target.partition_count
    name = f"{target.topic} has {count} partitions"
    if is_rehashed:
        return Check("partitions", Verdict.GOOD, f"{name}, and keys are hashed anew")
    if needed > count:
        detail = f"{name} in the target, and {needed} in the bucket: add partitions, or hash keys anew (--partitioner)"
        return Check("partitions", Verdict.BAD, detail)
    if needed < count:
        return Check("partitions", Verdict.WARN, f"{name}, and the bucket {needed}: clients will place keys otherwise")
    return Check("partitions", Verdict.GOOD, f"{name}, as the bucket")


def _sizes(source: SourceTopic, target: TargetTopic) -> Check:
    most = number_of(target.settings, "max.message.bytes")
    limit = f"{target.topic} takes messages of {human_bytes(most)} (max.message.bytes={most})"
    if source.scanned is None:
        return _skipped("sizes", f"{limit}; the largest record is not known without reading all (--dry-run)")
    needed = source.scanned.largest + _BATCH_BYTES
    if needed > most:
        return Check("sizes", Verdict.BAD, f"{limit}, and the largest record needs {needed} B: raise the limit")
    return Check("sizes", Verdict.GOOD, f"{limit}; the largest record needs {needed} B")


def _times(source: SourceTopic, target: TargetTopic, now_ms: int) -> Check:
    times, name = source.times_ms, target.topic
    if times is None:
        return _skipped("times", f"{name}: no times are known")
    earliest, latest = times
    before, after = _limit(target.settings, _BEFORE), _limit(target.settings, _AFTER)
    if before is not None and earliest < now_ms - before[1]:
        detail = (
            f"{name} refuses records that are too old ({before[0]}={before[1]}), and there are some from "
            f"{utc_text(earliest)}: raise it for the restore"
        )
        return Check("times", Verdict.BAD, detail)
    if after is not None and latest > now_ms + after[1]:
        detail = (
            f"{name} refuses records of the future ({after[0]}={after[1]}), and there are some from "
            f"{utc_text(latest)}: raise it for the restore"
        )
        return Check("times", Verdict.BAD, detail)
    if target.settings.get("message.timestamp.type") == "LogAppendTime":
        detail = (
            f"{name} has LogAppendTime: the run sets CreateTime, and LogAppendTime again at its end. Restored records "
            "keep their times, and show them as CreateTime"
        )
        return Check("times", Verdict.WARN, detail)
    return Check("times", Verdict.GOOD, f"{name} takes records of all these times")


def _limit(settings: Mapping[str, str], names: tuple[str, str]) -> tuple[str, int] | None:
    """Return the limit in force, and its name. The older name counts where the newer one is unlimited."""
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
            f"{target.topic} deletes old records ({shown}), and a backup does not tell which: set both to -1 for the "
            "restore"
        )
        return Check("retention", Verdict.BAD, detail)
    if is_rehashed and most >= 0:
        # All target partitions together have room for the records of all source partitions.
        settings["retention.bytes"] = str(most * target.partition_count // max(1, len(source.partitions)))
    deleted = {number: deleted_spans(spans, settings, now_ms) for number, spans in source.partitions.items()}
    size = sum(span.segment.segment_size_in_bytes for spans in deleted.values() for span in spans)
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
    if target.settings.get("message.timestamp.type") == "LogAppendTime":
        needed.add("ALTER_CONFIGS")
    if target.operations is None:
        return _skipped("rights", f"{target.topic}: the brokers do not tell what the login may do")
    if missing := sorted(needed - target.operations):
        return Check("rights", Verdict.BAD, f"the login may not {', '.join(missing)} {target.topic}: allow it")
    return Check("rights", Verdict.GOOD, f"the login may {', '.join(sorted(needed))} {target.topic}")


def _skipped(check: str, detail: str) -> Check:
    return Check(check, Verdict.SKIPPED, detail)
