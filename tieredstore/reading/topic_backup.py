"""Interface to copies of a topic that are not segments: files of a pipeline or of Secor, or batches of MemQ.

Optional packages implement :class:`TopicBackup`, see ``Format.topics`` in ``tieredstore.cli.records.formats``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.model import TopicPartition


class TopicBackup(Protocol):
    """The topics of a backup as they were when this object was made. Not thread-safe."""

    @property
    def identities(self) -> Mapping[str, str]:
        """A text per topic, made of the backup's location and identity. Equal texts mean equal records at equal
        offsets."""
        ...

    @property
    def lacks(self) -> Sequence[str]:
        """Sentences for users: what the backup's records lack compared with records in a bucket."""
        ...

    @property
    def repeats(self) -> int:
        """The number of records so far that were left out because their offsets had already been read."""
        ...

    def spans(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return the offsets ``[start, stop)`` of each partition."""
        ...

    def holes(self, where: TopicPartition, start: int, stop: int) -> Sequence[tuple[int, int]]:
        """Return the half-open spans of ``[start, stop)`` whose records are known to be missing, ascending."""
        ...

    def records(self, where: TopicPartition, start: int, stop: int) -> Generator[pa.RecordBatch]:
        """Yield the records of ``[start, stop)`` by ascending offsets, each once.

        The record batches have the columns ``offset timestamp key value headers``. A timestamp of -1 is unknown.
        """
        ...
