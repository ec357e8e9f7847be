"""A topic of JSON records for the Spark source's benchmark, both as a log on a broker's disk and in tiered storage."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.bench_transform import CHUNK, key_settings
from tieredstore.config import load_settings
from tieredstore.kafka.logdir import LogSegment
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION, build_segment

STORED: Final = ("zstd+encrypted", "plain")
"""The ways in which the tiered segments can be stored; plain is the plugin's default."""

SEGMENTS: Final = 8
"""The minimum number of segments."""

_RECORD_BYTES: Final = 495
"""The assumed bytes of log per record, which is slightly more than a record takes."""

_FIRST_TIMESTAMP_MS: Final = 1_767_225_600_000

_DONE: Final = "topic.json"


def topic_parser(description: str | None, *, records: int, runs: int) -> argparse.ArgumentParser:
    """Return the command line of a benchmark over such a topic, with default numbers of records and counted rounds."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=records, help="how many records the topic has, about")
    parser.add_argument("--runs", type=int, default=runs, help="counted rounds")
    parser.add_argument("--folder", type=Path, help="where the topic is made and kept (default: a temporary folder)")
    parser.add_argument("--without-broker", action="store_true", help="leave out what reads from Kafka")
    parser.add_argument("--kafka-source", type=Path, help="the folder with the jars of Spark's own Kafka source")
    return parser


@dataclass(frozen=True, slots=True)
class SparkTopic:
    """A topic of one partition in ``folder``: the broker's log in ``logs``, and the tiered segments in ``store``,
    stored in one of the ways of :data:`STORED`."""

    folder: Path
    records: int
    segments: int
    log_bytes: int
    stored_bytes: int
    first_timestamp_ms: int
    last_timestamp_ms: int

    @property
    def name(self) -> str:
        """The name of the topic."""
        return PARTITION.topic

    @property
    def partition_folder(self) -> Path:
        """The partition's folder, as on a broker."""
        return self.folder / "logs" / f"{PARTITION.topic}-{PARTITION.partition}"

    @property
    def options(self) -> dict[str, str]:
        """The options with which the Spark source reads the whole topic."""
        return {"settings": str(self.folder / "store.properties"), "subscribe": self.name}

    def window_options(self, share: float) -> dict[str, str]:
        """Return the options to read ``share`` of the topic's time range, from the middle of the range on."""
        first, last = self.first_timestamp_ms, self.last_timestamp_ms
        start = (first + last) // 2
        stop = start + round((last - first) * share)
        return self.options | {"startingTimestamp": str(start), "endingTimestamp": str(stop)}


def topic_in(folder: Path, records: int, stored: str = STORED[0]) -> SparkTopic:
    """Return a topic of ``records`` records or a few more. Reuse the folder's topic if it exists."""
    home = folder / f"topic-of-{records}-{stored}"
    done = home / _DONE
    if not done.exists():
        shutil.rmtree(home, ignore_errors=True)
        topic = _build(home, records, stored)
        done.write_text(json.dumps({name: value for name, value in asdict(topic).items() if name != "folder"}))
    fields: dict[str, Any] = json.loads(done.read_text())
    return SparkTopic(home, **fields)


def _build(home: Path, records: int, stored: str) -> SparkTopic:
    (home / "store").mkdir(parents=True)
    texts = {"storage.backend.class": "filesystem", "storage.root": str(home / "store"), "chunk.size": str(CHUNK)}
    if stored != "plain":
        texts |= {"compression.enabled": "true", **key_settings(home)}
    properties = home / "store.properties"
    properties.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    segments = _copied(home, properties, records)
    return SparkTopic(
        home,
        records=segments[-1].end_offset + 1,
        segments=len(segments),
        log_bytes=sum(segment.size_in_bytes for segment in segments),
        stored_bytes=sum(path.stat().st_size for path in (home / "store").rglob("*.log")),
        first_timestamp_ms=_FIRST_TIMESTAMP_MS,
        last_timestamp_ms=segments[-1].max_timestamp_ms,
    )


def _copied(home: Path, properties: Path, records: int) -> list[LogSegment]:
    segments: list[LogSegment] = []
    size = -(-records // SEGMENTS) * _RECORD_BYTES
    following, time_ms = 0, _FIRST_TIMESTAMP_MS
    with RemoteStorageManager(load_settings(properties)) as manager:
        while following < records:
            seed = len(segments)
            segment = build_segment(home / "logs", size, base_offset=following, first_timestamp_ms=time_ms, seed=seed)
            manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), event_timestamp_ms=seed), segment.files)
            segments.append(segment)
            following, time_ms = segment.end_offset + 1, segment.max_timestamp_ms
            print(f"segment {seed} made and copied", file=sys.stderr)
    return segments
