"""Segments that a real Kafka broker wrote go into a store, compressed and encrypted, and come back byte for byte.

Records are published into the same store, in batches, and asked for in SQL. A pipeline files the messages of a topic
by month. At the end Spark queries the topics straight from the store (examples/spark_demo.py).

python examples/demo.py [--store filesystem|s3] [FOLDER]

Everything it makes is in FOLDER, which must be new (demo-out, made anew, without); the objects too, unless they lie in
a local S3 server, which is started for them.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tieredstore.catalog import StoredSegment, list_segments, load_segment
from tieredstore.config import load_settings
from tieredstore.kafka.logdir import LogSegment, describe, discover
from tieredstore.model import IndexType, LogSegmentData, human_bytes
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.run.stores import open_parts
from tieredstore.remote import RemoteStorageManager

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from examples.stores import STORES
from scripts import toolchain

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
PIPELINE = """\
pipeline.name=by-month
kafka.new.consumer.topic.list=none
secor.message.parser.class=iso8601
message.timestamp.name=ts
partitioner.granularity.date.format=yyyy-MM
partitioner.granularity.date.prefix=month=
output.key.prefix=filed/
"""
CASES = ("01-none", "07-txn", "12-smallbatch")
SETTINGS = """\
chunk.size=1048576
compression.enabled=true
"""


def main() -> None:
    """Run the demo; exits with an error if anything comes back different."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=STORES, default="filesystem", help="where the objects lie")
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    folder = new_folder(arguments.folder)
    with STORES[arguments.store](folder) as store_settings:
        show(folder, store_settings)


def show(folder: Path, store_settings: str) -> None:
    """All of it, on one store."""
    kafka, settings = folder / "kafka", folder / "store.properties"
    for case in CASES:  # a broker's log directory, without the active segments
        shutil.copytree(GOLDEN / case / "original", kafka, dirs_exist_ok=True)
    settings.touch(mode=0o600)  # it may hold credentials
    settings.write_text(store_settings + SETTINGS + tieredstore("keys", "new", "key1", "-d", shown(folder)))
    copied = tieredstore("upload", "-c", shown(settings), shown(kafka))
    tieredstore("ls", "-c", shown(settings))
    tieredstore("inspect", "-c", shown(settings), "txn", "0", "605")
    tieredstore("inspect", "-c", shown(settings), "txn", "0", "605", "--index", "transaction")
    originals = [describe(segment) for segment in discover(kafka).segments]
    fetch_and_compare(originals, settings, folder)
    tieredstore("upload", "-c", shown(settings), shown(kafka))
    rate = read_back(originals, settings)
    print(f"copy:  {copied.splitlines()[-1]}")
    print(f"fetch: logs and all indexes by the library, {rate:.0f} MB/s")
    publish_and_query(settings)
    file_by_month(store_settings, settings)
    print(f"\nall {len(originals)} segments identical\n")
    query_with_spark(settings, folder / "spark.log")


def new_folder(wanted: Path | None) -> Path:
    """Where the demo works, empty."""
    folder = wanted or ROOT / "demo-out"
    if wanted is None:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def shown(path: Path) -> str:
    """``path`` as one would type it in the repository."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def tieredstore(*arguments: str, given: str | None = None) -> str:
    """Run a command as a user would, show it and its output, and return the output; ``given`` is its input."""
    print(f"$ {shlex.join(['tieredstore', *arguments])}", flush=True)
    command = [sys.executable, "-m", "tieredstore.cli", *arguments]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, input=given, text=True, check=True).stdout
    print(output, end="\n" if output else "", flush=True)
    return output


def fetch_and_compare(originals: list[LogSegment], settings: Path, folder: Path) -> None:
    """Every log, fetched by a command of its own, beside the broker's."""
    for segment in originals:
        target = folder / f"{segment.topic}-{segment.partition}-{segment.base_offset}.log"
        where = (segment.topic, str(segment.partition), str(segment.base_offset))
        tieredstore("fetch", "-c", shown(settings), *where, "-o", shown(target))
        if target.read_bytes() != segment.files.log_segment.read_bytes():
            sys.exit(f"{target} differs from {segment.files.log_segment}")
    print("each is identical to the broker's file\n")


