"""Log directories restored from a bucket: which partitions, in which order, and what happened to each segment.

| state | a partition's folder |
|---|---|
| empty | as the broker made it: a log without a byte |
| drafted | has files that end in ``.restore``, which brokers ignore |
| complete | has all files under their names |

Files are renamed one by one: of a segment the log last, and ``leader-epoch-checkpoint`` after all segments. The marker
of the log directory keeps a broker away meanwhile, so each run begins where the last one ended.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tieredstore.api.outcomes import Outcome, Status
from tieredstore.catalog.lineage import Span
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.kafka.checkpoints import (
    format_leader_epochs,
    format_producer_snapshot,
    parse_broker_id,
    parse_partition_metadata,
)
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA
from tieredstore.model import AtTime, TopicIdPartition, check_offset, human_bytes
from tieredstore.process.whole_files import sync_folder
from tieredstore.restore.logdir.abort_markers import AbortMarkers
from tieredstore.restore.logdir.log_directory import (
    LogDirectory,
    disk_faults,
    replace_file,
    take_owner,
    unfinished_work,
)
from tieredstore.restore.logdir.planning import OpenTransactions, log_size, plan_spans, producers_at_end
from tieredstore.restore.logdir.producers import Producers
from tieredstore.restore.logdir.segment_copy import DRAFT, copy_span, draft_files

if TYPE_CHECKING:
    from tieredstore.kafka.checkpoints import ProducerState
    from tieredstore.remote.source import SegmentSource
    from tieredstore.restore.logdir.prepared import PreparedRestore, PreparedTopic

_LOG: Final = re.compile(r"(\d{20})\.log")
_SEGMENT_FILE: Final = re.compile(r"\d{20}\.")
_SUFFIXES: Final = ("index", "timeindex", "log")
_MARGIN: Final = 64 << 20
"""Bytes of a disk that stay free besides the logs: for indexes, checkpoints and the broker's start."""

Part: TypeAlias = "Span | ProducerState"
"""A segment to restore, or a producer whose transaction an abort marker ends."""

ProducerStates: TypeAlias = Literal["keep", "drop"]
"""What becomes of the broker's state of idempotent producers.

``keep`` is for the cluster that the segments come from. In another one a new producer may get an id and an epoch that
the state knows, and its first batch would be acknowledged as a duplicate and lost.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """Which part of the logs is restored, and how."""

    start: int | AtTime | None = None
    stop: int | AtTime | None = None
    producer_states: ProducerStates = "drop"
    open_transactions: OpenTransactions = "fail"
    replicas: bool = False


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    """The restore of one partition: copies ``spans`` of segments into ``folder``, which the broker made with the topic.

    ``sizes`` has the size of each span's log, in bytes. ``markers`` end the transactions that are open after them.
    """

    partition: TopicIdPartition
    spans: tuple[Span, ...]
    sizes: tuple[int, ...]
    folder: Path
    markers: AbortMarkers

    @property
    def start_offset(self) -> int:
        """The first offset of the restored log."""
        return self.spans[0].start

    @property
    def bounds(self) -> tuple[int, int]:
        """The first offset, and the one after the last."""
        return self.start_offset, self.markers.stop

    @property
    def parts(self) -> tuple[Part, ...]:
        """The segments, and the producers whose transactions are aborted after them."""
        return (*self.spans, *self.markers.opened)

    @property
    def logs(self) -> dict[int, int]:
        """The sizes of the logs by their base offsets, without empty ones."""
        sizes = dict(zip((span.start for span in self.spans), self.sizes, strict=True))
        return {start: size for start, size in (*sizes.items(), (self.markers.start, len(self.markers.log))) if size}

    def is_complete(self) -> bool:
        """Return True if the folder has the whole log already; raise ConfigError if it has another one."""
        found = _logs(self.folder)
        if found and found != self.logs:
            held = human_bytes(sum(found.values()))
            raise ConfigError(f"{self.folder} has another log already ({held}): restore into a new topic")
        return bool(found)

    def write(self, source: SegmentSource, producer_states: ProducerStates) -> Iterator[Part]:
        """Write the segments that are missing, then the leader epochs; yield each of :attr:`parts` once it is there.

        An empty segment follows them, as after a roll: compaction may have removed the last batches of the log, and
        its end is the end all the same.
        """
        logs, there = self.logs, _logs(self.folder)
        if not there.items() <= logs.items():
            # The bucket has changed since this restore began.
            empty(self.folder)
            there = {}
        for path in self.folder.glob(f"*{DRAFT}"):
            path.unlink()
        producers = Producers()
        for span in self.spans:
            if producer_states == "keep":
                producers = producers_at_end(source, [span], producers.states)
            if span.start not in there:
                self._place(copy_span(source, span, self.folder, format_producer_snapshot(producers.states)))
            yield span
        if self.markers.opened:
            if producer_states == "keep":
                self.markers.end_transactions(producers)
            contents = {**self.markers.indexes(), "snapshot": format_producer_snapshot(producers.states)}
            contents["log"] = self.markers.log
            self._place(draft_files(self.folder, self.markers.start, self.markers.stop, contents))
            yield from self.markers.opened
        self._close()

    def _place(self, drafts: Mapping[Path, Path]) -> None:
        """Give the files of a segment their names, in order."""
        for draft, path in drafts.items():
            take_owner(draft, self.folder)
            draft.replace(path)
        sync_folder(self.folder)

    def _close(self) -> None:
        """Write the leader epochs, and an empty segment at the end; remove the empty one that the broker made."""
        epochs = format_leader_epochs(((0, self.start_offset),))
        replace_file(self.folder / LEADER_EPOCH_CHECKPOINT, epochs, like=self.folder)
        if self.start_offset:
            for suffix in _SUFFIXES:
                (self.folder / f"{0:020d}.{suffix}").unlink(missing_ok=True)
        for suffix in _SUFFIXES:
            replace_file(self.folder / f"{self.bounds[1]:020d}.{suffix}", b"", like=self.folder)
        sync_folder(self.folder)


def empty(folder: Path) -> None:
    """Remove the log that an unfinished restore has written to a partition's folder; a broker makes a new one."""
    for path in folder.iterdir():
        if _SEGMENT_FILE.match(path.name):
            path.unlink()
    replace_file(folder / LEADER_EPOCH_CHECKPOINT, format_leader_epochs(()), like=folder)


