"""Kills (-9) of executors, workers and drivers of pipelines on a local cluster, while a producer writes.

All the time, the tests list the output: it must have each published offset once, and no uncommitted offset.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.kafka.kafka_topics import Produced, producer_of, send
from tests.support.kafka.live_topics import TieredTopic
from tests.support.network.connections import parent_of, processes_of
from tests.support.pipelines import pipeline_frames
from tests.support.pipelines.pipeline_runs import listed, verify_output
from tests.support.pipelines.pipeline_service import EXECUTORS, pipeline_service
from tests.support.pipelines.seen_output import SeenOutput
from tests.support.servers.kafka import KafkaServer
from tests.support.spark.spark_pipelines import TOPIC, Kept
from tests.support.waiting import BlockThread, wait_until
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.errors import StoreUnavailableError
from tieredstore.pipelines import Runner, load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.source import open_parts
from tieredstore.spark import start_pipelines

PARTITIONS = 2
COMMITTED_S = 300.0
FIRST_MS = 1_700_000_000_000


class Killed:
    """Pipelines, their service, and checks of the output that a listing shows."""

    def __init__(self, server: KafkaServer, folder: Path) -> None:
        self.topic = TieredTopic(server, folder, partitions=PARTITIONS)
        self._folder = folder
        (folder / "output").mkdir()
        self._store = FilesystemObjectStore(folder / "output")
        self._files = {
            "backup/": self._file("backup"),
            "by-day/": self._file("by-day", {"secor.message.parser.class": "json"}),
        }
        self._seen = {root: SeenOutput(load_pipeline(file), self._store, root) for root, file in self._files.items()}

    def _file(self, name: str, more: dict[str, str] | None = None) -> Path:
        properties = {
            "pipeline.name": name,
            "kafka.new.consumer.topic.list": self.topic.topic,
            **self.topic.store,
            "kafka.bootstrap.servers": self.topic.server.bootstrap_servers,
            "output.storage.backend.class": "filesystem",
            "output.storage.root": str(self._folder / "output"),
            "output.key.prefix": f"{name}/",
            "secor.max.file.age.seconds": "1",
            "secor.max.file.size.bytes": "30000",
            **(more or {}),
        }
        path = self._folder / f"{name}.properties"
        path.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
        return path

    @contextmanager
    def service(self) -> Generator[subprocess.Popen[bytes]]:
        """Run ``tieredstore pipeline run`` on two executors, in a process group that is killed afterwards."""
        conf = {**EXECUTORS, "spark.speculation": "true"}
        with pipeline_service(self._folder, *self._files.values(), conf=conf, drain_s=200) as service:
            yield service.process

    @property
    def _log(self) -> Path:
        return self._folder / "service.log"

    def said(self) -> str:
        """Return the end of the service's log."""
        return self._log.read_text(errors="replace")[-4000:]

    def wait_for_commits(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until each pipeline has committed more since the last wait, checking the output continuously."""
        before = {root: self._commits_of(root) for root in self._files}

        def check() -> None:
            assert process.poll() is None, self.said()
            self.check()

        wait_until(
            lambda: all(self._commits_of(root) > count for root, count in before.items()),
            COMMITTED_S, what=self.said, every_s=0.05, meanwhile=check,
        )  # fmt: skip

    def _commits_of(self, root: str) -> int:
        return sum(1 for _ in self._store.list(f"{root}_tieredstore/{root.rstrip('/')}/1/commits/"))

    def check(self) -> None:
        """Check the visible output. The check must hold at any time."""
        for seen in self._seen.values():
            seen.look()

    def listed(self) -> list[str]:
        """Return the visible files."""
        return [key for root in self._files for key in listed(self._store, root)]

    def finish(self) -> None:
        """Write all remaining records in this process, without Spark."""
        for file in self._files.values():
            pipeline = load_pipeline(file)
            with open_parts(pipeline) as parts, Runner(pipeline, parts) as runner:
                list(runner.run_once())

    def check_end(self, numbers: dict[int, list[int]] | None = None) -> None:
        """Assert that the output has each committed record once and nothing else; ``numbers`` has these records by
        partition.
        """
        self.check()
        for root, file in self._files.items():
            assert list(verify_output(load_pipeline(file), self._store)) == []
            if numbers is not None:
                records = self._seen[root].records
                assert {
                    partition: sorted(json.loads(value)["n"] for value in by_offset.values())
                    for partition, by_offset in records.items()
                } == {partition: sorted(committed) for partition, committed in numbers.items()}

    def close(self) -> None:
        """Close the bucket's connections."""
        self.topic.close()


class Writer(BlockThread):
    """Thread that writes consecutive transactions to each partition, and aborts every fourth."""

    def __init__(self, topic: TieredTopic) -> None:
        super().__init__()
        self._topic = topic
        self.committed: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}

    def tier(self) -> None:
        """Copy closed segments into the bucket."""
        self._topic.tier()

    def work(self) -> None:
        """Write about three transactions per second."""
        producer: Any = producer_of(
            self._topic.server, **{"transactional.id": f"kills-{id(self)}", "transaction.timeout.ms": "600000"}
        )
        producer.init_transactions(COMMITTED_S)
        number = 0
        while not self.stopped.wait(0.3):
            producer.begin_transaction()
            numbers = range(number, number + 40)
            records = [
                Produced(b"k", json.dumps({"n": one, "timestamp": FIRST_MS + one * 600_000}).encode())
                for one in numbers
            ]
            for partition in range(PARTITIONS):
                send(producer, self._topic.topic, records, partition=partition)
            number = numbers.stop
            if number // 40 % 4 == 0:
                producer.abort_transaction(COMMITTED_S)
                continue
            producer.commit_transaction(COMMITTED_S)
            for partition in range(PARTITIONS):
                self.committed[partition] += numbers


