"""Pipelines over growing topics of a bucket in a folder, with output in another folder."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests.support.pipelines.pipeline_runs import listed, offsets_of
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of

TOPIC = "orders"
ROOT = "out/"


class Kept:
    """Two partitions of ``orders``, and a pipeline over them, which other processes open by its settings file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = Bucket(folder)
        self.output = folder / "output"
        self.output.mkdir()
        self.store = FilesystemObjectStore(self.output)
        self.segments: list[RemoteLogSegmentMetadata] = []

    def write(
        self, count: int, topic: str = TOPIC, *, partitions: tuple[int, ...] = (0, 1), topic_id: Uuid = FIRST_ID
    ) -> None:
        """Add a segment of this many records to each partition."""
        for partition in partitions:
            self.segments.append(self.bucket.write(count, topic, partition, topic_id=topic_id))

    def file(self, name: str = "kept.properties", **changes: str) -> Path:
        """Write the pipeline's settings file. In the names of ``changes``, ``__`` stands for a dot."""
        properties = {
            **self.bucket.options,
            "pipeline.name": "kept",
            "output.storage.backend.class": "filesystem",
            "output.storage.root": str(self.output),
            "output.key.prefix": ROOT,
            "secor.max.file.age.seconds": "1",
            **{name.replace("__", "."): text for name, text in changes.items()},
        }
        path = self.folder / name
        path.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
        return path

    def offsets(self, root: str = ROOT) -> dict[tuple[str, int], list[int]]:
        """Return the offsets of all listed files by topic and partition, including duplicates."""
        by_partition: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for key in listed(self.store, root):
            topic, _, name = key.removeprefix(root).partition("/")
            by_partition[topic, int(name.rpartition("/")[2].split("_")[1])] += offsets_of(self.store, key)
        return {where: sorted(offsets) for where, offsets in sorted(by_partition.items())}

    def committed(self, file: Path) -> dict[tuple[str, int], int]:
        """Return each partition's committed offset from the commit log."""
        positions = commit_log_of(load_pipeline(file), self.store).read().positions
        return {where: progress.next_offset for where, progress in positions.items()}

    def close(self) -> None:
        """Close the bucket's connections."""
        self.bucket.close()
