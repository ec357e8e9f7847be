"""Other figures of pipelines: latency, memory, requests, and scale."""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench_catalog import peak_mib
from benchmarks.bench_spark import spark_session
from benchmarks.pipelines.pipeline_contest import store_of, write_properties
from benchmarks.spark.spark_topic import SparkTopic
from tests.support.kafka.kafka_topics import make_topic, producer_of
from tests.support.network.fault_proxy import FaultProxy
from tests.support.pipelines.pipeline_runs import listed, pipeline_of, run_once
from tests.support.records.stored_records import StoredTopic
from tests.support.servers.kafka import KafkaServer, start_kafka
from tests.support.servers.minio import start_minio
from tests.support.stores.clouds import make_s3
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.model import Uuid
from tieredstore.pipelines import Runner, load_pipeline
from tieredstore.pipelines.log.commit_log import CommitLog, Progress
from tieredstore.pipelines.log.entries import WrittenWindow
from tieredstore.pipelines.run.planner import Planner
from tieredstore.pipelines.run.source import open_parts
from tieredstore.spark import start_pipelines
from tieredstore.testing.segments import PARTITION, Record, build_batch

_SMALL: Final = 200_000_000
_LARGE: Final = 2_000_000_000
_AGE_S: Final = 5
_RECORDS_S: Final = 5_000
_PARTITIONS: Final = 10_000
_COMMITS: Final = 100_999
"""The number of commits in the long log. As many entries as possible follow the log's last snapshot."""
_ID: Final = Uuid(bytes(16))
_VALUE: Final = b'{"timestamp":1700000000000,"padding":"' + b"x" * 430 + b'"}'


def measure_memory(topic: SparkTopic, home: Path) -> dict[str, float]:
    """Return the peak memory of a process that writes all windows in sequence, for two sizes of window."""
    peaks: dict[str, float] = {}
    for name, size in {"200 MB": _SMALL, "2 GB": _LARGE}.items():
        with tempfile.TemporaryDirectory(dir=home) as folder:
            file = Path(folder) / "memory.properties"
            size_of_window = {"secor.max.file.size.bytes": str(size)}
            write_properties(file, topic, store_of(topic), Path(folder) / "output", size_of_window)
            (Path(folder) / "output").mkdir()
            # Run in a separate process, whose peak memory is only this run's.
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                peaks[name] = pool.submit(_peak_mib, file).result()
    return {**{f"MiB at {name}": round(peak, 1) for name, peak in peaks.items()},
            "ratio": round(peaks["2 GB"] / peaks["200 MB"], 3), "target": 1.1,
            "log_MB": round(topic.log_bytes / 1e6)}  # fmt: skip


def _peak_mib(file: Path) -> float:
    pipeline = load_pipeline(file)
    with open_parts(pipeline) as parts, Runner(pipeline, parts, threads=1) as runner:
        list(runner.run_once())
    return peak_mib()


def measure_age(home: Path, seconds: float) -> dict[str, float]:
    """Return the time from a record's timestamp to the first listing with its file."""
    with (
        tempfile.TemporaryDirectory(dir=home) as folder,
        start_kafka(**{"log.retention.ms": "-1"}) as server,
        spark_session(Path(folder), None) as spark,
    ):
        output = Path(folder) / "output"
        output.mkdir()
        name = make_topic(server, partitions=2)
        settings = Path(folder) / "age.properties"
        properties = {
            "pipeline.name": "age", "kafka.new.consumer.topic.list": name,
            "kafka.bootstrap.servers": server.bootstrap_servers,
            "output.storage.backend.class": "filesystem", "output.storage.root": str(output),
            "secor.max.file.age.seconds": str(_AGE_S),
        }  # fmt: skip
        settings.write_text("".join(f"{key}={text}\n" for key, text in properties.items()))
        (query,) = start_pipelines(spark, settings)
        count = int(seconds * _RECORDS_S)
        appending = threading.Thread(target=_append, args=(server, name, count))
        appending.start()
        waited = _until_listed(output, count)
        appending.join()
        query.stop()
    cuts = statistics.quantiles(waited, n=100)
    return {"records": count, "p50_s": round(cuts[49], 2), "p99_s": round(cuts[98], 2), "target_p99_s": 10.0}


