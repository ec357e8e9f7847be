"""``restore produce --backup`` writes each record once, from files of pipelines and of Secor, Iceberg tables and
batches. ``restore verify --backup`` compares the results.
"""

from __future__ import annotations

import itertools
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

import tieredstore as ts
from tests.restore.produce.restores import TIME_MS, Kept, Restore, SourceBucket, committed, mapped, mixed_topics
from tests.support.cli.cli_process import Result, tieredstore
from tests.support.kafka.kafka_topics import Produced, make_topic, produce
from tests.support.pipelines.secor_files import sequence_file
from tests.support.pubsub.pubsub_topics import topics_in
from tests.support.records.topic_buckets import Bucket
from tests.support.servers.kafka import KafkaServer
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.errors import DataLossError
from tieredstore.format.cluster_snapshot import ClusterSnapshot, TopicSettings
from tieredstore.ops.snapshots.storing import Snapshots
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import Compression, ProducerRequest, seal_message
from tieredstore.pubsub.produce.batch_writer import BatchWriter, SealedMessage
from tieredstore.pubsub.queue.topics import BatchLog
from tieredstore.records.settings import OnDataLoss
from tieredstore.restore.cli.produce import open_backup
from tieredstore.restore.comparison import Comparison
from tieredstore.restore.pairs import RecordDifference
from tieredstore.restore.produce.offset_map import OffsetMap, load_map
from tieredstore.restore.produce.producing import ProduceRun
from tieredstore.restore.produce.runs import OffsetRun, ProduceOptions
from tieredstore.restore.produce.source import BackupTopics

FOREVER = {"retention.ms": "-1", "retention.bytes": "-1"}


def pipeline_file(folder: Path, bucket: Path, **more: str) -> Path:
    """Write the settings of a pipeline from a bucket into ``folder/files``."""
    settings = {
        "pipeline.name": "kept",
        "storage.backend.class": "filesystem",
        "storage.root": str(bucket),
        "output.storage.backend.class": "filesystem",
        "output.storage.root": str(folder / "files"),
        "output.key.prefix": "out/",
        **{name.replace("__", "."): text for name, text in more.items()},
    }
    path = folder / "pipeline.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    (folder / "files").mkdir(exist_ok=True)
    return path


def verify(store: Path, server: KafkaServer, *words: object) -> Result:
    servers = "--bootstrap-server", server.bootstrap_servers
    return tieredstore("restore", "verify", *words, "--store", store, *servers, "--json")


def batch_topics(folder: Path, *names: str, partitions: int, **settings: str) -> SourceBucket:
    """Return a bucket with topics of batches; write its ``store.properties``. Repeat a Message and a batch."""
    made, source, request_ids = SourceBucket(Bucket(folder)), random.Random(1), itertools.count()
    options = made.bucket.options | {f"pubsub.{name}": text for name, text in settings.items()}
    (folder / "store.properties").write_text("".join(f"{name}={text}\n" for name, text in options.items()))
    topics = topics_in(made.bucket.root, **settings)
    for topic, number in itertools.product(names, range(partitions)):
        created = topics.get(topic) if number else topics.create(topic, partitions)
        kept = made.committed.setdefault((topic, number), [])
        with closing(BatchWriter(BatchLog(topics, created))) as writer, topics.queue(created) as queue:
            for _ in range(4):
                (first, copied), (second, later) = (sealed_records(source, next(request_ids)) for _ in range(2))
                _, offset = writer.write([first, first, second], Deadline.after(60), number)
                begin = offset << 24
                kept += [(begin + at, *record) for at, record in enumerate(copied)]
                kept += [(begin + 2 * len(copied) + at, *record) for at, record in enumerate(later)]
            queue.append(number, [list(queue.walk(number))[-1].raw], Deadline.after(60))
    return made


def sealed_records(source: random.Random, request_id: int) -> tuple[SealedMessage, list[Any]]:
    """Return a Message of random records, and the records as a restore must produce them."""
    body, kept = BodyWriter(1 << 20), list[Any]()
    for _ in range(source.randrange(1, 9)):
        key, value = source.choice([None, b"", b"key"]), source.randbytes(source.randrange(400))
        headers = source.choice([None, [("h", b"1"), ("", b""), ("ключ", b"\xff")]])
        time_ms = TIME_MS + source.randrange(10**6)
        assert body.take(value, key, headers, source.choice([None, b"id"]), time_ms) >= 0
        kept.append((time_ms, key or None, value, headers))
    request = ProducerRequest(b"\x7f\0\0\1", 7, request_id)
    message = seal_message(body, len(kept), request, Compression.ZSTD)
    return SealedMessage(message, request, len(kept), TIME_MS, TIME_MS + 10**6), kept


