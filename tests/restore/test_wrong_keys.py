"""With settings that cannot decrypt a bucket's later segments, commands fail with one sentence and write nothing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

import tieredstore as ts
from tests.restore.logdir.log_dirs import make_log_dir, prepared, tree, with_logs
from tests.restore.logdir.test_real_broker import stored
from tests.restore.produce.restores import committed
from tests.support.cli.cli_process import Result, tieredstore
from tests.support.golden.segments import segments, settings_text
from tests.support.kafka.kafka_topics import make_topic
from tests.support.paths import GOLDEN
from tests.support.servers.kafka import KafkaServer
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.logdir.prepared import new_plan

CASE: Final = "08-keyring"
SEGMENTS: Final = segments(CASE)
"""Segments of the golden bucket: key1 encrypts the first two, key2 the others."""

RIGHT: Final = settings_text(CASE)
PAIR: Final = "encryption.key.pairs"
Changes = Mapping[str, str | None]
FILES: Final = {f"{PAIR}.key2.{kind}.key.file": f"{PAIR}.key1.{kind}.key.file" for kind in ("public", "private")}
FAULTS: Final = pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({name: RIGHT[other] for name, other in FILES.items()}, "key pair 'key2' does not decrypt the data key"),
        (
            {PAIR: "key1", "encryption.key.pair.id": "key1", **dict.fromkeys(FILES)},
            "the data key is wrapped by key pair 'key2', which is not on the ring",
        ),
    ],
    ids=["wrong", "missing"],
)


def write_settings(folder: Path, changed: Changes) -> Path:
    path = folder / "store.properties"
    path.write_text(
        "".join(f"{name}={value}\n" for name, value in (RIGHT | dict(changed)).items() if value is not None)
    )
    return path


def check_refusal(done: Result, sentence: str) -> None:
    done.fails(4, sentence)
    *_, last = done.stderr.splitlines()
    assert sentence in last
    assert "Traceback" not in done.stderr


@FAULTS
def test_a_log_directory(tmp_path: Path, changed: Changes, sentence: str) -> None:
    log_dir, plan = make_log_dir(tmp_path / "logs", {"keyring": 1}), tmp_path / "restore.json"
    where = TopicIdPartition(Uuid.parse(SEGMENTS[0].topic_id), "keyring", 0)
    with ts.open(write_settings(tmp_path, {})) as bucket, new_plan(plan) as file:
        with_logs(prepared(where), bucket).write(file)

    def restore(changed: Changes) -> Result:
        return tieredstore("restore", "logdir", log_dir, "--plan", plan, "-c", write_settings(tmp_path, changed))

    before = tree(log_dir)
    check_refusal(restore(changed), sentence)
    assert tree(log_dir) == before
    restore({}).clean()
    for segment in SEGMENTS:
        made = log_dir / "keyring-0" / segment.original("log").name
        assert made.stat().st_size == segment.original("log").stat().st_size


@FAULTS
def test_a_running_cluster(kafka: KafkaServer, tmp_path: Path, changed: Changes, sentence: str) -> None:
    target, store = make_topic(kafka), tmp_path / "store"
    shutil.copytree(GOLDEN / CASE / "store", store)  # a copy, because the run writes its map into it

    def restore(changed: Changes) -> Result:
        settings = write_settings(tmp_path, {"storage.root": str(store), **changed})
        return tieredstore(
            "restore", "produce", f"keyring={target}", "-c", settings, "--bootstrap-server", kafka.bootstrap_servers
        )

    check_refusal(restore(changed), sentence)
    assert committed(kafka, target, 0) == []
    assert restore({}).code == 0
    with ts.open(write_settings(tmp_path, {})) as bucket:
        expected = stored(bucket, "keyring", 0, "read_committed")
    assert [record[3] for record in committed(kafka, target, 0)] == [record[3] for record in expected]