def _append(server: KafkaServer, topic: str, count: int) -> None:
    producer: Any = producer_of(server)
    start = time.monotonic()
    for number in range(count):
        if (ahead_s := number / _RECORDS_S - (time.monotonic() - start)) > 0.01:
            time.sleep(ahead_s)
        producer.produce(topic, _VALUE, b"key", partition=number % 2)
        producer.poll(0)
    producer.flush()


def _until_listed(output: Path, count: int) -> list[float]:
    """Return each record's time from its timestamp to the first listing with its file."""
    waited: list[float] = []
    seen = set[Path]()
    deadline = time.monotonic() + 600
    while len(waited) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(waited)} of {count} records were listed in ten minutes")
        new = [file for file in output.rglob("*.parquet") if file not in seen and "_tieredstore" not in file.parts]
        now_ms = time.time() * 1000
        for file in new:
            times = pq.read_table(file, columns=["timestamp"], partitioning=None).column("timestamp")
            waited += [(now_ms - moment) / 1000 for moment in times.cast(pa.int64()).to_pylist()]
        seen.update(new)
        time.sleep(0.05)
    return waited


def measure_requests(home: Path) -> dict[str, float]:
    """Count the requests for small files and a batch, with a proxy before the server."""
    small = pipeline_of(secor__max__file__size__bytes="20000")
    with tempfile.TemporaryDirectory(dir=home) as folder, start_minio() as server:
        topic = StoredTopic(Path(folder) / "logs")
        for start in range(0, 300, 100):
            topic.copy_plain(start, 100, size=100)
        with FaultProxy(server.endpoint_url) as proxy, closing(make_s3(proxy.url, server.make_bucket())) as store:
            run_once(topic, store, small)
            files = len(listed(store))
            seen = list(proxy.seen)
        topic.close()
    uploads = sum("uploadId=" in one.path or "uploads" in one.path for one in seen)
    commits = sum("/commits/" in one.path and one.method in {"PUT", "HEAD"} for one in seen)
    # The entries "begin" and "published" take one request each. A batch takes two: its entry, and the check for a later
    # entry.
    return {"a small file": uploads / files, "target of a file": 3, "a batch": commits - 2, "target of a batch": 2}


def measure_limits(home: Path) -> dict[str, float]:
    """Return the seconds to plan a batch over many partitions, and to open a long commit log."""
    store = MemoryObjectStore()
    log = CommitLog(store, "out/", "bench", 1)
    for window in _windows():
        log.append("batch", "fingerprint", [window])
    start = time.perf_counter()
    state = CommitLog(store, "out/", "bench", 1).read()
    opened = time.perf_counter() - start
    if state.number != _COMMITS - 1:
        raise RuntimeError(f"the log ends with entry {state.number}")
    return {
        **{f"10,000 partitions planned{name}, s": round(seconds, 3) for name, seconds in _planned(home).items()},
        "100,999 commits opened, s": round(opened, 3),
        "target_s": 2,
    }


def _planned(home: Path) -> dict[str, float]:
    """Plan like a driver: list the bucket, cut and check due windows, and look up their segments."""
    batches = [build_batch([Record(_VALUE)], 0)]
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=home) as folder, closing(StoredTopic(Path(folder))) as topic:
        for number in range(_PARTITIONS):
            topic.copy(0, batches, partition=replace(PARTITION, partition=number))
        moments = itertools.count(0, 3600)
        # Let the clock jump an hour at each reading, so that each listing is outdated at once.
        with closing(Planner(pipeline_of(), topic.manager, clock=lambda: float(next(moments)))) as planner:
            for name in (" first", " again"):
                start, start_cpu = time.perf_counter(), time.process_time()
                snapshot = planner.snapshot()
                begins = {one.where: Progress(one.topic_id, one.start) for one in planner.mark_firsts(snapshot, {})}
                tasks = planner.tasks(snapshot, planner.find_due(snapshot, begins, is_last=True))
                seconds[name] = time.perf_counter() - start
                seconds[f"{name}, by processor time"] = time.process_time() - start_cpu
                if len(snapshot.logs) != _PARTITIONS or not all(task.splits for task in tasks):
                    raise RuntimeError(f"{len(snapshot.logs)} partitions were planned")
    return seconds


def _windows() -> Iterator[WrittenWindow]:
    for number in range(_COMMITS):
        yield WrittenWindow("orders", str(_ID), number % 10, number // 10, number // 10 + 1, 1, 0, 0, ())
