"""``restore produce --backup``: topics from files of pipelines, of Secor and from batches, each record once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.restore.produce.restores import Kept, Restore, SourceBucket, committed, mapped, mixed_topics
from tests.restore.produce.test_produced_once import STEPS
from tests.support.cli.cli_process import Result, tieredstore
from tests.support.kafka.kafka_topics import make_topic
from tests.support.pipelines.secor_files import sequence_file
from tests.support.records.topic_buckets import Bucket
from tests.support.servers.kafka import KafkaServer
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.errors import DataLossError
from tieredstore.records.settings import OnDataLoss
from tieredstore.restore.cli.produce import open_backup
from tieredstore.restore.produce.offset_map import load_map
from tieredstore.restore.produce.producing import ProduceRun
from tieredstore.restore.produce.runs import ProduceOptions
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


def restore_by_command(backup: Path, store: Path, server: KafkaServer, *words: str) -> Result:
    servers = "--bootstrap-server", server.bootstrap_servers
    return tieredstore("restore", "produce", *words, "--backup", backup, "--store", store, *servers)


@pytest.mark.parametrize("name", ["parquet", "sequencefile", "avro"])
def test_files_of_a_pipeline_come_back_whole(kafka: KafkaServer, tmp_path: Path, name: str) -> None:
    restore = Restore.into(kafka, mixed_topics(tmp_path, "orders", "payments"))
    settings = {"file__reader__writer__factory": name, "compression__codec": "gzip", "max__file__size__bytes": "2000"}
    bucket = restore.source.bucket.root
    restore.backup = pipeline_file(tmp_path, bucket, **{f"secor__{each}": text for each, text in settings.items()})
    tieredstore("pipeline", "run", restore.backup, "--once").clean()
    assert restore.die("commit", 3)
    assert not restore.die("")
    restore.check()


SECORS = {
    f"dt=1/1_0_{100:020}": [100, 103, 105, 111, 112],
    f"dt=2/1_0_{100:020}": [101, 103],
    f"dt=2/1_0_{110:020}": [111, 110, 114],
    **{f"dt=3/1_0_{start:020}": [start, start + 9, start + 11] for start in range(120, 190, 10)},
}
"""Secor's files with their offsets. Each upload has a record beyond the start of the next one; two are there twice."""
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
    assert lacking[-1] == "records have no headers, keys and times, and a null value is an empty one"
    assert (plan.code, summary["records"]) == (0, len(SECOR_OFFSETS))
    done = restore_by_command(secor, tmp_path, kafka, f"orders={target}", "--json")
    assert (done.code, done.rows[1]["records"], done.rows[1]["repeats"]) == (0, len(SECOR_OFFSETS), 2), done
    assert f"source: {lacking[-1]}" in done.stderr
    found = committed(kafka, target, 0)
    assert [record[1:] for record in found] == [(-1, None, b"value %d" % offset, None) for offset in SECOR_OFFSETS]
    offsets = load_map(FilesystemObjectStore(tmp_path), "", f"orders={target}")
    assert mapped(offsets, "orders", 0) == list(zip(SECOR_OFFSETS, [record[0] for record in found], strict=True))
    tieredstore(
        "restore", "verify", f"orders={target}", "--store", tmp_path, "--bootstrap-server", kafka.bootstrap_servers
    ).fails(2, "restored orders from a backup, and only buckets can be compared: pipeline kept, generation 1")


def test_secors_files_come_back_once_whatever_kills_the_run(kafka: KafkaServer, secor: Path, tmp_path: Path) -> None:
    records: list[Kept] = [(offset, -1, None, b"value %d" % offset, None) for offset in SECOR_OFFSETS]
    source = SourceBucket(Bucket(tmp_path), {("orders", 0): records})
    restore = Restore(source, kafka, {"orders": make_topic(kafka, FOREVER)}, secor)
    # A transaction for each upload. Each also has a record that only a file of the upload before has.
    for step in STEPS[:-2]:
        assert restore.die(step, 2), step
    assert restore.die("map")
    assert restore.die("tombstone")
    assert not restore.die("")
    restore.check()


def test_a_target_that_deletes_old_records_is_refused(kafka: KafkaServer, secor: Path, tmp_path: Path) -> None:
    target = make_topic(kafka, {"retention.ms": "604800000"})
    refused = restore_by_command(secor, tmp_path, kafka, f"orders={target}")
    refused.fails(2, f"{target} deletes old records (retention.ms=604800000, retention.bytes=-1)", "set both to -1")
    assert committed(kafka, target, 0) == []


@pytest.mark.parametrize("suffix", [".seq", ".parquet"])
def test_missing_files_are_a_loss(kafka: KafkaServer, tmp_path: Path, suffix: str) -> None:
    restore = Restore.into(kafka, mixed_topics(tmp_path, "orders", partitions=1))
    settings = pipeline_file(
        tmp_path, restore.source.bucket.root, secor__file__reader__writer__factory="sequencefile",
        secor__max__file__size__bytes="2000",
    )  # fmt: skip
    tieredstore("pipeline", "run", settings, "--once").clean()
    # A SequenceFile, or the sidecar that has the keys and headers of another.
    gone = sorted(path for path in (tmp_path / "files" / "out" / "orders").rglob("*") if path.suffix == suffix)[1]
    gone.unlink()
    with open_backup(settings, ["orders"]) as backup:
        manager, topics, servers = restore.source.bucket.manager, dict(restore.topics), kafka.bootstrap_servers

        def run(policy: OnDataLoss) -> None:
            source = BackupTopics(manager, ProduceOptions(topics=topics, on_data_loss=policy), backup)
            list(ProduceRun(source, {"bootstrap.servers": servers}).outcomes())

        ((start, stop),) = backup.holes(("orders", 0), *backup.extents()["orders", 0])
        with pytest.raises(DataLossError, match=f"offsets {start} to {stop - 1} of orders-0 are missing in the backup"):
            run("fail")
        run("report")
    kept = restore.source.committed["orders", 0]
    restore.source.committed["orders", 0] = [record for record in kept if not start <= record[0] < stop]
    assert 0 < len(restore.source.committed["orders", 0]) < len(kept)
    restore.check()
