"""Uploads from a real broker, with short retention, a hanging transaction, a failing store and repeated kills:
nothing is lost.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.support.cli.cli_process import command, environment
from tests.support.golden.records import rows_of
from tests.support.kafka.kafka_topics import CODECS, TIMEOUT_S, make_topic
from tests.support.records.record_reader import read_records
from tests.support.servers.kafka import KafkaServer, start_kafka
from tests.support.uploader.uploader_disk import watermark_of
from tests.support.uploader.uploader_runs import Written, uploader_process
from tests.support.waiting import wait_until
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.config import settings_from
from tieredstore.kafka.logdir import discover
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager

pytestmark = [pytest.mark.slow, pytest.mark.broker]

PARTITIONS: Final = 4
TOPIC: Final = {
    "internal.segment.bytes": "20000",
    "retention.bytes": "20000",
    # Files that retention has marked stay long enough to restart a killed process repeatedly, even on a busy machine.
    "file.delete.delay.ms": "1800000",
}


def producer_for(server: KafkaServer, codec: str, transactional_id: str | None) -> Producer:
    small = {"batch.size": "4000", "linger.ms": "5", "enable.idempotence": "true", "log_level": "0"}
    # This is the longest timeout that the broker allows, because one transaction hangs for most of the test.
    transactional = (
        {} if transactional_id is None else {"transactional.id": transactional_id, "transaction.timeout.ms": "900000"}
    )
    producer = Producer(
        {"bootstrap.servers": server.bootstrap_servers, "compression.type": codec, **small, **transactional}
    )
    if transactional_id is not None:
        producer.init_transactions(TIMEOUT_S)
    return producer


def write_rounds(server: KafkaServer, topics: list[str], written: Written, rounds: int) -> None:
    """Write with five codecs, in committed and aborted transactions and without any."""
    source = random.Random(20)
    ways = itertools.cycle(itertools.product(CODECS, [None, "commit", "abort"]))
    producers = {
        (codec, outcome): producer_for(server, codec, outcome and f"{codec}-{outcome}")
        for codec, outcome in itertools.product(CODECS, [None, "commit", "abort"])
    }
    for number in range(rounds):
        codec, outcome = next(ways)
        written.write(producers[codec, outcome], topics[number % len(topics)], source, 150, outcome)
    # Write enough for the last closed segments to have the outcomes of all transactions.
    for topic in topics:
        for _ in range(4):
            written.write(producers["none", None], topic, source, 150, None)


class HangingTransaction:
    """Transaction that begins with the first record of a partition, so that no later record is stable."""

    def __init__(self, server: KafkaServer, topic: str, written: Written) -> None:
        self._server, self.topic, self._written = server, topic, written
        self._producer = producer_for(server, "none", "hanging")
        self._producer.begin_transaction()
        written.send(self._producer, topic, 0, b"never to be seen by whoever reads committed", "abort")
        assert self._producer.flush(TIMEOUT_S) == 0

    def is_passed(self, store: FilesystemObjectStore) -> bool:
        """Return True if a segment is shipped. While the transaction hangs, only segments that retention has reached
        are shipped.
        """
        return any(not segment.missing for segment in list_segments(store, "", Scope(self.topic, None, 0)))

    def end(self) -> None:
        """Abort the transaction, and close the segment with its outcome."""
        self._producer.abort_transaction(TIMEOUT_S)
        producer, source = producer_for(self._server, "none", None), random.Random(21)
        for _ in range(4):
            self._written.write(producer, self.topic, source, 150, None)


def objects(store: FilesystemObjectStore) -> int:
    return sum(1 for info in store.list() if info.key.endswith(".rsm-manifest"))


def ship_under_fire(folder: Path, *, rounds: int, kills: int) -> None:
    """Run the writer, the transaction, retention and kills at the same time, then check the stored records."""
    bucket = folder / "bucket"
    bucket.mkdir()
    store = FilesystemObjectStore(bucket)
    with start_kafka() as server:
        topics = [make_topic(server, TOPIC, partitions=PARTITIONS) for _ in range(3)]
        settings = folder / "uploader.properties"
        lines = {
            "storage.backend.class": "tests.support.stores.failing_folder.FailingFolder",
            "storage.folder": str(bucket),
            "storage.failing": "5",
            "chunk.size": "4096",
            "uploader.log.dirs": str(server.log_dir),
            "uploader.kafka.bootstrap.servers": server.bootstrap_servers,
            "uploader.topics.include": ",".join(topics),
            "uploader.drain.ms": "20000",
        }
        settings.write_text("".join(f"{name}={text}\n" for name, text in lines.items()))
        written = Written(PARTITIONS)
        hanging = HangingTransaction(server, topics[0], written)
        writer = threading.Thread(target=write_rounds, args=(server, topics, written, rounds), daemon=True)
        writer.start()
        source = random.Random(3)
        for _ in range(kills):
            with uploader_process(settings, folder / "log") as process:
                before = objects(store)
                # Let the uploader ship a segment, then kill it at a random moment.
                wait_until(lambda: objects(store) > before or not writer.is_alive() or process.poll() is not None)  # noqa: B023
                time.sleep(source.random())
        writer.join(600)
        assert not writer.is_alive()
        assert written.failed == []
        with uploader_process(settings, folder / "log", measured=True) as process:
            # Segments that retention is about to delete do not wait for a transaction that is still open.
            wait_until(lambda: hanging.is_passed(store))
            hanging.end()
            wait_until(lambda: all_shipped(server, store, topics), 1800)
            process.send_signal(signal.SIGTERM)
            assert process.wait(240) == 0
        check(server, store, topics, written)


def partitions_of(server: KafkaServer, topics: list[str]) -> dict[TopicIdPartition, int]:
    """Return the base offset of each partition's active segment."""
    active: dict[TopicIdPartition, int] = {}
    for segment in discover(server.log_dir).segments:
        if segment.topic in topics and segment.next_base_offset is None:
            raw = (segment.directory / "partition.metadata").read_text()
            topic_id = Uuid.parse(raw.rpartition(": ")[2].strip())
            active[TopicIdPartition(topic_id, segment.topic, segment.partition)] = segment.base_offset
    return active


