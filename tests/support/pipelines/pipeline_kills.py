"""A service that is killed: its two pipelines, one per group, read a topic with a transactional producer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.kafka.kafka_topics import Produced, producer_of, send
from tests.support.kafka.live_topics import TieredTopic
from tests.support.pipelines.pipeline_runs import listed, verify_output
from tests.support.pipelines.pipeline_service import EXECUTORS, pipeline_service
from tests.support.pipelines.seen_output import SeenOutput
from tests.support.servers.kafka import KafkaServer
from tests.support.waiting import BlockThread, wait_until
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.pipelines import Runner, load_pipeline
from tieredstore.pipelines.run.stores import open_parts

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
