"""Opening a bucket: its cost, its description, its return values, and rejected sources."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tieredstore as ts
from tieredstore.backends.base import ObjectStore
from tieredstore.config import Settings
from tieredstore.errors import AlreadyClosedError
from tieredstore.model import Uuid
from tieredstore.query.writers import WRITERS


class NoStore(ObjectStore):
    """A store that must not be opened."""

    @classmethod
    def from_settings(cls, settings: Settings) -> ObjectStore:
        raise AssertionError(f"{settings.storage_backend} was opened")


def test_opening_and_showing_ask_no_store() -> None:
    secret = "hush"
    with ts.open(
        {"storage.backend.class": f"{__name__}:NoStore", "storage.secret": secret},
        broker={"bootstrap.servers": "kafka:9092", "sasl.password": secret},
        key_prefix="prod/",
    ) as bucket:
        assert repr(bucket) == f"Bucket('{__name__}:NoStore:prod/', broker='kafka:9092')"
        assert secret not in repr(bucket)
        assert pickle.loads(pickle.dumps(bucket)).settings == bucket.settings
    with pytest.raises(AlreadyClosedError, match="the bucket was closed"):
        bucket.topics()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://logs/prod/", "s3://logs/prod/"),
        ("gs://logs", "gs://logs/"),
        ("az://logs/x", "az://logs/x/"),
    ],
)
def test_a_bucket_says_where_it_is(url: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=a;AccountKey=aHVzaA==")
    with ts.open(url) as bucket:
        assert (bucket.url, repr(bucket)) == (shown, f"Bucket({shown!r})")


def test_importing_the_package_imports_nothing_of_it_and_no_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import tieredstore\n"
        "new = {name for name in set(sys.modules) - before if name.partition('.')[0] not in sys.stdlib_module_names}\n"
        "print(sorted(new)); print(sorted(dir(tieredstore)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    modules, names = done.stdout.splitlines()
    assert modules == "['tieredstore']"
    assert names == str(sorted(ts.__all__))


def test_each_public_name_is_there_and_no_other() -> None:
    of_wings = {"BatchConsumer", "BatchProducer", "Consumer", "Uploader"}
    there = set(ts.__all__) - (of_wings if find_spec("tieredstore.consumer") is None else set())  # `make core`
    assert all(getattr(ts, name) is not None for name in there)
    with pytest.raises(AttributeError, match="module 'tieredstore' has no attribute 'opne'"):
        ts.opne  # noqa: B018


def test_what_a_bucket_says_of_its_topics_and_segments(bucket: ts.Bucket) -> None:
    (topic,) = bucket.topics()
    assert (topic.name, topic.segments, topic.size) == ("txn", 5, 1_475_424)
    (partition,) = topic.partitions
    assert (partition.number, partition.earliest_offset, partition.end_offset, partition.gaps) == (0, 0, 3047, ())
    segments = bucket.segments("txn")
    assert [one.base_offset for one in segments] == [0, 605, 1209, 1815, 2420]
    assert [one.base_offset for one in bucket.segments("txn", 0, start=1000, stop=1815)] == [605, 1209]
    assert bucket.inspect("txn", 0, 605) == bucket.inspect("txn", 0, segments[1].segment_id) == segments[1]
    with pytest.raises(ts.errors.SegmentNotFoundError, match="no segment of txn-0 has the id"):
        bucket.inspect("txn", 0, Uuid.random())
    (usage,) = bucket.usage(by="partition")
    assert (usage.topic, usage.partition, usage.segments, usage.stored_size) == ("txn", 0, 5, topic.stored_size)
    assert bucket.segments("txn").to_arrow().num_rows == len(bucket.segments("txn").to_pandas()) == 5
    assert set(bucket.topics().to_pandas()["topic_id"]) == {str(topic.topic_id)}
    html: Any = segments
    assert "<td>605</td>" in html._repr_html_()
    assert {check.outcome for check in bucket.doctor()} <= {"ok", "warn", "skipped"}


def test_a_segment_is_a_file(bucket: ts.Bucket, disk: Path, tmp_path: Path) -> None:
    segment = bucket.inspect("txn", 0, 605)
    whole = (disk / "txn-0" / "00000000000000000605.log").read_bytes()
    with segment.open() as log:
        assert log.read() == whole
        log.seek(-100, 2)
        assert log.read() == whole[-100:]
    assert segment.fetch(tmp_path / "605.log").read_bytes() == whole
    assert segment.fetch(tmp_path / "tail", range=slice(-1000, None)).read_bytes() == whole[-1000:]
    index = (disk / "txn-0" / "00000000000000000605.txnindex").read_bytes()
    assert segment.fetch(tmp_path / "index", index="transaction").read_bytes() == index
    alone = pickle.loads(pickle.dumps(segment))
    assert alone == segment
    with pytest.raises(ts.errors.ConfigError, match="a segment that was pickled has no bucket"):
        alone.open()


@pytest.mark.slow
def test_a_read_is_an_arrow_stream_once(bucket: ts.Bucket, tmp_path: Path) -> None:
    assert bucket.read("txn").to_arrow().num_rows == 2357
    assert bucket.query("SELECT count(*) AS n FROM txn").to_arrow().to_pylist() == [{"n": 2357}]
    assert bucket.read("txn", limit=10**30).to_arrow().num_rows == 2357
    records = list(bucket.read("txn", last=3))
    assert [record.offset for record in records] == sorted(record.offset for record in records)
    assert records[-1]["offset"] == records[-1].offset < 3047
    assert isinstance(records[0].value, bytes)
    assert isinstance(next(iter(bucket.query("SELECT value FROM txn LIMIT 1")))["value"], str)
    some = bucket.read("txn", start=600, stop=700).to_pandas()
    assert bucket.read("txn", start=600, stop=700).to_polars()["offset"].to_list() == list(some["offset"])
    for name in (*(f"a.{ending}" for ending in WRITERS), "b.json", "b.PARQUET"):
        assert bucket.read("txn", last=7).write(tmp_path / name) == 7
    read = bucket.read("txn")
    read.to_arrow()
    with pytest.raises(
        AlreadyClosedError, match="the records of this read are already used up: iterate once, or call read"
    ):
        read.to_arrow()


@pytest.mark.slow
def test_a_read_follows_what_comes(root: Path, disk: Path, tmp_path: Path) -> None:
    later = tmp_path / "later"
    later.mkdir()
    with ts.open(root) as bucket:
        bucket.upload(disk / "txn-0" / "00000000000000000000.log")
        with bucket.read("txn", follow=True) as read:
            records = iter(read)
            first = next(records)
            bucket.upload(disk)
            while (record := next(records)).offset < 605:
                pass
    assert (first.offset, record.offset >= 605) == (0, True)


def test_a_verification_says_what_was_read_and_what_was_found(bucket: ts.Bucket, root: Path, tmp_path: Path) -> None:
    seen = bucket.verify()
    assert (seen.segments, seen.segments_read, seen.is_sound) == (5, 0, True)
    state = tmp_path / "state"
    whole = bucket.verify("txn", level="data", state=state)
    assert (whole.segments_read, whole.log_read, whole.is_sound) == (5, whole.log_size, True)
    assert bucket.verify("txn", level="data", state=state).passed_over == 5
    next(root.rglob("*.log")).unlink()
    found = bucket.verify(level="data")
    assert not found.is_sound
    assert "log-missing" in {finding.kind for finding in found.findings}
    assert found.findings.to_arrow().num_rows == len(found.findings)


def test_an_empty_bucket_was_not_verified(root: Path) -> None:
    with ts.open(root) as bucket, pytest.raises(ts.errors.ResourceNotFoundError, match="so nothing was verified"):
        bucket.verify()
