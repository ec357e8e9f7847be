"""Missing and wrong keys of a consumer: the error of each call names the key, and nothing is skipped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import TopicPartition

from tests.consumer.buckets import DEADLINE_S, offsets_of, raised, read, reader_of
from tests.support.cli.cli_process import tieredstore
from tests.support.records.topic_buckets import Bucket
from tieredstore.config import settings_from
from tieredstore.consumer import Consumer
from tieredstore.errors import TieredStoreError, WrongKeyError
from tieredstore.remote import RemoteStorageManager

ORDERS: Final = ("orders", 0)
PLACE: Final = TopicPartition(*ORDERS)


def _key_pair(name: str, directory: str = ".") -> Mapping[str, str]:
    lines = tieredstore("keys", "new", name, "-d", directory, "--bits", "2048").text.splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def write_encrypted(bucket: Bucket, keys: Mapping[str, str], count: int) -> None:
    """Write a segment encrypted with these keys, like another uploader."""
    with RemoteStorageManager(settings_from({**bucket.options, **keys, "chunk.size": "16384"})) as encrypting:
        bucket.manager, plain = encrypting, bucket.manager
        bucket.write(count)
    bucket.manager = plain


def test_a_key_that_is_not_at_hand(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call reports the missing key until a seek. With the policy "report", the loss is counted and reading
    continues after it.
    """
    monkeypatch.chdir(tmp_path)
    bucket.write(20)
    ours, theirs = _key_pair("key1"), _key_pair("key2")
    write_encrypted(bucket, theirs, 20)
    bucket.write(20)
    bucket.options |= ours
    with reader_of(bucket, PLACE) as consumer:
        assert offsets_of(read(consumer, 20)) == list(range(20))
        error = raised(consumer, TieredStoreError)
        assert "key2" in str(error) or "offsets 20 to 39" in str(error)
        consumer.seek(TopicPartition(*ORDERS, 40))
        assert offsets_of(read(consumer, 20)) == list(range(40, 60))
    lost: list[Any] = []
    with reader_of(bucket, PLACE, tiered_storage_on_data_loss="report", loss_cb=lost.append) as consumer:
        assert offsets_of(read(consumer, 40)) == [*range(20), *range(40, 60)]
    assert [(extent.start, extent.stop) for extent in lost] == [(20, 40)]


CALLS: Final[dict[str, Callable[[Consumer], Any]]] = {
    "poll": lambda consumer: consumer.poll(0.05),
    "consume": lambda consumer: consumer.consume(9, 0.05),
    "poll_arrow": lambda consumer: consumer.poll_arrow(0.05),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_key_under_the_same_name(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each call's error names the key, until a seek. The consumer closes normally, and reports no damage."""
    monkeypatch.chdir(tmp_path)
    call = CALLS[name]
    bucket.write(20)
    (tmp_path / "theirs").mkdir()
    ours, theirs = _key_pair("key1"), _key_pair("key1", "theirs")
    write_encrypted(bucket, theirs, 20)
    bucket.write(20)
    bucket.options |= ours
    with reader_of(bucket, PLACE) as consumer:
        read(consumer, 20)
        for _ in range(2):
            assert "key1" in str(raised_by(consumer, call))
        assert consumer.tiered_stats()[ORDERS]["position"] == 20
        consumer.seek(TopicPartition(*ORDERS, 40))
        assert offsets_of(read(consumer, 20)) == list(range(40, 60))
        consumer.seek(TopicPartition(*ORDERS, 30))
        raised_by(consumer, call)
    with pytest.raises(RuntimeError, match="Consumer closed"):
        call(consumer)


def raised_by(consumer: Consumer, call: Callable[[Consumer], Any]) -> WrongKeyError:
    """Return a call's error, perhaps after some empty calls."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        try:
            assert not call(consumer)
        except WrongKeyError as error:
            return error
    raise AssertionError("no WrongKeyError was raised")