def restore_by_command(backup: Path, store: Path, server: KafkaServer, *words: str) -> Result:
    servers = "--bootstrap-server", server.bootstrap_servers
    return tieredstore("restore", "produce", *words, "--backup", backup, "--store", store, *servers)


def catalog_of(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def compact_table(folder: Path) -> None:
    """Move the rows of the Iceberg table to one file, and delete the pipeline's files."""
    with closing(load_catalog("default", **catalog_of(folder))) as catalog:
        table = catalog.load_table("logs.kept")
        table.overwrite(table.scan().to_arrow())
        (_,) = table.scan().plan_files()
    old = [*(folder / "files").rglob("*.parquet")]
    assert old
    for path in old:
        path.unlink()


def kept_topics(kafka: KafkaServer, folder: Path, name: str, partitions: int = 2) -> Restore:
    """Return a restore from files of a pipeline in this format, from its Iceberg table, or from batches."""
    if name.startswith("batches"):
        in_kafka = {"queue": "kafka", "kafka.bootstrap.servers": kafka.bootstrap_servers}
        queue = in_kafka if name.endswith("queue in kafka") else {}
        source = batch_topics(folder, "orders", "payments", partitions=partitions, **queue)
        restore = Restore.into(kafka, source)
        restore.backup = folder / "store.properties"
        return restore
    restore = Restore.into(kafka, mixed_topics(folder, "orders", "payments", partitions=partitions))
    form = "parquet" if name == "iceberg" else name
    settings = {"file__reader__writer__factory": form, "compression__codec": "gzip", "max__file__size__bytes": "2000"}
    table = {f"table__iceberg__catalog__{key}": text for key, text in catalog_of(folder).items()}
    more = {"table": "iceberg", "table__iceberg__name": "logs.kept", **table} if name == "iceberg" else {}
    bucket = restore.source.bucket.root
    given = {f"secor__{each}": text for each, text in settings.items()} | more
    restore.backup = pipeline_file(folder, bucket, **given)
    tieredstore("pipeline", "run", restore.backup, "--once").clean()
    return restore


@pytest.mark.parametrize(
    "name",
    [
        "parquet",
        pytest.param("sequencefile", marks=pytest.mark.soak),
        pytest.param("avro", marks=pytest.mark.soak),
        "iceberg",
        "batches, queue in kafka",
    ],
)
def test_topics_of_a_backup_come_back_whole(kafka: KafkaServer, tmp_path: Path, name: str) -> None:
    restore = kept_topics(kafka, tmp_path, name)
    assert restore.die("commit", 3)
    if name == "iceberg":
        compact_table(tmp_path)
    assert not restore.die("")
    restore.check()
    run = ProduceOptions(topics=restore.topics).run
    summary = verify(restore.source.bucket.root, kafka, run, "--backup", restore.backup).clean().rows[1]
    records = sum(map(len, restore.source.committed.values()))
    assert (summary["records"], summary["different"], summary["with_losses"]) == (records, 0, 0)
    assert bool(summary["not_compared"]) == name.startswith("batches")


@pytest.mark.soak
def test_batches_come_back_once_whatever_kills_the_run(kafka: KafkaServer, tmp_path: Path) -> None:
    restore = kept_topics(kafka, tmp_path, "batches")
    restore.die_before_each_step()
    restore.check()


def test_batches_say_what_they_lack_and_what_is_wrong(kafka: KafkaServer, tmp_path: Path) -> None:
    restore = kept_topics(kafka, tmp_path, "batches", partitions=1)
    settings, store, target = tmp_path / "store.properties", restore.source.bucket.root, restore.topics["orders"]
    kept = len(restore.source.committed["orders", 0])
    tieredstore("restore", "produce", "orders", "--store", store, "--bootstrap-server", kafka.bootstrap_servers).fails(
        3, "there is no topic 'orders' in the bucket", "give --backup"
    )
    restore_by_command(settings, store, kafka, "ordres").fails(
        3, "has no topic ordres of batches", "did you mean orders?"
    )
    restore_by_command(settings, store, kafka, "other").fails(3, "has no topic other of batches", "pipeline.name")
    plan = restore_by_command(settings, store, kafka, f"orders={target}", "--dry-run", "--json")
    checks, summary = plan.rows
    lacking = "empty keys become null keys, null values become empty values, and message ids are not restored"
    assert (plan.code, summary["records"], checks[0]["detail"]) == (0, kept, lacking)
    batch = min(store.glob("*/default/topics/orders/*"))
    whole = batch.read_bytes()
    batch.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    restore_by_command(settings, store, kafka, f"orders={target}").fails(
        4, f"{batch.name}: the object's CRC-32 differs"
    )
    batch.write_bytes(whole)
    done = restore_by_command(settings, store, kafka, f"orders={target}", "--json")
    assert (done.code, done.rows[1]["records"], done.rows[1]["repeats"] > 0) == (0, kept, True), done
    assert f"source: {lacking}" in done.stderr
    assert len(committed(kafka, target, 0)) == kept


SECORS = {
    f"dt=1/1_0_{100:020}": [100, 103, 105, 111, 112],
    f"dt=2/1_0_{100:020}": [101, 103],
    f"dt=2/1_0_{110:020}": [111, 110, 114],
    **{f"dt=3/1_0_{start:020}": [start, start + 9, start + 11] for start in range(120, 190, 10)},
}
"""Secor's files with their offsets. Each upload ends after the next upload's start; two records occur twice."""
SECOR_OFFSETS = sorted({offset for offsets in SECORS.values() for offset in offsets})


@pytest.fixture
def secor(tmp_path: Path) -> Path:
    """Return the settings of Secor's files."""
    settings = pipeline_file(tmp_path, tmp_path, secor__file__reader__writer__factory="sequencefile")
    for name, offsets in SECORS.items():
        path = tmp_path / "files" / "out" / "orders" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sequence_file({offset: b"value %d" % offset for offset in offsets}))
    return settings


