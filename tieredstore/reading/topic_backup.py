"""Interface to topics that are kept elsewhere than in segments: in files of a pipeline or of Secor, or in batches.

Parts that are installed beside the core implement it, see ``Format.topics`` in ``tieredstore.cli.records.formats``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.model import TopicPartition


class TopicBackup(Protocol):
    """Topics as they were when this object was made. For one thread."""

    @property
    def identities(self) -> Mapping[str, str]:
        """The place and the identity of each topic, as a text. Equal texts mean equal records at equal offsets."""
        ...

    @property
    def lacks(self) -> Sequence[str]:
        """What the backup's records lack compared with a bucket's, each as a sentence for users."""
        ...

    @property
    def repeats(self) -> int:
        """The records so far that were left out, because their offsets had been read before."""
        ...

    def extents(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return the offsets ``[start, stop)`` of each partition."""
        ...

    def holes(self, where: TopicPartition, start: int, stop: int) -> Sequence[tuple[int, int]]:
        """Return the half-open spans of ``[start, stop)`` whose records are known to be missing, ascending."""
        ...

    def records(self, where: TopicPartition, start: int, stop: int) -> Generator[pa.RecordBatch]:
        """Yield the records of ``[start, stop)`` by ascending offsets, each once.

        Columns: ``offset timestamp key value headers``. A time of -1 is unknown.
        """
        ...
