"""Kills (-9) of a stream's drivers and Python workers, between topics of batches: each record is written once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.pubsub.pubsub_topics import topics_in, topics_later, values_of
from tests.support.spark.spark_stream_runs import started
from tests.support.waiting import wait_until
from tieredstore.ops.steps import Outcome
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.format.notifications import parse_notification
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.pubsub.upkeep.garbage import GarbageCollection
from tieredstore.testing.notification_queue_tests import read_all

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1800)]

KILLS = 4
BATCHES = 12
LONG_S = 400.0
JOB = "tests.support.spark.memq_stream_job"


def grow(topics: Topics, values: list[bytes]) -> None:
    """Produce ``BATCHES`` more batches, and append their values to ``values``."""
    for _ in range(BATCHES):
        with BatchProducer(topics, "orders") as producer:
            for _ in range(5):
                values.append(b"%06d" % len(values))
                producer.send(values[-1])


def job_file(folder: Path) -> Path:
    """Write the file of a job that has many small epochs, and retries failed tasks."""
    job = {
        "conf": {"spark.master": "local[2,8]"},
        "store": {"storage.backend.class": "filesystem", "storage.root": str(folder / "store")},
        "source": {"topic": "orders", "startingOffsets": "earliest", "maxBatchesPerTrigger": "2"},
        "sink": "copies",
        "checkpoint": str(folder / "checkpoint"),
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return path


def epochs(folder: Path) -> int:
    """Return the number of completed epochs."""
    return len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))


def wait_for_epochs(folder: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: epochs(folder) >= count or process.poll() is not None)


def workers_of(group: int) -> list[int]:
    """Return the Python workers in this process group: those of the job's tasks, of its source and of its sink."""
    workers: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            is_own = os.getpgid(int(entry.name)) == group
        except (OSError, ProcessLookupError):
            continue
        if is_own and b"pyspark.daemon" in command and b"pyspark.worker" in command:
            workers.append(int(entry.name))
    return workers


def orphans_of(topics: Topics) -> set[str]:
    found = GarbageCollection(BatchLog(topics_later(topics, 10), topics.get("copies"))).run()
    return {str(each.name) for each in found if each.code == Outcome.DELETED}


def check(topics: Topics, values: list[bytes], folder: Path) -> None:
    """Assert that the topic has each record once, and that each object has one notification or is listed by ``gc``."""
    with BatchConsumer(topics, "copies") as consumer:
        assert sorted(values_of(consumer, at_least=len(values))) == values
    with topics.queue(topics.get("copies")) as queue:
        entries = [entry for partition in range(2) for entry in read_all(queue, partition)]
    notified = [parse_notification(entry.raw, "queue").key for entry in entries]
    assert len(notified) == len(set(notified))
    stored = {info.key for info in topics.store.list("") if "/topics/copies/" in info.key}
    assert orphans_of(topics) == stored - set(notified)
    assert len(notified) >= epochs(folder)


@pytest.mark.parametrize("seed", range(2))
def test_drivers_and_workers_that_are_killed_write_each_record_once(tmp_path: Path, seed: int) -> None:
    (tmp_path / "store").mkdir()
    topics = topics_in(tmp_path / "store")
    for name in ("orders", "copies"):
        topics.create(name, 2)
    moments, values, job = random.Random(seed), list[bytes](), job_file(tmp_path)
    for number in range(KILLS):
        grow(topics, values)
        with started(job, JOB) as process:
            wait_for_epochs(tmp_path, epochs(tmp_path) + 1, process)
            time.sleep(moments.uniform(0, 1))
            if number % 2:
                for worker in workers_of(process.pid):
                    os.kill(worker, signal.SIGKILL)
                time.sleep(moments.uniform(0, 1))
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait(60) == -signal.SIGKILL, "it had come to its end before"
    with started(job, JOB) as process:
        assert process.wait(LONG_S) == 0
    check(topics, values, tmp_path)
    assert epochs(tmp_path) > KILLS
