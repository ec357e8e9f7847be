"""Topics in a pipeline's output files or Iceberg table, or in Secor's files, for ``restore produce --backup``.

This module is separate from ``record_sources``, because only a restore checks whether the files contain the records
unchanged.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore.errors import ConfigError
from tieredstore.pipelines.config.settings import load_pipeline
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.iceberg import table_of
from tieredstore.pipelines.run.source import open_parts
from tieredstore.pipelines.upkeep.record_sources import KeptFiles, KeptRows, Selected

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.backends.base import ObjectStore
    from tieredstore.model import TopicPartition
    from tieredstore.pipelines.config.settings import Pipeline


class PipelineBackup:
    """Topics in the output files of a pipeline. Raises ConfigError if the files have only columns made from the values,
    not the values themselves."""

    def __init__(self, pipeline: Pipeline, store: ObjectStore, topics: Sequence[str]) -> None:
        own = pipeline.own
        if own.columns != "none" or own.frame:
            raise ConfigError(
                f"the files of {own.name} have columns made from the values, but not the values: restore from the "
                "bucket, or from a pipeline that sets neither columns nor frame"
            )
        self._own = own
        table = table_of(pipeline)
        self._rows = {} if table is None else {topic: KeptRows(pipeline, store, topic, table) for topic in topics}
        self._files: Mapping[str, KeptFiles] = self._rows or {
            topic: KeptFiles(pipeline, store, topic) for topic in topics
        }
        self._windows = {
            (topic, one.partition): one for topic, files in self._files.items() for one in files.spans(Selected(topic))
        }

    @property
    def identities(self) -> Mapping[str, str]:
        """For each topic, a text that names the pipeline, the generation (a version of the output), the Iceberg table
        if there is one, and the topic id if it is known.
        """
        ids = {topic: one.topic_id for (topic, _), one in self._windows.items()}
        name = f"pipeline {self._own.name}, generation {self._own.generation}"
        tables = {topic: f"table {one.rows.identity}, " for topic, one in self._rows.items()}
        return {topic: f"{name}, {tables.get(topic, '')}{topic_id or 'no topic id'}" for topic, topic_id in ids.items()}

    @property
    def lacks(self) -> Sequence[str]:
        """Sentences about what the backup lacks: records that are not in the Iceberg table, and parts of records that
        Secor does not store or a transformer changed."""
        return list(self._lacks())

    def _lacks(self) -> Iterator[str]:
        if self._own.transformer:
            yield f"records are restored as {self._own.transformer} changed them, without the records that it dropped"
        if missing := sum(rows.missing for rows in self._rows.values()):
            yield f"{missing} committed records are not in the table: they were deleted there, quarantined, or are lost"
        for files in () if self._rows else self._files.values():
            for window, generation in files.holders():
                if generation >= 0:
                    yield f"{window} are not in these files: generation {generation} has replaced them"
        if all(files.is_committed for files in self._files.values()):
            return
        yield "without a commit log, missing files cannot be detected, nor records of two topics that had the same name"
        yield "Secor wrote records of aborted transactions too, if it read with isolation.level=read_uncommitted"
        if "sequencefile" in self._own.format:
            without = "headers" if self._own.format.startswith("messagepack") else "headers, keys and times"
            yield f"records have no {without}, and null values become empty values"

    @property
    def repeats(self) -> int:
        """Number of records that Secor had uploaded twice."""
        return sum(files.repeats for files in self._files.values())

    def spans(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return the range of offsets in each partition's files. The end is exclusive."""
        return {where: (one.start, one.stop) for where, one in self._windows.items()}

    def holes(self, where: TopicPartition, start: int, stop: int) -> Sequence[tuple[int, int]]:
        """Return the offsets that no offset window in the commit log contains. Without a commit log, offsets between
        two files count as present, because nothing shows that they are missing.
        """
        return self._files[where[0]].holes(BatchWindow(where[0], "", where[1], start, stop))

    def records(self, where: TopicPartition, start: int, stop: int) -> Generator[pa.RecordBatch]:
        """Yield the records of all files in order of offsets."""
        topic, number = where
        files = self._files[topic]
        # Without a commit log, read all files of the partition from the first. An earlier file of Secor may also have
        # records with offsets from ``start`` on.
        begin = start if files.is_committed else min(start, self._windows[where].start)
        for batch in files.records(BatchWindow(topic, "", number, begin, stop)):
            offsets: list[int] = batch.column("offset").to_pylist()
            if offsets[-1] >= start:
                yield batch.slice(sum(offset < start for offset in offsets))


@contextmanager
def open_backup(path: Path, topics: Sequence[str]) -> Generator[PipelineBackup]:
    """Open the pipeline's output as a backup of ``topics``."""
    pipeline = load_pipeline(path)
    with open_parts(pipeline) as parts:
        yield PipelineBackup(pipeline, parts.store, topics)
