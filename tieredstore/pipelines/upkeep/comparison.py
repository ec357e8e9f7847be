"""Comparison of an output with its source: the output must have each record of the bucket or the broker exactly
once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, KeysView, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tieredstore.errors import ConfigError, CorruptDataError, ObjectNotFoundError
from tieredstore.partitions.selections import Subscribe
from tieredstore.pipelines.log.entries import BatchWindow, WrittenWindow
from tieredstore.pipelines.log.holdings import Family, Holdings
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.source import COLUMNS, query_of
from tieredstore.pipelines.run.windows import is_of
from tieredstore.pipelines.upkeep.output_files import OutputProblem, find_topics, offsets_in, read_records, uploads_of
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.backends.base import ObjectStore
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.remote import RemoteStorageManager

Side: TypeAlias = Literal["bucket", "broker"]

_SHOWN: Final = 5


def keep_side(pipeline: Pipeline, side: Side) -> Pipeline:
    """Return the pipeline with only one side (bucket or broker) of its source. Raise ConfigError if the source lacks
    ``side``.
    """
    if side == "bucket" and pipeline.source is None:
        raise ConfigError(
            "--against bucket: the pipeline reads no bucket; compare with the broker, or set storage.backend.class"
        )
    if side == "broker" and not pipeline.client:
        raise ConfigError(
            "--against broker: the pipeline has no broker; compare with the bucket, or set kafka.bootstrap.servers"
        )
    return replace(pipeline, client=()) if side == "bucket" else replace(pipeline, source=None)


class Against:
    """Comparison of a generation's files with the records that the bucket or the broker still has. Not thread-safe.

    ``compared`` counts offsets that were compared. ``gone`` counts offsets that could not be compared, because the
    source no longer has them or does not have them yet.
    """

    def __init__(self, pipeline: Pipeline, store: ObjectStore, source: RemoteStorageManager) -> None:
        """``pipeline`` and ``source`` must have only one side, bucket or broker (see ``keep_side``)."""
        self._pipeline, self._store, self._source = pipeline, store, source
        own = pipeline.own
        # Compare contents only if the files have the source's values. Decoded columns, transformers and frame functions
        # change the values.
        self._has_contents = own.columns == "none" and not own.transformer and not own.frame
        self._has_keys = True
        self.compared = self.gone = 0

    def problems(self) -> Iterator[OutputProblem]:
        """Yield records that are lost (in no file), invented (not in the source), in several files, or changed."""
        windows = self._windows()
        topics = tuple(sorted({window.topic for window, _ in windows}))
        if not topics:
            return
        query = replace(query_of(self._pipeline), selection=Subscribe(topics))
        with TopicReader(lambda: self._source, query, ReadSettings(columns=COLUMNS)) as reader:
            logs = reader.look().logs
            for window, keys in windows:
                yield from self._compare(window, logs.get(window.where), keys, reader)

    def _windows(self) -> list[tuple[WrittenWindow, list[str]]]:
        """Return the offset windows in the commit log, each with its files. Without a log, as in Secor's output, use
        the file names.
        """
        log = commit_log_of(self._pipeline, self._store)
        if log.read().number < 0:
            return self._windows_by_name()
        return [
            (window, [file.key for file in window.files if file.kind != "sidecar"])
            for window in Holdings.of(log, Family(log).find_redriven()).iterate_held()
        ]

    def _windows_by_name(self) -> list[tuple[WrittenWindow, list[str]]]:
        self._has_keys = False
        windows: list[tuple[WrittenWindow, list[str]]] = []
        for one in uploads_of(self._pipeline, self._store, find_topics(self._pipeline, self._store)):
            stop = one.stop
            if stop is None:
                # Read the newest files of each partition, because only their contents show at which offset they end.
                offsets = (offset for key in one.keys for offset in offsets_in(self._pipeline, self._store, key))
                stop = max(one.start, 1 + max(offsets, default=-1))
            windows.append(
                (BatchWindow(one.topic, "", one.partition, one.start, stop).without_records(), list(one.keys))
            )
        return windows

    def _contents(self, batch: pa.RecordBatch) -> dict[int, int]:
        """Return hashes of the records' keys and values, by offset. Hash only the value if the files have no keys, as
        in Secor's files."""
        offsets, values = (batch.column(name).to_pylist() for name in ("offset", "value"))
        keys = batch.column("key").to_pylist() if self._has_keys else [None] * len(offsets)
        return {offset: hash((key, value)) for offset, key, value in zip(offsets, keys, values, strict=True)}

    def _compare(
        self, window: WrittenWindow, log: PartitionLog | None, keys: Sequence[str], reader: TopicReader
    ) -> Iterator[OutputProblem]:
        start, stop = window.start, window.start
        if log is not None and (not window.topic_id or is_of(log, window.topic_id)):
            start, stop = max(window.start, log.earliest), min(window.stop, log.end)
        self.gone += window.stop - window.start - max(0, stop - start)
        if log is None or start >= stop:
            return
        there: dict[int, int] = {}
        for batch in reader.read(log, start, stop):
            there |= self._contents(batch)
        counts, contents = Counter[int](), dict[int, int]()
        for key in keys:
            try:
                self._read(key, counts, contents)
            except (ObjectNotFoundError, CorruptDataError) as error:
                yield OutputProblem("unread", key, f"cannot be compared: {error}")
                return
        self.compared += stop - start
        yield from _find_problems(window, counts, there.keys(), start, stop)
        other = sorted(at for at in there.keys() & contents.keys() if contents[at] != there[at])
        if self._has_contents and other:
            where = f"{window.topic}-{window.partition}"
            yield OutputProblem("changed", where, f"has other keys or values at {_describe(other)}")

    def _read(self, key: str, counts: Counter[int], contents: dict[int, int]) -> None:
        for batch in read_records(self._pipeline, self._store, key):
            if batch.column("offset").null_count:
                raise CorruptDataError(f"{key} does not hold the offsets of its records")
            counts.update(batch.column("offset").to_pylist())
            contents |= self._contents(batch)


def _find_problems(
    window: WrittenWindow, counts: Mapping[int, int], there: KeysView[int], start: int, stop: int
) -> Iterator[OutputProblem]:
    """Yield the offsets in files that differ from the offsets ``there`` in the source from ``start`` to ``stop``."""
    where = f"{window.topic}-{window.partition}"
    strange = [offset for offset in counts if not window.start <= offset < window.stop]
    seen = {offset: count for offset, count in counts.items() if start <= offset < stop}
    if twice := [offset for offset, count in seen.items() if count > 1]:
        yield OutputProblem("twice", where, f"has {_describe(twice)} in several files, or several times in one")
    if invented := sorted([*strange, *(seen.keys() - there)]):
        yield OutputProblem("invented", where, f"has {_describe(invented)} in files, but not in the source")
    lost = sorted(there - seen.keys())
    if len(lost) > window.filtered:
        left_out = f" ({window.filtered} were dropped by the transformer)" if window.filtered else ""
        yield OutputProblem("lost", where, f"has {_describe(lost)} in no file{left_out}")


def _describe(offsets: Sequence[int]) -> str:
    """Return offsets as text: the first ranges, and the number of the remaining offsets."""
    runs = [
        [offset for _, offset in run] for _, run in groupby(enumerate(sorted(offsets)), key=lambda one: one[1] - one[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:_SHOWN]]
    rest = sum(map(len, runs[_SHOWN:]))
    return f"offsets {', '.join(texts)}{f' and {rest} more' if rest else ''}"
