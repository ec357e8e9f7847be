"""Restores from every layout of a bucket: places by rules, spread keys, and Pinterest's files."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieredstore as ts
from tests.places.test_raw_reading import put_raw
from tests.restore.logdir.log_dirs import fresh_bucket, make_log_dir, prepared, restore, tree
from tests.support.paths import GOLDEN
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.model import TopicIdPartition

TXN = GOLDEN / "07-txn" / "original"
RULES = {"endpoint.rules": "kept", "endpoint.rules.kept.topics": "txn", "endpoint.rules.kept.prefix": "kept apart/"}
SPREAD = {"endpoint.prefix.entropy.bits": "4", "endpoint.cluster": "kafkaCluster1"}
RAW = {"endpoint.layout": "pinterest", "endpoint.prefix.entropy.bits": "0", "endpoint.cluster": "kafkaCluster1"}


@pytest.mark.parametrize("layout", [RULES, SPREAD, RAW], ids=["rules", "spread", "raw"])
def test_the_files_are_the_same_from_every_layout(tmp_path: Path, layout: dict[str, str]) -> None:
    with fresh_bucket(tmp_path / "plain", [TXN]) as bucket:
        plain = restored(bucket, tmp_path / "expected")
    root = tmp_path / "store"
    root.mkdir()
    settings = {"storage.backend.class": "filesystem", "storage.root": str(root), "chunk.size": "65536", **layout}
    if layout is RAW:
        put_raw(FilesystemObjectStore(root), TXN)
    with ts.open({**settings, "key.prefix": "p/"}) as bucket:
        if layout is not RAW:
            bucket.upload(TXN)
        assert restored(bucket, tmp_path / "logs") == plain


def restored(bucket: ts.Bucket, log_dir: Path) -> dict[str, bytes]:
    (topic,) = bucket.topics("txn")
    make_log_dir(log_dir, {"txn": 1})
    outcomes = restore(bucket, log_dir, prepared(TopicIdPartition(topic.topic_id, "txn", 0)))
    assert [code for code, *_ in outcomes] == ["restored"] * 5
    return tree(log_dir)
