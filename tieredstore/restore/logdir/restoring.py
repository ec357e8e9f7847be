"""Restore of one broker's log directories from a bucket. This module chooses the partitions and their order, and
reports each segment's outcome.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from tieredstore.api.outcomes import Outcome, Status
from tieredstore.catalog.lineage import Span
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.kafka.checkpoints import parse_broker_id, parse_cluster_id, parse_partition_metadata
from tieredstore.kafka.logdir import PARTITION_METADATA
from tieredstore.model import AtTime, TopicIdPartition, check_offset, human_bytes
from tieredstore.restore.logdir.log_directory import LogDirectory, check_clean, disk_faults, unfinished_work
from tieredstore.restore.logdir.partition_restore import (
    AbortMarkers,
    Part,
    PartitionRestore,
    ProducerStates,
    empty,
    logs_in,
)
from tieredstore.restore.logdir.planning import OpenTransactions, find_open_at_end, log_size, plan_spans
from tieredstore.versions import fault_in

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager
    from tieredstore.restore.logdir.prepared import PreparedPartition, PreparedRestore, PreparedTopic

_MARGIN: Final = 64 << 20
"""Bytes that must stay free on a disk after the logs are written, for indexes, checkpoints and the broker's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """The part of the logs to restore, and the options of the restore."""

    start: int | AtTime | None = None
    stop: int | AtTime | None = None
    producer_states: ProducerStates = "drop"
    open_transactions: OpenTransactions = "fail"
    replicas: bool = False


