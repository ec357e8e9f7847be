"""Pipeline output as seen in successive listings, compared with the commit log before and after."""

from __future__ import annotations

import io
from collections import defaultdict
from typing import Any

import pyarrow.parquet as pq

from tests.support.pipelines.pipeline_runs import listed
from tieredstore.backends.base import ObjectStore
from tieredstore.pipelines import Pipeline
from tieredstore.pipelines.run.generation import commit_log_of


class SeenOutput:
    """Output of one topic as Parquet files. ``records`` maps partition and offset to each value seen so far.

    The topic has no retention, and the pipeline's generation does not change, so visible files must stay visible.
    """

    def __init__(self, pipeline: Pipeline, store: ObjectStore, root: str) -> None:
        self.records: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        self._store, self._root = store, root
        self._log = commit_log_of(pipeline, store)
        self._seen: set[str] = set()
        self._next = 0
        self._published: set[str] = set()
        self._last: set[str] = set()
        """Data files of the last batch, which may still be unpublished."""

    def look(self) -> None:
        """List again; assert that no offset is duplicate or uncommitted, and that no published file is missing."""
        # Read the log twice. Before the listing, the log tells which files must be listed. After the listing, it tells
        # which offsets may be in the files.
        self._read_log()
        now = set(listed(self._store, self._root))
        assert not (missing := (self._published | self._seen) - now), f"{min(missing)} is not there"
        positions = self._log.read().positions
        ends = {partition: progress.next_offset for (_, partition), progress in positions.items()}
        for key in sorted(now - self._seen):
            self._take(key, ends)
        self._seen = now

    def _read_log(self) -> None:
        for entry in self._log.entries(self._next):
            self._next = entry.number + 1
            if entry.kind in {"batch", "published"}:
                # A driver writes such an entry only after it has published all earlier batches.
                self._published |= self._last
                self._last = {file.key for file in entry.files if file.kind == "data"}

    def _take(self, key: str, ends: dict[int, int]) -> None:
        table: Any = pq.read_table(io.BytesIO(self._store.get(key)), columns=["offset", "value"])
        partition = int(key.rpartition("/")[2].split("_")[1])
        records = self.records[partition]
        for offset, value in zip(*(table.column(name).to_pylist() for name in ("offset", "value")), strict=True):
            assert offset not in records, f"{key} has offset {offset} once more"
            assert offset < ends.get(partition, 0), f"{key} has offset {offset}, which is not committed"
            records[offset] = value
