"""Kills (-9) of a stream over bucket and broker while tasks read from the broker: each committed record once.

Tiering is held back, so nine tenths of the offsets come from the broker. The test kills in turn a Python worker and the
driver. The worker is connected to the broker; after its death Spark retries the task. The driver dies with all its
processes; then the job restarts from its checkpoint.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.kafka.kafka_topics import Produced, Transaction, producer_of, send
from tests.support.kafka.live_topics import TieredTopic
from tests.support.network.connections import is_connected, processes_of
from tests.support.servers.kafka import KafkaServer
from tests.support.spark.spark_stream_runs import started
from tests.support.spark.spark_tasks import as_texts

PARTITIONS = range(4)
BATCH_BYTES = 20_000
TRANSACTIONS = 8
"""Number of transactions in the broker's part of the last partition; every second one is aborted."""


@pytest.fixture
def topic(kafka: KafkaServer, tmp_path: Path) -> Iterator[TieredTopic]:
    segments = {"internal.segment.bytes": str(5 * BATCH_BYTES)}
    tiered = TieredTopic(kafka, tmp_path, partitions=len(PARTITIONS), config=segments)
    yield tiered
    tiered.close()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_stream_whose_worker_and_driver_are_killed_reads_each_record_once(topic: TieredTopic, tmp_path: Path) -> None:
    check_killed(topic, tmp_path, records=2_500, bytes_each=500, kills=2, per_trigger=2_500, spread_s=0.1)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_stream_that_is_killed_many_times_reads_each_record_once(topic: TieredTopic, tmp_path: Path) -> None:
    check_killed(topic, tmp_path, records=140_000, bytes_each=300, kills=10, per_trigger=40_000, spread_s=4)


def check_killed(
    topic: TieredTopic,
    folder: Path,
    *,
    records: int,
    bytes_each: int,
    kills: int,
    per_trigger: int,
    spread_s: float,
) -> None:
    """Kill a job over ``records`` records in each partition, a tenth of them in the bucket; check its output."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown on failure
    moments = random.Random(seed)
    padding = moments.randbytes(bytes_each)
    fill(topic, range(records // 10), padding)
    stored = topic.tier()
    fill(topic, range(records // 10, records), padding, transactions=TRANSACTIONS)
    job = job_of(topic, folder, per_trigger)

    def write_more() -> None:
        nonlocal records
        fill(topic, range(records, records * 2), padding)
        records *= 2

    killed = kill_in_turn(job, port_of(topic.server), kills, moments, spread_s, write_more)
    with started(job) as process:
        assert process.wait(900) == 0
    rows: Any = pq.read_table(folder / "rows.parquet").to_pydict()
    written: dict[int, list[bytes]] = {partition: [] for partition in PARTITIONS}
    for partition, value in zip(rows["partition"], rows["value"], strict=True):
        written[partition].append(value)
    expected = [b"%d" % number for number in range(records)]
    for partition in PARTITIONS:
        assert written[partition] == expected, f"partition {partition}, seed {seed}"
    assert killed == kills
    assert 0 < stored < records / 5
    batches = len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))
    print(f"{kills} kills, {len(PARTITIONS) * records} records, {stored} offsets a partition stored, {batches} batches")


def fill(topic: TieredTopic, numbers: range, padding: bytes, *, transactions: int = 0) -> None:
    """Write records with these numbers to each partition. In the last partition, the first records are in transactions
    of one batch each.
    """
    producer = producer_of(topic.server, **{"batch.size": str(BATCH_BYTES), "queue.buffering.max.messages": "1000000"})
    in_transactions = 100 * transactions // 2
    if transactions:
        for number in range(transactions):
            begin = numbers.start + 100 * (number // 2)
            transaction = Transaction(topic.server)
            transaction.send(topic.topic, produced(range(begin, begin + 100), padding), partition=PARTITIONS[-1])
            # The next transaction writes the aborted records again and commits them.
            transaction.end("abort" if number % 2 == 0 else "commit")
    for partition in PARTITIONS:
        rest = numbers[in_transactions:] if partition == PARTITIONS[-1] else numbers
        send(producer, topic.topic, produced(rest, padding), partition=partition)


def produced(numbers: range, padding: bytes) -> Iterator[Produced]:
    return (Produced(padding, b"%d" % number) for number in numbers)


def job_of(topic: TieredTopic, folder: Path, per_trigger: int) -> Path:
    """Write a job whose failed tasks are retried, as on a cluster."""
    options = topic.options(
        columns="key,partition,offset,value", includeHeaders=False, startingOffsets="earliest",
        maxOffsetsPerTrigger=per_trigger,
        # Many small answers leave time to kill the reader.
        **{"kafka.max.partition.fetch.bytes": BATCH_BYTES, "kafka.queued.max.messages.kbytes": 64},
    )  # fmt: skip
    job = {
        "options": dict(as_texts(options)), "checkpoint": f"{folder}/checkpoint", "sink": f"{folder}/sink",
        "rows": f"{folder}/rows.parquet", "conf": {"spark.master": "local[2,4]"},
    }  # fmt: skip
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return path


def kill_in_turn(
    job: Path, port: int, kills: int, moments: random.Random, spread_s: float, write_more: Callable[[], None]
) -> int:
    """Kill workers and drivers while a task reads from the broker; return the number of kills.

    A job that has read everything before its next kill gets more to read, three times at most.
    """
    killed = ended = 0
    while killed < kills:
        with started(job) as process:
            while killed < kills:
                if reading_worker(process, port) is not None:
                    time.sleep(moments.uniform(0, spread_s))
                worker = reading_worker(process, port)
                if worker is None:
                    said = job.with_suffix(".err").read_text(errors="replace")[-3000:]
                    ended += 1
                    assert (process.returncode, ended > 3) == (0, False), f"it ended after {killed} kills: {said}"
                    write_more()
                    break
                killed += 1
                if killed % 2 == 0:
                    os.killpg(process.pid, signal.SIGKILL)
                    break
                os.kill(worker, signal.SIGKILL)
    return killed


def reading_worker(process: subprocess.Popen[bytes], port: int) -> int | None:
    """Wait for a worker that is connected to the broker; return None if the job ends before."""
    deadline = time.monotonic() + 300
    while process.poll() is None:
        assert time.monotonic() < deadline
        workers = processes_of(process.pid, named="pyspark.worker")
        # Scanning all processes takes longer than some tasks, so check the found workers repeatedly.
        for _ in range(20):
            for worker in workers:
                if is_connected(worker, port):
                    return worker
            time.sleep(0.005)
    return None


def port_of(server: KafkaServer) -> int:
    return int(server.bootstrap_servers.rpartition(":")[2])
