"""Outages of stores and brokers while a pipeline runs on a real Spark: it waits, and continues by itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from tests.spark.pipelines.test_pipelines import wait_for
from tests.support.kafka.kafka_topics import Produced, consumed, end_offset, produce_transaction, producer_of
from tests.support.kafka.live_topics import TieredTopic
from tests.support.pipelines.pipeline_runs import listed, listed_offsets, rows_of, texts, verify_output
from tests.support.pipelines.pipeline_service import pipeline_service
from tests.support.pubsub.broker_processes import store_properties
from tests.support.servers.kafka import KafkaServer, start_kafka
from tests.support.servers.minio import start_minio
from tests.support.servers.process import ServerProcess
from tests.support.servers.s3_server import S3Server
from tests.support.spark.spark_pipelines import Kept
from tests.support.stores.clouds import make_s3
from tests.support.waiting import END_S, BlockThread
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.process.deadline import Deadline
from tieredstore.spark.pipelines.runs import PipelineRun

PARTITIONS = 2


class Fed:
    """Pipeline ``fed``, which files JSON by day. A plain Kafka consumer reads the records that it must output."""

    def __init__(self, kafka: KafkaServer, s3: S3Server, folder: Path, **changes: str) -> None:
        self.kafka, self.folder = kafka, folder
        place = s3.make_bucket()
        stored = store_properties(s3, place)
        self.topic = TieredTopic(kafka, folder, partitions=PARTITIONS, store=stored)
        self.store = make_s3(s3.endpoint_url, place)
        properties = {
            "pipeline.name": "fed",
            "kafka.new.consumer.topic.list": self.topic.topic,
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            **stored,
            **{f"output.{name}": text for name, text in stored.items() if name.startswith("storage.")},
            "output.key.prefix": "out/",
            "secor.message.parser.class": "json",
            "secor.max.file.age.seconds": "1",
            "secor.max.file.size.bytes": "30000",
            **{name.replace("__", "."): text for name, text in changes.items()},
        }
        self.file = folder / "fed.properties"
        self.file.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
        produce_transaction(kafka, self.topic.topic, [message(number) for number in range(50)], "abort")

    def committed(self) -> int:
        """Return the sum of the committed offsets of all partitions."""
        return sum(
            one.next_offset for one in commit_log_of(load_pipeline(self.file), self.store).read().positions.values()
        )

    def end(self) -> int:
        """Return the sum of the end offsets of all partitions."""
        return sum(end_offset(self.kafka, self.topic.topic, partition=partition) for partition in range(PARTITIONS))

    def check_end(self) -> None:
        """Assert that the output has each record of the topic once, with its value, and nothing else."""
        rows = sorted(
            (row["partition"], row["offset"], row["value"])
            for key in listed(self.store)
            for row in rows_of(self.store, key)
        )
        truth = [
            (partition, row["offset"], row["value"])
            for partition in range(PARTITIONS)
            for row in consumed(
                self.kafka, self.topic.topic, 0, end_offset(self.kafka, self.topic.topic, partition=partition),
                isolation="read_committed", partition=partition,
            )
        ]  # fmt: skip
        assert rows == truth
        assert list(verify_output(load_pipeline(self.file), self.store)) == []

    def close(self) -> None:
        """Close the connections to both servers."""
        self.topic.close()
        self.store.close()


def message(number: int) -> Produced:
    """Return a message ten minutes after the previous one."""
    value = json.dumps({"n": number, "timestamp": 1_700_000_000_000 + number * 600_000}).encode()
    return Produced(b"k", value)


class Feeding(BlockThread):
    """Producer that writes to each partition during the block, even if the broker fails."""

    def __init__(self, fed: Fed) -> None:
        super().__init__()
        self._fed = fed
        self.written = 0

    def work(self) -> None:
        """Write one message to each partition, ten times a second."""
        # Ignore delivery reports during an outage, because the test reads the topic itself at the end.
        producer = producer_of(self._fed.kafka, **{"message.timeout.ms": "600000", "log_level": "0"})
        while not self.stopped.wait(0.1):
            for partition in range(PARTITIONS):
                one = message(self.written)
                try:
                    producer.produce(
                        self._fed.topic.topic, one.value, one.key, partition=partition, timestamp=one.timestamp_ms
                    )
                except (BufferError, KafkaException):
                    continue
                self.written += 1
            producer.poll(0)
        producer.flush(END_S)


pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(1800)]

ENDED_S = 300
AWAY_S = {"store": 60, "broker": 75}
"""Seconds of an outage. Kafka clients retry for a minute, so only a longer outage makes the pipeline wait."""

BROKER = {"broker.session.timeout.ms": "20000", "initial.broker.registration.timeout.ms": "85000"}
"""A restarted broker can register only after its old session has expired. The second setting limits how long the broker
tries to register.
"""


@dataclass(frozen=True)
class Servers:
    """Servers of one test, by name."""

    fed: Fed
    processes: dict[str, ServerProcess | None]

    def of(self, name: str) -> ServerProcess:
        process = self.processes[name]
        assert process is not None
        return process


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with servers_of(tmp_path) as servers:
        yield servers


@contextmanager
def servers_of(folder: Path, **changes: str) -> Generator[Servers]:
    with start_minio() as minio, start_kafka(**BROKER) as kafka, closing(Fed(kafka, minio, folder, **changes)) as fed:
        yield Servers(fed, {"store": minio.process, "broker": kafka.process})


def leave(process: ServerProcess, way: str) -> None:
    """Kill the server, or suspend it with open connections."""
    if way == "killed":
        process.kill()
    else:
        process.stand_still()


def come_back(process: ServerProcess, way: str) -> None:
    if way == "killed":
        process.start()
    else:
        process.go_on()


@pytest.mark.soak
@pytest.mark.broker
@pytest.mark.parametrize("way", ["killed", "stopped"])
@pytest.mark.parametrize("server", ["store", "broker"])
def test_a_server_that_is_away_for_a_minute_is_waited_for(servers: Servers, server: str, way: str) -> None:
    fed, process = servers.fed, servers.of(server)
    with pipeline_service(fed.folder, fed.file) as service:
        with Feeding(fed):
            service.wait_until(lambda: fed.committed() > 100)
            fed.topic.tier()
            leave(process, way)
            with suppress(subprocess.TimeoutExpired):
                service.process.wait(AWAY_S[server])
            assert service.process.poll() is None, service.said()[-3000:]
            come_back(process, way)
            before = fed.committed()
            service.wait_until(lambda: fed.committed() > before + 100)
            fed.topic.tier()
        end = fed.end()
        service.wait_until(lambda: fed.committed() == end)
        service.stop()
    fed.check_end()


@pytest.mark.soak
@pytest.mark.broker
@pytest.mark.parametrize("server", ["store", "broker"])
def test_a_server_that_stays_away_for_longer_than_allowed_ends_it_with_75(tmp_path: Path, server: str) -> None:
    with servers_of(tmp_path, outage__seconds="10") as servers:
        fed = servers.fed
        with Feeding(fed), pipeline_service(tmp_path, fed.file) as service:
            service.wait_until(lambda: fed.committed() > 100)
            servers.of(server).kill()
            assert service.ended() == 75, service.said()[-3000:]
            servers.of(server).start()
        with pipeline_service(tmp_path, fed.file) as service:
            end = fed.end()
            service.wait_until(lambda: fed.committed() == end)
            service.stop()
        fed.check_end()


def test_a_store_that_is_started_again_is_gone_on_with(spark: SparkSession, kept: Kept) -> None:
    """The store of the output restarts; the source is a folder."""
    with start_minio() as minio:
        place = minio.make_bucket()
        process = minio.process
        assert process is not None
        output = {
            f"output.{name}": text
            for name, text in store_properties(minio, place).items()
            if name.startswith("storage.")
        }
        kept.write(20)
        file = kept.file(**texts(output), secor__max__file__age__seconds="0")
        with closing(make_s3(minio.endpoint_url, place)) as store, closing(PipelineRun(spark, file)) as run:
            wait_for(lambda: len(listed_offsets(store)) == 40, run.query)
            process.kill()
            kept.write(10)
            wait_for(lambda: run.counts()[2].waiting_seconds > 0, run.query)
            assert run.counts()[2].outages == 1
            process.start()
            wait_for(lambda: len(listed_offsets(store)) >= 60, run.query)
            run.drain(Deadline.after(ENDED_S))
            assert listed_offsets(store) == sorted(2 * list(range(30)))