_logger: Final = logging.getLogger(__name__)

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
DAEMON = "pyspark.daemon"


@pytest.fixture
def killed(kafka: KafkaServer, tmp_path: Path) -> Iterator[Killed]:
    with closing(Killed(kafka, tmp_path)) as killed:
        yield killed


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_both_groups_keep_each_record_once_whatever_is_killed(killed: Killed) -> None:
    check_kills(killed, ["executor", "worker", "driver"], moments=random.Random(18))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_both_groups_keep_each_record_once_after_many_kills(killed: Killed) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown on failure
    moments = random.Random(seed)
    kinds = ["executor", "executor", "worker", "driver"]
    check_kills(killed, [moments.choice(kinds) for _ in range(200)], moments=moments)
    with killed.service() as process:
        with Writer(killed.topic):
            killed.wait_for_commits(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(COMMITTED_S) == 0, killed.said()
    killed.check_end()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.soak
@pytest.mark.parametrize("writes", [True, False])
def test_one_that_is_stopped_and_wakes_when_another_has_taken_over_writes_nothing_more(
    killed: Killed, *, writes: bool
) -> None:
    with killed.service() as process, Writer(killed.topic) if writes else contextlib.nullcontext():
        for _ in range(3 if writes else 1):
            killed.wait_for_commits(process)
        take_over_from_stopped(killed, process)
        before = killed.listed()
        os.killpg(process.pid, signal.SIGCONT)
        assert process.wait(COMMITTED_S) == 5, killed.said()
        assert killed.listed() == before
    killed.finish()
    killed.check_end()


def take_over_from_stopped(killed: Killed, process: subprocess.Popen[bytes]) -> None:
    def take_over() -> bool:
        os.killpg(process.pid, signal.SIGSTOP)
        try:
            killed.finish()
        except StoreUnavailableError:
            # The process was suspended while it held a folder's lock: resume it for a moment.
            os.killpg(process.pid, signal.SIGCONT)
            raise
        return True

    wait_until(take_over, COMMITTED_S, every_s=0.05, passing=(StoreUnavailableError,))


def check_kills(killed: Killed, kinds: list[str], *, moments: random.Random) -> None:
    rest = list(kinds)
    with Writer(killed.topic) as writer:
        while rest:
            with killed.service() as process:
                while rest:
                    killed.wait_for_commits(process)
                    time.sleep(moments.uniform(0, 1))
                    kind = rest.pop(0)
                    kill(process, kind)
                    killed.check()
                    writer.tier()
                    _logger.info("%d kills are left", len(rest))
                    if kind == "driver":
                        break
    killed.finish()
    killed.check_end(writer.committed)


def kill(process: subprocess.Popen[bytes], kind: str) -> None:
    if kind == "driver":
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        return
    chosen: list[int] = []

    def find() -> bool:
        assert process.poll() is None
        chosen[:] = _processes(process.pid, kind)
        return bool(chosen)

    wait_until(find, COMMITTED_S, every_s=0.05)
    with contextlib.suppress(ProcessLookupError):
        os.kill(chosen[-1], signal.SIGKILL)


def _processes(session: int, kind: str) -> list[int]:
    """Return the executors, or their Python workers with their daemons.

    Workers of a killed daemon have no parent in the session, but Spark still uses them.
    """
    executors = processes_of(session, named=EXECUTOR)
    if kind == "executor":
        return executors
    workers = processes_of(session, named=DAEMON)
    parents = {worker: parent_of(worker) for worker in workers}
    return [worker for worker, parent in parents.items() if parent in executors or not _is_in(session, parent)]


def _is_in(session: int, process: int) -> bool:
    try:
        return os.getsid(process) == session
    except ProcessLookupError:
        return False


ENDED_S = 300
FRAMED = {"frame": f"{pipeline_frames.__name__}:troubled", "secor__max__file__size__bytes": "500"}


def check(kept: Kept, file: Path, records: int) -> None:
    """Assert that each partition has each even offset once, and that the other offsets were dropped."""
    assert kept.offsets() == {(TOPIC, partition): list(range(0, records, 2)) for partition in (0, 1)}
    windows = [window for entry in commit_log_of(load_pipeline(file), kept.store).entries() for window in entry.windows]
    assert len(windows) > 4
    assert all(window.records + window.filtered == window.stop - window.start for window in windows)
    assert list(verify_output(load_pipeline(file), kept.store)) == []


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_batch_whose_worker_was_killed_is_repeated_by_the_next_query(
    spark: SparkSession, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In local mode Spark does not retry tasks, so the killed worker ends the query."""
    kept.write(80)
    file = kept.file(**FRAMED)
    monkeypatch.setenv(pipeline_frames.DEED, str(kept.folder / "worker"))
    (query,) = start_pipelines(spark, file, once=True)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(ENDED_S)
    assert kept.offsets() == {}
    (query,) = start_pipelines(spark, file, once=True)
    assert query.awaitTermination(ENDED_S)
    check(kept, file, 80)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("killed", ["worker", "executor"])
def test_a_task_whose_process_was_killed_is_done_again_elsewhere(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    kept.write(200)
    file = kept.file(**FRAMED)
    monkeypatch.setenv(pipeline_frames.DEED, str(kept.folder / killed))
    with pipeline_service(kept.folder, file, conf=EXECUTORS) as service:
        service.wait_until(lambda: sum(kept.committed(file).values()) == 400)
        kept.write(40)
        service.wait_until(lambda: sum(kept.committed(file).values()) == 480)
        service.stop()
    assert (kept.folder / killed).exists()
    check(kept, file, 240)
