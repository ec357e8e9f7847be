"""Store segments written by a real Kafka broker, compressed and encrypted, and read them back byte for byte.

The demo also publishes records into the same store, in batches, and queries them in SQL. A pipeline files the messages
of a topic by month. At the end Spark queries the topics directly in the store (examples/spark_demo.py).

python examples/demo.py [--store filesystem|s3] [FOLDER]

All output is in FOLDER, which must be new (default: demo-out, replaced by each run). With --store s3 the objects are
instead in a local S3 server, which the demo starts.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import tieredstore as ts

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
    """Run the demo; exit with an error if any data comes back different."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=STORES, default="filesystem", help="where the objects lie")
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    folder = new_folder(arguments.folder)
    with STORES[arguments.store](folder) as store_settings:
        show(folder, store_settings)


def show(folder: Path, store_settings: str) -> None:
    """Run all parts on one store."""
    kafka, settings = folder / "kafka", folder / "store.properties"
    for case in CASES:  # a broker's log directory, without the active segments
        shutil.copytree(GOLDEN / case / "original", kafka, dirs_exist_ok=True)
    settings.touch(mode=0o600)  # it may hold credentials
    settings.write_text(store_settings + SETTINGS + tieredstore("keys", "new", "key1", "-d", shown(folder)))
    copied = tieredstore("upload", "-c", shown(settings), shown(kafka))
    tieredstore("ls", "-c", shown(settings))
    tieredstore("inspect", "-c", shown(settings), "txn", "0", "605")
    tieredstore("inspect", "-c", shown(settings), "txn", "0", "605", "--index", "transaction")
    originals = sorted(kafka.glob("*/*.log"))
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
    """Return an empty working folder."""
    folder = wanted or ROOT / "demo-out"
    if wanted is None:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def shown(path: Path) -> str:
    """Return ``path`` as a user in the repository would type it."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def tieredstore(*arguments: str, given: str | None = None) -> str:
    """Run a command as a user does, and show it with its output. Return the output. ``given`` is the command's
    input.
    """
    print(f"$ {shlex.join(['tieredstore', *arguments])}", flush=True)
    command = [sys.executable, "-m", "tieredstore.cli", *arguments]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, input=given, text=True, check=True).stdout
    print(output, end="\n" if output else "", flush=True)
    return output


def fetch_and_compare(originals: list[Path], settings: Path, folder: Path) -> None:
    """Fetch every log with a separate command, and compare it with the broker's."""
    for original in originals:
        where = place(original)
        target = folder / f"{'-'.join(map(str, where))}.log"
        tieredstore("fetch", "-c", shown(settings), *map(str, where), "-o", shown(target))
        if target.read_bytes() != original.read_bytes():
            sys.exit(f"{target} differs from {original}")
    print("each is identical to the broker's file\n")


def read_back(originals: list[Path], settings: Path) -> float:
    """Read all logs and indexes with the library, compare them again, and return the MB/s."""
    size, seconds = 0, 0.0
    with ts.open(settings) as bucket:
        stored = {(one.topic, one.partition, one.base_offset): one for one in bucket.each_segment()}
        for original in originals:
            segment = stored[place(original)]
            started = time.perf_counter()
            with segment.open() as stream:
                read = {original: stream.read()}
            for kind, path in indexes_of(original, segment).items():
                with segment.index(kind) as index:
                    read[path] = index.read()
            seconds += time.perf_counter() - started
            size += sum(map(len, read.values()))
            if any(path.read_bytes() != data for path, data in read.items()):
                sys.exit(f"{segment} differs")
    return size / seconds / 1e6


def publish_and_query(settings: Path) -> None:
    """Publish records to a topic of batches in the same store, without a broker, and query them in SQL."""
    tieredstore("pubsub", "topics", "clicks", "--create", "-c", shown(settings))
    lines = "".join(f"page-{number % 3}\n" for number in range(1000))
    tieredstore("pubsub", "produce", "clicks", "-c", shown(settings), given=lines)
    tieredstore("query", "-c", shown(settings), "SELECT value, count(*) FROM clicks GROUP BY value ORDER BY value")


def file_by_month(store_settings: str, settings: Path) -> None:
    """Write a topic's messages as Parquet files, by the month of a field, and verify them."""
    pipeline = settings.with_name("by-month.properties")
    pipeline.touch(mode=0o600)  # may hold credentials too
    output = "".join(f"output.{line}\n" for line in store_settings.splitlines() if line.startswith("storage."))
    pipeline.write_text(settings.read_text() + output + PIPELINE)
    tieredstore("pipeline", "run", shown(pipeline), "--once")
    with ts.open(settings) as bucket:
        files = [info for info in bucket.manager.store.list("filed/") if "/_tieredstore/" not in info.key]
    for directory, within in itertools.groupby(files, key=lambda info: info.key.rpartition("/")[0]):
        sizes = [info.size for info in within]
        print(f"{directory}  {len(sizes)} files, {sum(sizes):,} bytes")
    tieredstore("pipeline", "verify", shown(pipeline))


def query_with_spark(settings: Path, log: Path) -> None:
    """Run Spark's queries in a separate process, with Spark's log in ``log``; without Java, print one line instead."""
    if toolchain.located(toolchain.JAVA) is None:
        print(f"Spark's part is left out: {toolchain.missing(toolchain.JAVA)}")
        return
    print(f"$ python examples/spark_demo.py {shlex.quote(shown(settings))}", flush=True)
    command = [sys.executable, str(ROOT / "examples" / "spark_demo.py"), str(settings)]
    with log.open("wb") as stderr:
        done = subprocess.run(command, cwd=ROOT, stderr=stderr, env=toolchain.environment(), check=False)
    if done.returncode:
        sys.exit(f"Spark failed; {shown(log)} says why (it needs Java 17 or later)")


def place(log: Path) -> tuple[str, int, int]:
    """Return topic, partition and base offset of a broker's file."""
    topic, _, partition = log.parent.name.rpartition("-")
    return topic, int(partition), int(log.stem)


def indexes_of(log: Path, segment: ts.Segment) -> dict[str, Path]:
    """Return the broker's indexes; the producer snapshot is named after the segment's end offset."""
    snapshot = log.with_name(f"{(segment.last_offset or 0) + 1:020}.snapshot")
    named = {"offset": log.with_suffix(".index"), "timestamp": log.with_suffix(".timeindex"),
             "transaction": log.with_suffix(".txnindex"), "producer-snapshot": snapshot}  # fmt: skip
    return {kind: path for kind, path in named.items() if path.exists()}


if __name__ == "__main__":
    main()