def _logs(folder: Path) -> dict[int, int]:
    """Return the sizes of the logs in a folder that are not empty, by their base offsets."""
    logs = ((int(match[1]), path) for path in folder.iterdir() if (match := _LOG.fullmatch(path.name)))
    return {start: size for start, path in logs if (size := path.stat().st_size)}


def restore_logs(
    source: SegmentSource, log_dir: Path, prepared: PreparedRestore, options: RestoreOptions, *, dry_run: bool = False
) -> Generator[Outcome]:
    """Write the partitions of one broker's log directory; yield the outcome of each segment.

    Everything is checked before the first write. From then on until the end the broker cannot start. If this is
    killed, the same call completes the work; repeated, it changes nothing. Raise ConfigError for a log directory or a
    partition that is not as prepared.
    """
    _check_window(prepared, options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(disk_faults(log_dir))
        broker = _broker_of(log_dir, prepared)
        directory = None if dry_run else stack.enter_context(LogDirectory(log_dir))
        work, before = _work(prepared, options), unfinished_work(log_dir)
        _check_work(log_dir, prepared, before)
        plans: list[PartitionRestore] = []
        for topic in prepared.topics:
            own = list(_plan_topic(source, log_dir, topic, broker, options))
            yield from _left_out(topic, broker, {plan.partition.partition: plan.spans for plan in own})
            for plan in own:
                if plan.folder.exists() and before is None and plan.is_complete():
                    yield from (_outcome(plan, part, "there", "kept") for part in plan.parts)
                elif plan.folder.exists():
                    plans.append(plan)
                else:
                    yield from (_outcome(plan, part, "elsewhere", "kept") for part in plan.parts)
        _check_space(log_dir, plans)
        if directory is None:
            yield from (_outcome(plan, part, "restored", "planned") for plan in plans for part in plan.parts)
            return
        if before not in (None, work):
            _discard(directory, prepared)
        if plans:
            directory.begin(work)
        for plan in plans:
            yield from (
                _outcome(plan, part, "restored", "done") for part in plan.write(source, options.producer_states)
            )
        if plans:
            directory.checkpoint({(one.partition.topic, one.partition.partition): one.bounds for one in plans})
        directory.finish()


def _check_window(prepared: PreparedRestore, options: RestoreOptions) -> None:
    """Raise ConfigError for an offset that leaves nothing of any log."""
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
        raise ConfigError(f"--from {start} leaves nothing to restore: {name} ends at {log.stop}, and no log later")
    if isinstance(stop, int) and all(stop <= log.start for log in logs.values()):
        name, log = min(logs.items(), key=lambda item: item[1].start)
        raise ConfigError(f"--to {stop} leaves nothing to restore: {name} begins at {log.start}, and no log earlier")


def _left_out(topic: PreparedTopic, broker: int, spans: Mapping[int, Sequence[Span]]) -> Iterator[Outcome]:
    """Yield the offsets of each of the broker's logs that are not restored, before and after the spans."""
    for number, partition in enumerate(topic.partitions):
        if broker not in partition.replicas:
            continue
        own = spans.get(number)
        start, stop = (own[0].start, own[-1].stop) if own else (partition.stop, partition.stop)
        where = TopicIdPartition(topic.incarnation, topic.topic, number)
        for first, end in ((partition.start, start), (stop, partition.stop)):
            if first < end:
                yield Outcome(
                    action="restore", status="kept", code="left_out", base_offset=first, last_offset=end - 1,
                    reason=_REASONS["left_out"],
                ).of(where)  # fmt: skip


def _work(prepared: PreparedRestore, options: RestoreOptions) -> bytes:
    """Return what a restore is: the ids of its topics, and its options."""
    topics = {topic.topic_id: topic.topic for topic in prepared.topics}
    return json.dumps({"topics": topics, "options": str(options)}).encode()


def _check_work(log_dir: Path, prepared: PreparedRestore, before: bytes | None) -> None:
    """Raise ConfigError if another restore is unfinished: this one would declare it finished."""
    topics: dict[str, str] = {} if before is None else json.loads(before)["topics"]
    if before is not None and topics.keys() != {topic.topic_id for topic in prepared.topics}:
        names = ", ".join(topics.values())
        raise ConfigError(
            f"{log_dir} has an unfinished restore of {names:.200}: complete it first, with its own --plan"
        )


def _discard(directory: LogDirectory, prepared: PreparedRestore) -> None:
    """Remove what this restore has written with other options; it may have had other partitions and offsets."""
    emptied: dict[tuple[str, int], tuple[int, int]] = {}
    for topic in prepared.topics:
        for number in range(len(topic.partitions)):
            folder = directory.path / f"{topic.topic}-{number}"
            if folder.exists():
                _check_id(folder, topic)
                empty(folder)
                emptied[topic.topic, number] = (0, 0)
    directory.checkpoint(emptied)


def _broker_of(log_dir: Path, prepared: PreparedRestore) -> int:
    path = log_dir / "meta.properties"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{log_dir} has no meta.properties: it is not a log directory that a broker has used"
        ) from None
    if f"cluster.id={prepared.cluster_id}" not in raw.decode("utf-8", "replace").split():
        raise ConfigError(f"{path} is of another cluster than the one prepared, {prepared.cluster_id}")
    broker = parse_broker_id(raw)
    if broker is None:
        raise ConfigError(f"{path} names no broker (node.id)")
    return broker