def read_back(originals: list[LogSegment], settings: Path) -> float:
    """Compare all logs and indexes again, read by the library; the MB/s of that."""
    size, seconds = 0, 0.0
    with RemoteStorageManager(load_settings(settings)) as manager:
        stored = {place(loaded): loaded for loaded in load_all(manager)}
        for segment in originals:
            metadata = stored[(segment.topic, segment.partition, segment.base_offset)].metadata
            started = time.perf_counter()
            with manager.fetch_log_segment(metadata, 0) as stream:
                log = stream.read()
            indexes = {kind: index.read() for kind, index in manager.fetch_all_indexes(metadata).items()}
            seconds += time.perf_counter() - started
            size += len(log) + sum(map(len, indexes.values()))
            if log != segment.files.log_segment.read_bytes() or indexes != index_bytes(segment.files):
                sys.exit(f"{metadata} differs")
    return size / seconds / 1e6


def publish_and_query(settings: Path) -> None:
    """Records go into a topic of batches in the same store, without a broker, and are asked for in SQL."""
    tieredstore("pubsub", "topics", "clicks", "--create", "-c", shown(settings))
    lines = "".join(f"page-{number % 3}\n" for number in range(1000))
    tieredstore("pubsub", "produce", "clicks", "-c", shown(settings), given=lines)
    tieredstore("query", "-c", shown(settings), "SELECT value, count(*) FROM clicks GROUP BY value ORDER BY value")


def file_by_month(store_settings: str, settings: Path) -> None:
    """The messages of a topic as files of Parquet, by the month that a field tells; then these are checked."""
    pipeline = settings.with_name("by-month.properties")
    pipeline.touch(mode=0o600)  # as the store's
    output = "".join(f"output.{line}\n" for line in store_settings.splitlines() if line.startswith("storage."))
    pipeline.write_text(settings.read_text() + output + PIPELINE)
    tieredstore("pipeline", "run", shown(pipeline), "--once")
    with open_parts(load_pipeline(pipeline)) as parts:
        files = [info for info in parts.store.list("filed/") if "/_tieredstore/" not in info.key]
    for directory, within in itertools.groupby(files, key=lambda info: info.key.rpartition("/")[0]):
        sizes = [info.size for info in within]
        print(f"{directory}  {len(sizes)} files, {human_bytes(sum(sizes))}")
    tieredstore("pipeline", "verify", shown(pipeline))


def query_with_spark(settings: Path, log: Path) -> None:
    """Spark's queries, in a process of its own; what Spark logs goes into ``log``. Without Java: one line instead."""
    if toolchain.located(toolchain.JAVA) is None:
        print(f"Spark's part is left out: {toolchain.missing(toolchain.JAVA)}")
        return
    print(f"$ python examples/spark_demo.py {shlex.quote(shown(settings))}", flush=True)
    command = [sys.executable, str(ROOT / "examples" / "spark_demo.py"), str(settings)]
    with log.open("wb") as stderr:
        done = subprocess.run(command, cwd=ROOT, stderr=stderr, env=toolchain.environment(), check=False)
    if done.returncode:
        sys.exit(f"Spark failed; {shown(log)} says why (it needs Java 17 or later)")


def load_all(manager: RemoteStorageManager) -> Iterator[StoredSegment]:
    """All segments of the store."""
    for listed in list_segments(manager.store, manager.layout.prefix):
        yield load_segment(manager.store, listed)


def place(segment: StoredSegment) -> tuple[str, int, int]:
    """Topic, partition and base offset."""
    where = segment.metadata.topic_id_partition
    return where.topic, where.partition, segment.metadata.start_offset


def index_bytes(files: LogSegmentData) -> dict[IndexType, bytes]:
    """The broker's own indexes."""
    paths = {
        IndexType.OFFSET: files.offset_index,
        IndexType.TIMESTAMP: files.time_index,
        IndexType.PRODUCER_SNAPSHOT: files.producer_snapshot_index,
        IndexType.TRANSACTION: files.transaction_index,
    }
    read = {kind: path.read_bytes() for kind, path in paths.items() if path is not None}
    return {**read, IndexType.LEADER_EPOCH: files.leader_epoch_index}


if __name__ == "__main__":
    main()
