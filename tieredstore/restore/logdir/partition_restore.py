"""The restore of one partition into its folder.

| state | a partition's folder |
|---|---|
| empty | as the broker made it: a log without a byte |
| drafted | has files that end in ``.restore``, which brokers ignore |
| complete | has all files under their names |

Drafts are renamed one by one. A segment's log comes after its other files, and ``leader-epoch-checkpoint`` after all
segments. Until all partitions are complete, the marker in the log directory keeps the broker from starting. The next
restore can therefore continue where a killed restore stopped.

This module is separate from ``restoring``, which handles brokers and their log directories.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tieredstore.errors import BatchCorruptError, ConfigError
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.checkpoints import (
    ProducerState,
    format_leader_epochs,
    format_producer_snapshot,
    parse_producer_snapshot,
)
from tieredstore.kafka.end_markers import format_end_marker
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT
from tieredstore.model import TopicIdPartition, human_bytes
from tieredstore.process.whole_files import sync_folder
from tieredstore.restore.logdir.log_directory import replace_file, take_owner
from tieredstore.restore.logdir.planning import producers_at_end
from tieredstore.restore.logdir.producers import Producers
from tieredstore.restore.logdir.segment_copy import (
    DRAFT,
    build_indexes,
    check_copy,
    copy_span,
    draft_files,
    read_copy,
)

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Span
    from tieredstore.kafka.batches import BatchHeader
    from tieredstore.remote import RemoteStorageManager


@dataclass(frozen=True)
class AbortMarkers:
    """Abort markers to append to a log that ends at ``start``: one for each producer in ``opened``. These producers
    have open transactions at this offset.

    All replicas must have the same bytes. An abort marker therefore contains the time of its producer's last batch, not
    the time of the restore.
    """

    start: int
    opened: tuple[ProducerState, ...]

    @property
    def stop(self) -> int:
        """The offset after the last marker."""
        return self.start + len(self.opened)

    @cached_property
    def log(self) -> bytes:
        """The batches with the abort markers."""
        return b"".join(
            format_end_marker(
                offset, state.producer_id, state.producer_epoch, commit=False, timestamp_ms=state.timestamp,
                # Coordinators of a new cluster begin with epoch 0, and a coordinator epoch must never decrease.
                coordinator_epoch=max(state.coordinator_epoch, 0),
            )
            for offset, state in enumerate(self.opened, self.start)
        )  # fmt: skip

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches with their headers."""
        log = memoryview(self.log)
        for header in read_batch_headers(log):
            yield header, log[header.position : header.position + header.size_in_bytes]

    def end_transactions(self, producers: Producers) -> None:
        """Update ``producers`` as if the abort markers were the next batches of the log."""
        for header, batch in self.batches():
            producers.append(header, batch)


_LOG: Final = re.compile(r"(\d{20})\.log")
_SEGMENT_FILE: Final = re.compile(r"\d{20}\.")
_SUFFIXES: Final = ("index", "timeindex", "log")

Part: TypeAlias = "Span | ProducerState"
"""A segment to restore, or a producer whose open transaction the restore ends with an abort marker."""

