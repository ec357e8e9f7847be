"""One cut over all topics at a time: the records of each partition that come before it.

In each partition the cut is the first offset with a timestamp at or after the time. As in Kafka's ``offsetsForTimes``,
end markers of transactions count. A transaction has its records before the cut only if its marker is there as well.

In protocol v2 (KIP-890) each transaction has an epoch of its own: its marker has the epoch of its records plus 1. So
its parts in several partitions are known to belong together. If the marker of one part is at its partition's cut or
later, or not in the bucket yet, all parts are left out. In older protocols an epoch spans many transactions, so each
partition is cut by itself. A part that never reached the bucket cannot be noticed.

Separate from ``cut_search``, because a run that has its cut from a file reads nothing of the bucket for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from pydantic import Field, TypeAdapter

from tieredstore.catalog.lineage import OffsetSpan
from tieredstore.errors import ConfigError
from tieredstore.model import TopicPartition
from tieredstore.process.whole_files import read_named
from tieredstore.versions import RESTORE_CUT

_Count: TypeAlias = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """The cut in one partition: the offsets before ``stop``, except the spans ``left_out``, which ascend.

    ``earlier_records`` come at ``stop`` or later, with times before the cut's. ``open_transactions`` began before
    ``stop`` and are not over there; ``older_transactions`` of them have unknown parts in other partitions.
    ``split_transactions`` are over, but not everywhere.
    """

    topic: str
    topic_id: str
    partition: _Count
    stop: _Count
    left_out: tuple[OffsetSpan, ...] = ()
    earlier_records: _Count = 0
    open_transactions: _Count = 0
    older_transactions: _Count = 0
    split_transactions: _Count = 0


@dataclass(frozen=True, slots=True)
class TimeCut:
    """The offsets where a restore to a time stops, for all partitions. Saved to a file, they make another run stop
    at the same records.
    """

    time_ms: int
    partitions: tuple[PartitionCut, ...]

    def of_topics(
        self, topic_ids: Mapping[str, str], partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionCut]:
        """Return the cuts of these partitions of the topics with these ids. Raise ConfigError if one is missing."""
        known = {(cut.topic, cut.partition): cut for cut in self.partitions if topic_ids.get(cut.topic) == cut.topic_id}
        for topic, number in sorted(partitions):
            if (topic, number) not in known:
                raise ConfigError(
                    f"the cut has no {topic}-{number} of the topic id {topic_ids[topic]}: find it again (--to TIME)"
                )
        return {where: known[where] for where in partitions}

    def write(self, path: Path) -> None:
        """Write the file; raise ConfigError if it cannot be written."""
        try:
            path.write_bytes(RESTORE_CUT.to_bytes(asdict(self), indent=2))
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> TimeCut:
        """Read a file. Raise CorruptDataError for an invalid one, NewerVersionError for one of a later release,
        ResourceNotFoundError without one.
        """
        raw = read_named(path, absent="--to TIME finds a cut, and --cut-file keeps it")
        return RESTORE_CUT.parse(_FILE, raw, str(path))


_FILE: Final = TypeAdapter(TimeCut)
