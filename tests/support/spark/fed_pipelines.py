"""Pipeline over a broker's topic and its S3 bucket, with output to S3, while a producer keeps writing."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import KafkaException

from tests.support.kafka.kafka_topics import Produced, consumed, end_offset, produce_transaction, producer_of
from tests.support.kafka.live_topics import TieredTopic
from tests.support.pipelines.pipeline_runs import listed, rows_of, verify_output
from tests.support.pubsub.broker_processes import store_properties
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.s3_server import S3Server
from tests.support.stores.clouds import make_s3
from tests.support.waiting import END_S, BlockThread
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of

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