def restore_logs(
    source: RemoteStorageManager,
    log_dirs: Sequence[Path],
    prepared: PreparedRestore,
    options: RestoreOptions,
    *,
    dry_run: bool = False,
) -> Generator[Outcome]:
    """Write the partitions of one broker into its log directories. Yield the outcome of each segment.

    All checks come before the first write. From the first write until the restore is complete, the broker cannot start.
    If the process is killed, the same call completes the work. A call after a complete restore changes nothing.

    Raise ConfigError if a log directory or a partition is not as prepared. Also raise ConfigError if none of these
    directories has a partition of the broker.
    """
    _check_window(prepared, options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(disk_faults(log_dirs[0]))
        broker = _broker_of(log_dirs, prepared)
        work = _work(prepared, options)
        paths = dict.fromkeys(log_dirs)
        directories = [] if dry_run else [stack.enter_context(LogDirectory(path)) for path in paths]
        targets = [_Target(path, unfinished_work(path)) for path in paths]
        # If a restore is unfinished in one of the directories, the broker was shut down cleanly before.
        if not dry_run and all(target.work is None for target in targets):
            check_clean(paths)
        for target in targets:
            _check_work(target, prepared)
        for topic in prepared.topics:
            yield from _plan_topic(source, targets, topic, broker, options)
        plans = [plan for target in targets for plan in target.plans]
        _check_space(plans)
        if dry_run:
            yield from (_outcome(plan, part, "restored", "planned") for plan in plans for part in plan.parts)
            return
        pairs = list(zip(targets, directories, strict=True))
        # Begin all directories first, and finish all directories at the end. Otherwise, the broker might start with one
        # directory restored and another still empty.
        for target, directory in pairs:
            with disk_faults(target.path):
                if target.work not in (None, work):
                    _discard(directory, prepared, broker)
                if plans:
                    directory.begin(work)
        for plan in plans:
            with disk_faults(plan.folder):
                written = plan.write(source, options.producer_states)
                yield from (_outcome(plan, part, "restored", "done") for part in written)
        _finish(pairs)


def _finish(pairs: Sequence[tuple[_Target, LogDirectory]]) -> None:
    for target, directory in pairs:
        if target.plans:
            bounds = {(one.partition.topic, one.partition.partition): one.bounds for one in target.plans}
            with disk_faults(target.path):
                directory.checkpoint(bounds)
    for _, directory in pairs:
        directory.finish()


@dataclass(slots=True)
class _Target:
    """A log directory, and the partitions to restore into it. ``work`` describes an unfinished earlier restore, or is
    None."""

    path: Path
    work: bytes | None
    plans: list[PartitionRestore] = field(default_factory=list[PartitionRestore])


def _check_window(prepared: PreparedRestore, options: RestoreOptions) -> None:
    """Raise ConfigError if the start or stop offset leaves nothing to restore in any log."""
    logs = {
        f"{topic.topic}-{number}": one
        for topic in prepared.topics
        for number, one in enumerate(topic.partitions)
        if one.start < one.stop
    }
    start, stop = options.start, options.stop
    if not logs:
        return
    for offset in (start, stop):
        if isinstance(offset, int):
            check_offset(offset, {name: log.stop for name, log in logs.items()})
    if isinstance(start, int) and all(start >= log.stop for log in logs.values()):
        name, log = max(logs.items(), key=lambda item: item[1].stop)
        raise ConfigError(
            f"--from {start} leaves nothing to restore: {name} ends at {log.stop}, and no other log ends later"
        )
    if isinstance(stop, int) and all(stop <= log.start for log in logs.values()):
        name, log = min(logs.items(), key=lambda item: item[1].start)
        raise ConfigError(
            f"--to {stop} leaves nothing to restore: {name} begins at {log.start}, and no other log begins earlier"
        )


def _report_omitted(where: TopicIdPartition, log: PreparedPartition, spans: Sequence[Span]) -> Iterator[Outcome]:
    """Yield outcomes for the offsets of a log before and after the spans, which are not restored."""
    start, stop = (spans[0].start, spans[-1].stop) if spans else (log.stop, log.stop)
    for first, end in ((log.start, start), (stop, log.stop)):
        if first < end:
            yield Outcome(
                action="restore", status="kept", code="left_out", base_offset=first, last_offset=end - 1,
                reason="left out by --from, --to or --open-transactions cut",
            ).of(where)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Work:
    topics: dict[str, str]
    options: str


_WORK: Final = TypeAdapter(_Work)


def _work(prepared: PreparedRestore, options: RestoreOptions) -> bytes:
    """Return a description of this restore: the ids of its topics, and its options."""
    topics = {topic.topic_id: topic.topic for topic in prepared.topics}
    return json.dumps({"topics": topics, "options": str(options)}).encode()


def _check_work(target: _Target, prepared: PreparedRestore) -> None:
    """Raise ConfigError if the directory has an unfinished restore of other topics, which would look finished after
    this restore."""
    if target.work is None:
        return
    try:
        topics = _WORK.validate_json(target.work, strict=True).topics
    except ValidationError as error:
        raise ConfigError(
            f"{target.path} has an unfinished restore, but its description is damaged ({fault_in(error)}): restore "
            "into another log directory"
        ) from error
    if topics.keys() != {topic.topic_id for topic in prepared.topics}:
        names = ", ".join(topics.values())
        raise ConfigError(
            f"{target.path} has an unfinished restore of {names:.200}: complete it first, with its own --plan"
        )


def _discard(directory: LogDirectory, prepared: PreparedRestore, broker: int) -> None:
    """Remove the files of an unfinished restore of the same topics. That restore had other options, for example other
    partitions or offsets.
    """
    emptied: dict[tuple[str, int], tuple[int, int]] = {}
    for topic in prepared.topics:
        for number, log in enumerate(topic.partitions):
            folder = directory.path / f"{topic.topic}-{number}"
            # A partition of another broker, or without a log in the bucket, was not restored. Keep its records, because
            # a producer has written them.
            if log.start < log.stop and broker in log.replicas and folder.exists():
                _check_id(folder, topic)
                empty(folder)
                emptied[topic.topic, number] = (0, 0)
    directory.checkpoint(emptied)


def _broker_of(log_dirs: Sequence[Path], prepared: PreparedRestore) -> int:
    """Return the id of the broker to which all these directories belong."""
    brokers = {log_dir: _owner_of(log_dir, prepared) for log_dir in log_dirs}
    if len({*brokers.values()}) > 1:
        named = ", ".join(f"{path} ({broker})" for path, broker in brokers.items())
        raise ConfigError(f"the log directories belong to several brokers: {named}; restore one broker at a time")
    return brokers[log_dirs[0]]


def _owner_of(log_dir: Path, prepared: PreparedRestore) -> int:
    path = log_dir / "meta.properties"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{log_dir} has no meta.properties: it is not a log directory that a broker has used"
        ) from None
    try:
        cluster_id, broker = parse_cluster_id(raw), parse_broker_id(raw)
    except CorruptDataError as error:
        raise CorruptDataError(f"{log_dir}: {error}") from None
    if cluster_id != prepared.cluster_id:
        raise ConfigError(
            f"{path} belongs to another cluster; the restore was prepared for the cluster {prepared.cluster_id}"
        )
    if broker is None:
        raise ConfigError(f"{path} names no broker (node.id)")
    return broker