ProducerStates: TypeAlias = Literal["keep", "drop"]
"""``keep`` restores the broker's state of idempotent producers. ``drop`` leaves this state out.

Use ``keep`` only for the cluster that the segments come from. In another cluster, a new producer may get the same id
and epoch as a producer in the state. The broker would then take the new producer's first batch for a duplicate, and
acknowledge it without storing it.
"""


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    """Restore of one partition: a copy of ``spans`` (offset ranges within segments) in ``folder``, which the broker
    created with the topic.

    ``sizes`` has the size of each span's log in bytes, by the span's start. ``markers`` ends the transactions that are
    open at the end of the spans.
    """

    partition: TopicIdPartition
    spans: tuple[Span, ...]
    sizes: Mapping[int, int]
    folder: Path
    markers: AbortMarkers

    @property
    def start_offset(self) -> int:
        """The first offset of the restored log."""
        return self.spans[0].start

    @property
    def bounds(self) -> tuple[int, int]:
        """The first offset of the restored log, and the offset after its last record."""
        return self.start_offset, self.markers.stop

    @property
    def parts(self) -> tuple[Part, ...]:
        """The segments, and the producers whose transactions are aborted after them."""
        return (*self.spans, *self.markers.opened)

    @property
    def logs(self) -> dict[int, int]:
        """The sizes of the restored log files by base offset, including the abort markers' file. Empty files are left
        out."""
        sizes = {**self.sizes, self.markers.start: len(self.markers.log)}
        return {start: size for start, size in sizes.items() if size}

    def is_complete(self) -> bool:
        """Return True if the folder already has the whole log. Raise ConfigError if it has another log, and
        BatchCorruptError if the log is damaged."""
        found = logs_in(self.folder)
        if found and found != self.logs:
            held = human_bytes(sum(found.values()))
            raise ConfigError(f"{self.folder} has another log already ({held}): restore into a new topic")
        # A log of size 0, without batches, has no file (see ``_close``).
        for span in (span for span in self.spans if span.start in found):
            path = self.folder / f"{span.start:020d}.log"
            try:
                for _ in read_copy(span, path):
                    pass
            except BatchCorruptError as error:
                raise BatchCorruptError(f"{path}: {error}; restore into a new topic") from error
        path = self.folder / f"{self.markers.start:020d}.log"
        if found and self.markers.opened and path.read_bytes() != self.markers.log:
            raise BatchCorruptError(f"{path}: its abort markers are damaged; restore into a new topic")
        return bool(found)

    def check_producers(self, source: RemoteStorageManager, producer_states: ProducerStates) -> None:
        """Raise ConfigError if the folder's whole log has another state of producers than ``producer_states`` says."""
        snapshot = self.folder / f"{self.bounds[1]:020d}.snapshot"
        if not snapshot.exists():
            return
        producers = Producers()
        if producer_states == "keep":
            producers = producers_at_end(source, self.spans)
            self.markers.end_transactions(producers)
        try:
            found = {*parse_producer_snapshot(snapshot.read_bytes())}
        except BatchCorruptError as error:
            raise BatchCorruptError(f"{snapshot}: {error}") from None
        if found != {*producers.states}:
            raise ConfigError(
                f"{self.folder} has this log already, but with another state of producers: use the --producer-state of "
                "the earlier restore, or restore into a new topic"
            )

    def write(self, source: RemoteStorageManager, producer_states: ProducerStates) -> Iterator[Part]:
        """Write the missing segments, then the leader epochs. Yield each of :attr:`parts` once it is written.

        The last segment is empty, as after a broker has rolled the log. The segment's name shows the broker the end of
        the log, even if compaction has removed the last batches.
        """
        logs, there = self.logs, logs_in(self.folder)
        if not there or not there.items() <= logs.items():
            # Begin with an empty folder. It has the empty segment that the broker created, and more of them if records
            # were deleted: a broker would look there for the records. Or the bucket has changed since an earlier
            # attempt.
            empty(self.folder)
            there = {}
        for path in self.folder.glob(f"*{DRAFT}"):
            path.unlink()
        producers = Producers()
        pending: Mapping[int, int] = {}
        for span in self.spans:
            if producer_states == "keep":
                producers = producers_at_end(source, [span], producers.states)
            snapshot = format_producer_snapshot(producers.states)
            after = check_copy(span, self.folder, snapshot, pending) if span.start in there else None
            if after is None:
                drafts, after = copy_span(source, span, self.folder, snapshot, pending)
                self._place(drafts)
            pending = after
            yield span
        if self.markers.opened:
            if producer_states == "keep":
                self.markers.end_transactions(producers)
            contents, _ = build_indexes(self.markers.start, self.markers.batches(), pending)
            contents |= {"snapshot": format_producer_snapshot(producers.states), "log": self.markers.log}
            self._place(draft_files(self.folder, self.markers.start, self.markers.stop, contents))
            yield from self.markers.opened
        self._close()

    def _place(self, drafts: Mapping[Path, Path]) -> None:
        """Rename a segment's drafts to their final names, in order."""
        for draft, path in drafts.items():
            take_owner(draft, self.folder)
            draft.replace(path)
        sync_folder(self.folder)

    def _close(self) -> None:
        """Write the leader epochs, and an empty segment at the end of the log. Remove other empty segments, because a
        broker would look there for the records of a time."""
        epochs = format_leader_epochs(((0, self.start_offset),))
        replace_file(self.folder / LEADER_EPOCH_CHECKPOINT, epochs, like=self.folder)
        for log in self.folder.glob("*.log"):
            if not log.stat().st_size:
                for suffix in reversed(_SUFFIXES):
                    log.with_suffix(f".{suffix}").unlink(missing_ok=True)
        for suffix in _SUFFIXES:
            replace_file(self.folder / f"{self.bounds[1]:020d}.{suffix}", b"", like=self.folder)
        sync_folder(self.folder)


def empty(folder: Path) -> None:
    """Remove the log that an unfinished restore has written to a partition's folder. The broker creates a new, empty
    log."""
    for path in folder.iterdir():
        if _SEGMENT_FILE.match(path.name):
            path.unlink()
    replace_file(folder / LEADER_EPOCH_CHECKPOINT, format_leader_epochs(()), like=folder)


def logs_in(folder: Path) -> dict[int, int]:
    """Return the size of each segment's log in a folder by base offset, without empty logs."""
    logs = ((int(match[1]), path) for path in folder.iterdir() if (match := _LOG.fullmatch(path.name)))
    return {start: size for start, path in logs if (size := path.stat().st_size)}