def test_secors_files_come_back_once_and_what_they_lack_is_said_first(
    kafka: KafkaServer, secor: Path, tmp_path: Path
) -> None:
    target = make_topic(kafka, FOREVER)
    plan = restore_by_command(secor, tmp_path, kafka, f"orders={target}", "--dry-run", "--json")
    checks, summary = plan.rows
    lacking = [check["detail"] for check in checks if check["check"] == "source"]
    assert [check["detail"] for check in checks[: len(lacking)]] == lacking
    assert lacking[-1] == "records have no headers, keys and times, and null values become empty values"
    assert (plan.code, summary["records"]) == (0, len(SECOR_OFFSETS))
    done = restore_by_command(secor, tmp_path, kafka, f"orders={target}", "--json")
    assert (done.code, done.rows[1]["records"], done.rows[1]["repeats"]) == (0, len(SECOR_OFFSETS), 2), done
    assert f"source: {lacking[-1]}" in done.stderr
    found = committed(kafka, target, 0)
    assert [record[1:] for record in found] == [(-1, None, b"value %d" % offset, None) for offset in SECOR_OFFSETS]
    offsets = load_map(FilesystemObjectStore(tmp_path), "", f"orders={target}")
    assert mapped(offsets, "orders", 0) == list(zip(SECOR_OFFSETS, [record[0] for record in found], strict=True))
    run = f"orders={target}"
    compared = verify(tmp_path, kafka, run, "--backup", secor).clean()
    assert compared.rows[1] == {
        "partitions": 1, "records": len(SECOR_OFFSETS), "different": 0, "with_losses": 0, "not_compared": lacking,
    }  # fmt: skip
    began = f"the run {run} restored orders of pipeline kept, generation 1, no topic id"
    verify(tmp_path, kafka, run).fails(2, f"{began}: name the settings of this backup (--backup)")
    secor.write_text(secor.read_text().replace("kept", "another"))
    verify(tmp_path, kafka, run, "--backup", secor).fails(2, f"the run {run} did not restore this backup (--backup), b")
    verify(tmp_path, kafka, "orders", "--same-offsets", "--backup", secor).fails(2, "leave out --backup")


RESTORED: list[tuple[int | None, Produced | None]] = [
    (offset, Produced(None, b"value %d" % offset, timestamp_ms=-1)) for offset in SECOR_OFFSETS
]
"""Target's records with their source offsets. A foreign record has no offset; a missing record is None."""
FOREIGN = Produced(None, b"foreign", timestamp_ms=-1)
KEYED = Produced(b"a key", b"value 191", timestamp_ms=-1)
LAST = len(RESTORED) - 1


@pytest.mark.parametrize(
    ("there", "difference"),
    [
        (RESTORED, None),
        ([*RESTORED[:3], (105, FOREIGN), *RESTORED[4:]], RecordDifference("value", 105, 3)),
        ([*RESTORED[:-1], (191, KEYED)], RecordDifference("key", 191, LAST)),
        ([*RESTORED[:-1], (191, None)], RecordDifference("missing", 191, LAST)),
        ([*RESTORED[:2], (None, FOREIGN), *RESTORED[2:]], RecordDifference("extra", None, 2)),
    ],
    ids=["equal", "value", "key", "missing", "foreign"],
)
def test_a_target_that_differs_from_secors_files(
    kafka: KafkaServer,
    secor: Path,
    tmp_path: Path,
    there: list[tuple[int | None, Produced | None]],
    difference: RecordDifference | None,
) -> None:
    target, offsets = make_topic(kafka), OffsetMap("by-hand")
    produce(kafka, target, [record for _, record in there if record is not None])
    offsets.add_topic("orders", target)
    offsets.extend(OffsetRun("orders", 0, offset, 0, at, 1) for at, (offset, _) in enumerate(there) if offset)
    with ts.open(str(tmp_path)) as bucket, open_backup(secor, ["orders"]) as backup:
        (one,) = Comparison(bucket.manager, {"bootstrap.servers": kafka.bootstrap_servers}).run(offsets, backup)
    assert (one.difference, one.digest == one.target_digest) == (difference, one.difference is None)