def _plan_topic(
    source: RemoteStorageManager, targets: Sequence[_Target], topic: PreparedTopic, broker: int, options: RestoreOptions
) -> Iterator[Outcome]:
    """Add a plan for each partition of the topic that this broker has. Yield outcomes for the parts that are already
    restored or left out."""
    catalog = load_catalog(source, topic=topic.topic, topic_id=topic.incarnation)
    for number, log in enumerate(topic.partitions):
        if log.start == log.stop:
            continue
        name = f"{topic.topic}-{number}"
        if len(log.replicas) > 1 and not options.replicas:
            raise ConfigError(
                f"{name} has {len(log.replicas)} replicas: if an empty replica becomes leader, the others are "
                "truncated. Prepare the topic with one replica and add replicas later, or restore each replica "
                "(--replicas)"
            )
        if broker not in log.replicas:
            continue
        target = _target_of(name, targets, broker)
        _check_id(target.path / name, topic)
        lineage = catalog.lineage(topic.topic, number, topic.incarnation)
        spans = plan_spans(
            source, lineage, (log.start, log.stop), options.start, options.stop,
            open_transactions=options.open_transactions,
        )  # fmt: skip
        yield from _report_omitted(lineage.partition, log, spans)
        sizes = {span.start: log_size(source, span) for span in spans}
        is_aborting = options.open_transactions == "abort"
        opened = find_open_at_end(source, spans) if is_aborting else ()
        markers = AbortMarkers(spans[-1].stop if spans else log.stop, opened)
        plan = PartitionRestore(lineage.partition, spans, sizes, target.path / name, markers)
        # ``is_complete`` refuses a folder with another log. Call it even if nothing is restored into the folder,
        # because a later call of ``_discard`` would delete the other log.
        if target.work is None and plan.is_complete():
            plan.check_producers(source, options.producer_states)
            yield from (_outcome(plan, part, "there", "kept") for part in plan.parts)
        elif spans:
            target.plans.append(plan)


def _target_of(name: str, targets: Sequence[_Target], broker: int) -> _Target:
    for target in targets:
        if (target.path / name).exists():
            return target
    looked = ", ".join(str(target.path) for target in targets)
    raise ConfigError(
        f"{name} of broker {broker} has no folder in {looked}: name all log directories of the broker (log.dirs)"
    )


def _check_id(folder: Path, topic: PreparedTopic) -> None:
    try:
        found = parse_partition_metadata((folder / PARTITION_METADATA).read_bytes())
    except FileNotFoundError:
        return
    except CorruptDataError as error:
        raise CorruptDataError(f"{folder}: {error}") from None
    if str(found) != topic.topic_id:
        raise ConfigError(
            f"{folder} has the topic id {found}, but the restore was prepared for {topic.topic_id}: prepare again"
        )


def _check_space(plans: Sequence[PartitionRestore]) -> None:
    by_disk: dict[int, list[PartitionRestore]] = {}
    for plan in plans:
        by_disk.setdefault(plan.folder.stat().st_dev, []).append(plan)
    for of_disk in by_disk.values():
        missing = (sum(plan.logs.values()) - sum(logs_in(plan.folder).values()) for plan in of_disk)
        needed, log_dir = max(0, sum(missing)), of_disk[0].folder.parent
        free = shutil.disk_usage(log_dir).free
        if needed + _MARGIN > free:
            raise ConfigError(
                f"the logs take {human_bytes(needed)}, but the disk of {log_dir} has {human_bytes(free)} free: "
                "free disk space"
            )


def _outcome(plan: PartitionRestore, part: Part, code: str, status: Status) -> Outcome:
    outcome = Outcome(action="restore", status=status, code=code).of(plan.partition)
    if isinstance(part, Span):
        size = plan.sizes[part.start]
        return replace(outcome, base_offset=part.start, last_offset=part.stop - 1, size=size, stored_size=size)
    offset = plan.markers.start + plan.markers.opened.index(part)
    aborted = (
        f"abort marker of producer {part.producer_id}, in a transaction since offset {part.current_txn_first_offset}"
    )
    return replace(
        outcome, code="aborted" if code == "restored" else code, base_offset=offset, last_offset=offset, reason=aborted,
    )  # fmt: skip
