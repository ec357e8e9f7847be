"""One partition of a log directory, written from a lineage.

| state | the partition's folder |
|---|---|
| empty | as the broker made it: a log without a byte |
| drafted | has files that end in ``.restore``, which brokers ignore |
| complete | has all files under their names |

Files are renamed one by one: of a segment the indexes before the log, and ``leader-epoch-checkpoint`` after all
segments. The marker of the log directory keeps a broker away meanwhile, so each run begins where the last one ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.lineage import Span
from tieredstore.errors import ConfigError
from tieredstore.kafka.checkpoints import format_leader_epochs
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT
from tieredstore.model import TopicIdPartition, human_bytes
from tieredstore.restore.log_directory import replace_file, sync_folder, take_owner
from tieredstore.restore.segment_copy import DRAFT, ProducerStates, copy_span

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_LOG: Final = re.compile(r"(\d{20})\.log")


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    """The restore of a partition's log: ``spans`` of segments into ``folder``, which its broker has made.

    ``sizes`` are the bytes of each span's log.
    """

    partition: TopicIdPartition
    spans: tuple[Span, ...]
    sizes: tuple[int, ...]
    folder: Path

    @property
    def start_offset(self) -> int:
        """The first offset of the restored log."""
        return self.spans[0].start

    @property
    def bounds(self) -> tuple[int, int]:
        """The first offset, and the one after the last."""
        return self.start_offset, self.spans[-1].stop

    @property
    def size(self) -> int:
        """The bytes of the log."""
        return sum(self.sizes)

    def is_complete(self, *, is_unfinished: bool) -> bool:
        """Return True if the folder has the whole log already; raise ConfigError if it has another one.

        ``is_unfinished`` is True if the log directory has the marker of an interrupted restore.
        """
        sizes = {span.start: size for span, size in zip(self.spans, self.sizes, strict=True)}
        found = {start: size for start, size in self._logs() if size}
        if found and not (found.keys() <= sizes.keys() and (is_unfinished or found == sizes)):
            held = human_bytes(sum(found.values()))
            raise ConfigError(f"{self.folder} has another log already ({held}): restore into a new topic")
        return bool(found) and not is_unfinished

    def write(self, source: SegmentSource, producer_states: ProducerStates) -> Iterator[Span]:
        """Write the segments that are missing, and yield each segment once it is there; then the leader epochs."""
        for path in self.folder.glob(f"*{DRAFT}"):
            path.unlink()
        there = dict(self._logs())
        for span, size in zip(self.spans, self.sizes, strict=True):
            if there.get(span.start) != size:
                for draft, path in copy_span(source, span, self.folder, producer_states).items():
                    take_owner(draft, self.folder)
                    draft.replace(path)
                sync_folder(self.folder)
            yield span
        epochs = format_leader_epochs(((0, self.start_offset),))
        replace_file(self.folder / LEADER_EPOCH_CHECKPOINT, epochs, like=self.folder)
        # The broker made an empty segment.
        if self.start_offset:
            for suffix in ("log", "index", "timeindex"):
                (self.folder / f"{0:020d}.{suffix}").unlink(missing_ok=True)
        sync_folder(self.folder)

    def _logs(self) -> Iterator[tuple[int, int]]:
        """Yield base offset and size of each log in the folder; raise ConfigError if there is no folder."""
        try:
            for path in self.folder.iterdir():
                if match := _LOG.fullmatch(path.name):
                    yield int(match[1]), path.stat().st_size
        except FileNotFoundError:
            raise ConfigError(f"{self.folder} does not exist: create the topic while its broker runs") from None