def all_shipped(server: KafkaServer, store: FilesystemObjectStore, topics: list[str]) -> bool:
    for partition, active in partitions_of(server, topics).items():
        try:
            if watermark_of(store, partition).next_offset < active:
                return False
        except Exception:  # noqa: BLE001  no watermark yet
            return active == 0
    return True


def check(server: KafkaServer, store: FilesystemObjectStore, topics: list[str], written: Written) -> None:
    """Check that each record of each closed segment is stored once, in either isolation, without holes."""
    settings = settings_from({"storage.backend.class": "filesystem", "storage.root": "unused", "chunk.size": "4096"})
    with RemoteStorageManager(settings, store=store) as manager:
        for partition, active in partitions_of(server, topics).items():
            watermark = watermark_of(store, partition)
            assert (watermark.next_offset, watermark.holes, watermark.moved_back) == (active, (), ())
            place = (partition.topic, partition.partition)
            expected = {offset: value for offset, value in written.values[place].items() if offset < active}
            assert expected, "nothing was closed: the test writes too little"
            read = rows_of(read_records(manager, *place, 0, active, isolation="read_uncommitted"))
            assert [(row["offset"], row["value"]) for row in read] == sorted(expected.items())
            committed = rows_of(read_records(manager, *place, 0, active, isolation="read_committed"))
            assert [row["offset"] for row in committed] == sorted(expected.keys() - written.aborted[place])
    whole = [segment for segment in list_segments(store) if not segment.missing]
    bases = [(segment.segment_id.topic_id_partition, segment.start_offset) for segment in whole]
    assert len(bases) == len(set(bases)), "a segment was shipped twice"


def test_killed_again_and_again_it_ships_each_record_once(tmp_path: Path) -> None:
    ship_under_fire(tmp_path, rounds=60, kills=4)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_a_hundred_times_it_ships_each_record_once(tmp_path: Path) -> None:
    ship_under_fire(tmp_path, rounds=2000, kills=100)


def test_the_uploader_starts_nothing_with_wrong_settings(tmp_path: Path) -> None:
    settings = tmp_path / "uploader.properties"
    settings.write_text("storage.backend.class=memory\nchunk.size=4096\nuploader.strat=latest\n")
    done = subprocess.run(
        command("uploader", "-c", settings), env=environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "did you mean uploader.start" in done.stderr
    assert os.fspath(sys.executable) not in done.stderr
