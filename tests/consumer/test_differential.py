"""Differential test: bucket and broker as one log, read from each offset, against other clients' reads of the whole
log.

The other clients are confluent-kafka and aiokafka, and Java's console consumer for one topic of each kind.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from tests.consumer.test_live import gathered, has_as_many, properties, row_of, write
from tests.support.kafka.kafka_topics import (
    Produced,
    Row,
    Transaction,
    consumed,
    delete_records,
    end_offset,
    produce_transaction,
    producer_of,
    random_produced,
    send,
)
from tests.support.kafka.live_topics import SMALL_SEGMENTS, TieredTopic
from tests.support.servers.kafka import KafkaServer, java_command
from tests.support.waiting import wait_until
from tieredstore.consumer import Consumer
from tieredstore.errors import InvalidSegmentError
from tieredstore.model import Isolation

_NULL: Final = "<null>"
_BYTES: Final = "org.apache.kafka.common.serialization.BytesDeserializer"
_KINDS: Final = ("CreateTime", "LogAppendTime")
"""Words that begin a record's line, as opposed to log lines in the same stream."""
_TIMEOUT_S: Final = 120
_IDLE_MS: Final = 10_000
"""Milliseconds that the consumer waits for further records before it ends."""


def console_lines(server: KafkaServer, topic: str, folder: Path, *, isolation: Isolation) -> list[str]:
    """Return the console consumer's output for all records of partition 0, a line per record."""
    shown = {
        "print.timestamp": "true", "print.offset": "true", "print.headers": "true", "print.key": "true",
        "key.deserializer": _BYTES, "value.deserializer": _BYTES, "headers.deserializer": _BYTES,
        "null.literal": _NULL,
    }  # fmt: skip
    arguments = [
        "--bootstrap-server", server.bootstrap_servers, "--topic", topic, "--partition", "0", "--offset", "earliest",
        "--isolation-level", isolation, "--timeout-ms", str(_IDLE_MS),
        *(word for name, text in shown.items() for word in ("--property", f"{name}={text}")),
    ]  # fmt: skip
    command = [*java_command(folder, 'exec "$@"'), "org.apache.kafka.tools.consumer.ConsoleConsumer", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    # The consumer always ends by a timeout, which it reports and logs as an error.
    assert b"TimeoutException" in done.stderr or done.returncode == 0, done.stderr.decode()[-2000:]
    return [line for line in done.stdout.decode().splitlines() if line.startswith(_KINDS)]


def console_line(row: Row) -> str:
    """Return the line that the console consumer prints for a record."""
    kind = _KINDS[int(row["timestampType"])]
    headers = ",".join(f"{header['key']}:{_shown(header['value'])}" for header in row["headers"] or ())
    shown = (f"{kind}:{row['timestamp']}", f"Offset:{row['offset']}", headers or "NO_HEADERS")
    return "\t".join((*shown, _shown(row["key"]), _shown(row["value"])))


def _shown(data: bytes | None) -> str:
    """Format bytes like Java's class Bytes."""
    if data is None:
        return _NULL
    return "".join(chr(one) if 0x20 <= one <= 0x7E and one != 0x5C else f"\\x{one:02X}" for one in data)


pytestmark = [pytest.mark.slow, pytest.mark.broker]

DEADLINE_S: Final = 60.0
ISOLATIONS: Final[tuple[Isolation, ...]] = ("read_committed", "read_uncommitted")
_library: Any = confluent_kafka


class WholeLog:
    """Topic of about 300 records of all kinds, partly copied. Other clients read it before the broker deletes records.

    It has codecs, nulls, headers, and transactions of both outcomes. One transaction is still open at the bucket's end.
    """

    def __init__(self, server: KafkaServer, folder: Path, config: Mapping[str, str] = SMALL_SEGMENTS) -> None:
        self.server = server
        self.tiered = TieredTopic(server, folder, config=config)
        self.topic = self.tiered.topic
        self.seam = self._write(server)
        self.end = end_offset(server, self.topic)
        self.rows = {isolation: self._twin(isolation) for isolation in ISOLATIONS}
        self.segments = sorted(metadata.start_offset for metadata in self.tiered.copied.values())

    def _write(self, server: KafkaServer) -> int:
        """Write the records; return the bucket's end."""
        source = random.Random(3)
        for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
            write(self.tiered, random_produced(source, 30, size=400), codec=codec)
            outcome: Any = "abort" if number % 2 else "commit"
            produce_transaction(server, self.topic, random_produced(source, 20, size=400), outcome)
        open_one = Transaction(server)
        open_one.send(self.topic, random_produced(source, 10, size=400))
        write(self.tiered, random_produced(source, 30, size=400))
        seam = self.tiered.tier()
        open_one.end("abort")
        write(self.tiered, random_produced(source, 10))
        return seam

    def _twin(self, isolation: Isolation) -> list[Row]:
        """Return the records that aiokafka and the plain client read; assert that both read the same."""
        rows = consumed(self.server, self.topic, 0, self.end, isolation=isolation)
        client = _library.Consumer(
            {
                "bootstrap.servers": self.server.bootstrap_servers, "group.id": "twin", "enable.auto.commit": False,
                "isolation.level": isolation,
            }
        )  # fmt: skip
        client.assign([TopicPartition(self.topic, 0, 0)])
        plain = [row_of(message) for message in gathered([client], partial(has_as_many, rows))]
        client.close()
        assert plain == rows
        return rows

    def check(self, mode: str, isolation: Isolation, starts: Sequence[int]) -> None:
        """Read from each of these offsets to the end. If the broker is not read, read to the bucket's end."""
        own = {"tiered.storage.mode": mode, "isolation.level": isolation}
        with Consumer(properties(self.tiered) | own) as consumer:
            end = self._stored_end(consumer) if mode == "remote_only" else self.end
            for start in starts:
                consumer.assign([TopicPartition(self.topic, 0, start)])
                expected = [row for row in self.rows[isolation] if start <= row["offset"] < end]
                messages = gathered([consumer], partial(has_as_many, expected))
                assert [row_of(message) for message in messages] == expected, (mode, isolation, start)

    def _stored_end(self, consumer: Consumer) -> int:
        extent = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), DEADLINE_S)
        assert extent is not None
        return int(extent[1])

    def places_of_the_seam(self) -> list[int]:
        """Return possible starts of the broker's log, ascending: a segment's start, within a segment, and the bucket's
        end.

        The bucket's end is before the open transaction, whose outcome only the broker has.
        """
        middle = self.segments[len(self.segments) // 2]
        with Consumer(properties(self.tiered) | {"tiered.storage.mode": "remote_only"}) as consumer:
            return [0, middle, middle + 7, self._stored_end(consumer)]


class CompactedLog(WholeLog):
    """Log whose segments were compacted before copying: they start and end with removed offsets."""

    def __init__(self, server: KafkaServer, folder: Path) -> None:
        super().__init__(
            server, folder,
            {**SMALL_SEGMENTS, "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"},
        )  # fmt: skip

    def _write(self, server: KafkaServer) -> int:
        """End each segment with records whose keys recur in the next one."""
        # The producer is not idempotent, because the cleaner would keep the last offset of an idempotent one.
        producer = producer_of(server, **{"enable.idempotence": "false", "acks": "1"})
        for at in range(0, 300, 20):
            keys = [b"%d" % (number % 12) if number % 5 else b"only %d" % number for number in range(at, at + 20)]
            records = [
                Produced(key, b"%d" % number * 120) for number, key in zip(range(at, at + 20), keys, strict=True)
            ]
            send(producer, self.topic, records)
        before = end_offset(server, self.topic)
        wait_until(lambda: len(consumed(server, self.topic, 0, before, isolation="read_uncommitted")) <= 200)
        end = time.monotonic() + 3 * DEADLINE_S
        while True:
            try:
                return self.tiered.tier()
            except InvalidSegmentError:  # the cleaner has not finished the segment
                assert time.monotonic() < end


@pytest.fixture
def log(kafka: KafkaServer, tmp_path: Path) -> Iterator[WholeLog]:
    whole = WholeLog(kafka, tmp_path)
    yield whole
    whole.tiered.close()


def test_some_offsets_are_as_others_read_them(log: WholeLog) -> None:
    """Test about one offset in fifty, with a broker's log that starts in the middle of a segment."""
    middle = log.places_of_the_seam()[2]
    delete_records(log.server, log.topic, middle)
    starts = sorted({0, 71, middle - 1, middle, log.seam - 1, log.seam, log.end - 1})
    for mode in ("kafka_preferred", "remote_preferred"):
        for isolation in ISOLATIONS:
            log.check(mode, isolation, starts)
    log.check("remote_only", "read_committed", [0, middle])


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_offsets_are_as_others_read_them(log: WholeLog) -> None:
    """Test each mode and isolation level with each start of the broker's log."""
    modes = ("kafka_preferred", "remote_preferred", "remote_only")
    for place in log.places_of_the_seam():
        if place:
            delete_records(log.server, log.topic, place)
        for mode in modes:
            for isolation in ISOLATIONS:
                log.check(mode, isolation, range(log.end if mode != "remote_only" else log.seam))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_missing_segment_is_filled_by_the_broker(log: WholeLog) -> None:
    missing = log.segments[len(log.segments) // 2]
    log.tiered.manager.delete_log_segment_data(log.tiered.copied[0, missing])
    for mode in ("kafka_preferred", "remote_preferred"):
        for isolation in ISOLATIONS:
            log.check(mode, isolation, range(log.end))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_offset_of_a_log_with_holes(kafka: KafkaServer, tmp_path: Path) -> None:
    """Compaction removed offsets at the ends of segments, where librdkafka by itself reports oversized records."""
    compacted = CompactedLog(kafka, tmp_path)
    for place in (0, compacted.segments[len(compacted.segments) // 2] + 7):
        if place:
            delete_records(kafka, compacted.topic, place)
        for mode in ("kafka_preferred", "remote_preferred", "remote_only"):
            compacted.check(mode, "read_committed", range(compacted.end if mode != "remote_only" else compacted.seam))
    compacted.tiered.close()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [WholeLog, CompactedLog])
def test_java_and_we_read_the_same(kafka: KafkaServer, tmp_path: Path, kind: type[WholeLog]) -> None:
    """Test one topic of each kind from its beginning, before and after the broker has deleted most of it."""
    whole = kind(kafka, tmp_path)
    for isolation in ISOLATIONS:
        lines = console_lines(kafka, whole.topic, tmp_path, isolation=isolation)
        assert lines == [console_line(row) for row in whole.rows[isolation]]
    delete_records(kafka, whole.topic, whole.segments[-1])
    for mode in ("kafka_preferred", "remote_preferred"):
        for isolation in ISOLATIONS:
            whole.check(mode, isolation, [0])
    whole.tiered.close()