def _plan_topic(
    source: SegmentSource, log_dir: Path, topic: PreparedTopic, broker: int, options: RestoreOptions
) -> Iterator[PartitionRestore]:
    """Yield the plans for the partitions of the topic that this broker has, and that have records in the window."""
    catalog = load_catalog(source, topic=topic.topic, topic_id=topic.incarnation, update_file=False)
    for number, partition in enumerate(topic.partitions):
        if partition.start == partition.stop:
            continue
        name, brokers = f"{topic.topic}-{number}", partition.replicas
        if len(brokers) > 1 and not options.replicas:
            raise ConfigError(
                f"{name} has {len(brokers)} replicas: an empty one that becomes leader would truncate the others. "
                "Prepare it with one replica and add others later, or restore each of them (--replicas)"
            )
        if broker not in brokers:
            continue
        lineage = catalog.lineage(topic.topic, number, topic.incarnation)
        spans = plan_spans(
            source, lineage, (partition.start, partition.stop), options.start, options.stop,
            open_transactions=options.open_transactions,
        )  # fmt: skip
        if spans:
            folder = log_dir / name
            _check_id(folder, topic)
            sizes = tuple(log_size(source, span) for span in spans)
            is_aborting = options.open_transactions == "abort"
            opened = producers_at_end(source, spans).in_transactions if is_aborting else ()
            yield PartitionRestore(lineage.partition, spans, sizes, folder, AbortMarkers(spans[-1].stop, opened))


def _check_id(folder: Path, topic: PreparedTopic) -> None:
    try:
        found = parse_partition_metadata((folder / PARTITION_METADATA).read_bytes())
    except FileNotFoundError:
        return
    except CorruptDataError as error:
        raise CorruptDataError(f"{folder}: {error}") from None
    if str(found) != topic.topic_id:
        raise ConfigError(f"{folder} is of the topic id {found}, and {topic.topic_id} was prepared: prepare again")


def _check_space(log_dir: Path, plans: Sequence[PartitionRestore]) -> None:
    there = sum(sum(_logs(plan.folder).values()) for plan in plans)
    needed, free = max(0, sum(sum(plan.logs.values()) for plan in plans) - there), shutil.disk_usage(log_dir).free
    if plans and needed + _MARGIN > free:
        raise ConfigError(
            f"the logs take {human_bytes(needed)}, and the disk of {log_dir} has {human_bytes(free)} free"
        )


def _outcome(plan: PartitionRestore, part: Part, code: str, status: Status) -> Outcome:
    outcome = Outcome(action="restore", status=status, code=code, reason=_REASONS.get(code)).of(plan.partition)
    if isinstance(part, Span):
        size = part.segment.segment_size_in_bytes
        return replace(outcome, base_offset=part.start, last_offset=part.stop - 1, size=size, stored_size=size)
    offset = plan.markers.start + plan.markers.opened.index(part)
    aborted = (
        f"abort marker of producer {part.producer_id}, in a transaction since offset {part.current_txn_first_offset}"
    )
    return replace(
        outcome, code="aborted" if code == "restored" else code, base_offset=offset, last_offset=offset, reason=aborted,
    )  # fmt: skip


_REASONS: Final = {
    "there": "the folder has this log already",
    "left_out": "by --from, --to or --open-transactions cut",
    "elsewhere": "the folder is not in this log directory; the broker may have it in another one",
}