@pytest.mark.soak
def test_secors_files_come_back_once_whatever_kills_the_run(kafka: KafkaServer, secor: Path, tmp_path: Path) -> None:
    records: list[Kept] = [(offset, -1, None, b"value %d" % offset, None) for offset in SECOR_OFFSETS]
    source = SourceBucket(Bucket(tmp_path), {("orders", 0): records})
    restore = Restore(source, kafka, {"orders": make_topic(kafka, FOREVER)}, secor)
    # Each upload becomes a transaction. Each transaction also has a record that only a file of the previous upload has.
    restore.die_before_each_step()
    restore.check()


def test_a_target_that_deletes_old_records_is_refused(kafka: KafkaServer, secor: Path, tmp_path: Path) -> None:
    target = make_topic(kafka, {"retention.ms": "604800000"})
    refused = restore_by_command(secor, tmp_path, kafka, f"orders={target}")
    refused.fails(2, f"{target} deletes old records (retention.ms=604800000, retention.bytes=-1)", "set both to -1")
    assert committed(kafka, target, 0) == []


# Kind of file to damage: a SequenceFile, its sidecar with keys and headers, or a batch.
@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("sequencefile", "files/out/orders/**/*.seq"),
        ("sequencefile", "files/out/orders/**/*.parquet"),
        ("batches", "bucket/*/default/topics/orders/*"),
    ],
)
def test_missing_files_are_a_loss(kafka: KafkaServer, tmp_path: Path, name: str, files: str) -> None:
    restore = kept_topics(kafka, tmp_path, name, partitions=1)
    settings = restore.backup
    assert settings is not None
    del restore.source.committed["payments", 0]
    restore.topics = {"orders": restore.topics["orders"]}
    sorted(tmp_path.glob(files))[1].unlink()
    with open_backup(settings, ["orders"]) as backup:
        manager, topics, servers = restore.source.bucket.manager, dict(restore.topics), kafka.bootstrap_servers

        def run(policy: OnDataLoss) -> None:
            source = BackupTopics(manager, ProduceOptions(topics=topics, on_data_loss=policy), backup)
            list(ProduceRun(source, {"bootstrap.servers": servers}).outcomes())

        ((start, stop),) = backup.holes(("orders", 0), *backup.spans()["orders", 0])
        missing = f"offsets {start} to {stop - 1} of orders-0 are missing in the backup"
        with pytest.raises(DataLossError, match=missing):
            run("fail")
        restore_by_command(
            settings, tmp_path / "bucket", kafka, f"orders={topics['orders']}", "--dry-run"
        ).fails(3, missing)  # fmt: skip
        run("report")
    lossy = verify(restore.source.bucket.root, kafka, ProduceOptions(topics=restore.topics).run, "--backup", settings)
    assert (lossy.code, lossy.rows[0][0]["lost"], lossy.rows[1]["different"]) == (3, [[start, stop - 1]], 0), lossy
    kept = restore.source.committed["orders", 0]
    restore.source.committed["orders", 0] = [record for record in kept if not start <= record[0] < stop]
    assert 0 < len(restore.source.committed["orders", 0]) < len(kept)
    restore.check()


def test_a_topic_of_a_backup_is_created_by_a_snapshot_of_the_bucket(
    kafka: KafkaServer, secor: Path, tmp_path: Path
) -> None:
    target, words = f"{make_topic(kafka)}-new", ("--create-with", "snapshot")
    with ts.open(tmp_path) as bucket:
        for taken_ms, retention in ((1000, "604800000"), (2000, "-1")):
            held = TopicSettings("orders", "AAAAAAAAAAAAAAAAAAAAAA", 2, 1, {"retention.ms": retention})
            Snapshots.of(bucket.manager).write(ClusterSnapshot("c1", taken_ms, (held,)), is_hourly=False)
            done = restore_by_command(secor, tmp_path, kafka, f"orders={target}", *words)
            if retention != "-1":
                # If the restore is refused, its target is not created.
                done.fails(2, f"{target} deletes old records (retention.ms=604800000, retention.bytes=-1)")
    assert done.code == 0, done
    assert f"created {target}" in done.stderr
    assert len(committed(kafka, target, 0)) == len(SECOR_OFFSETS)
