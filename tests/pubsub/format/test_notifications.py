"""Keys and notifications: MemQ's byte for byte, this project's additions, and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pubsub.memq_batches import GOLDEN
from tieredstore.errors import ConfigError
from tieredstore.pubsub.errors import NotificationCorruptError
from tieredstore.pubsub.format.notifications import (
    BatchFacts,
    BatchKey,
    Notification,
    RequestRuns,
    check_path,
    key_hash,
    parse_batch_key,
    parse_notification,
)

MEMQS = (GOLDEN / "wire/notification-s3.json").read_bytes()
FACTS = BatchFacts("ab" * 16, 3, None, 5, 1278, 0xFFFFFFFF, (RequestRuns("7f000001", -1, (0, 0, 8, 9)),))


def test_memqs_is_read_and_written_byte_for_byte() -> None:
    notification = parse_notification(MEMQS, "queue")
    assert notification.to_json() == MEMQS
    assert (notification.header_size, notification.total_size) == (44, 1278)


@pytest.mark.parametrize("change", [{}, {"bucket": "logs", "key": "28/a/1_2_3_0_h"}])
def test_that_of_the_file_handler_is_refused(change: dict[str, str]) -> None:
    raw = b'{"path":"/data/orders/h/0_5_0","objectSize":91,"topic":"orders","headerSize":20,"numBatchMessages":1}'
    with pytest.raises(NotificationCorruptError, match="its path names a file of MemQ's file handler"):
        parse_notification(json.dumps(json.loads(raw) | change).encode(), "queue")


def test_ours_stand_behind_memqs_fields() -> None:
    notification = Notification("orders", 1234, 3, key="28/a/1_2_3_0_h", bucket="logs", facts=FACTS)
    raw = notification.to_json()
    assert parse_notification(raw, "queue") == notification
    assert list(json.loads(raw))[:7] == list(json.loads(MEMQS))


def test_fields_that_are_not_known_are_passed_over() -> None:
    fields = json.loads(MEMQS) | {"Content-MD5": "x", "npi": 3, "more": {"a": [1.5, None]}}
    assert parse_notification(json.dumps(fields).encode(), "queue") == parse_notification(MEMQS, "queue")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"key": None}, "key is None: Field required"),
        ({"key": ""}, "key is ''"),
        ({"key": "k" * 1025}, "key is"),
        ({"topic": 5}, "topic is 5"),
        ({"objectSize": 0}, "objectSize is 0"),
        ({"objectSize": True}, "objectSize is True"),
        ({"objectSize": 1.5}, "objectSize is 1.5"),
        ({"objectSize": 2**31 - 1}, "objectSize is impossible for a batch"),
        ({"headerSize": 45}, "headerSize does not match 3 Messages"),
        ({"numBatchMessages": 0}, "numBatchMessages is 0"),
        ({"bucket": 7}, "bucket is 7"),
        ({"batchId": "short"}, "batchId is not 32"),
        ({"batchId": "0" * 32, "records": -1}, "records is -1"),
    ],
)
def test_a_notification_without_a_batch_is_refused(change: dict[str, Any], sentence: str) -> None:
    raw = json.dumps(json.loads(MEMQS) | change).encode()
    with pytest.raises(NotificationCorruptError, match=f"queue/3: the notification's {sentence}"):
        parse_notification(raw, "queue/3")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"producers": [{"address": "7f", "epoch": 1, "requests": [0, 3]}]}, "list 4 requests for 3 Messages"),
        ({"producers": [{"address": "7f", "epoch": 1, "requests": [0, 0, 5, 5, 0, 0, 9, 9]}]}, "producers list 4 "),
        (
            {"numBatchMessages": 10**6, "headerSize": 8 + 12 * 10**6, "objectSize": 10**9,
             "totalSize": 10**9 + 8 + 12 * 10**6, "producers": [{"address": "", "epoch": 1, "requests": [0, 999999]}]},
            "numBatchMessages is 1000000",
        ),
        ({"objectSize": 18 + 38, "totalSize": 44 + 18 + 38}, "objectSize is impossible for a batch of 3 Messages"),
        ({"producers": [{"address": "7f", "epoch": 1, "requests": [0]}]}, "requests is not a list"),
        ({"producers": [{"address": "7f", "epoch": 1, "requests": [2, 1]}]}, "requests is not a list"),
        ({"producers": [{"address": "no hex", "epoch": 1, "requests": [0, 0]}]}, "address is 'no hex'"),
    ],
)  # fmt: skip
def test_what_our_notifications_say_of_more_than_they_can_is_refused(changes: dict[str, Any], sentence: str) -> None:
    """Effectively-once readers keep each listed request in memory, so false lists must be refused."""
    notification = Notification("orders", 1234, 3, key="28/a/1_2_3_0_h", bucket="logs", facts=FACTS)
    raw = json.dumps(json.loads(notification.to_json()) | changes).encode()
    with pytest.raises(NotificationCorruptError, match=sentence):
        parse_notification(raw, "queue")


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not JSON"),
        (b'{"a":NaN}', "not JSON"),
        (b"[" * 40_000, "nested too deeply|not JSON"),
        (b"[" * 60_000, "more than 50000 values"),
        (b" " * (1 << 20) + b"{}", "larger than 1048576"),
        (b'{"objectSize":' + b"9" * 5000 + b"}", "number out of range"),
    ],
)
def test_hostile_bytes_cost_no_more_than_they_are(raw: bytes, sentence: str) -> None:
    with pytest.raises(NotificationCorruptError, match=sentence):
        parse_notification(raw, "queue")


LONGS = st.integers(-(2**63), 2**63 - 1)


def test_prefixes_are_memqs() -> None:
    lines = (GOLDEN / "wire/key-hashes.txt").read_text().split("\n")
    for number, prefix in (line.split() for line in lines if line):
        assert key_hash(int(number)) == prefix


def test_a_key_of_memqs_says_what_it_is() -> None:
    key = json.loads((GOLDEN / "wire/notification-s3.json").read_text())["key"]
    read = parse_batch_key(key, "prod/topics/orders")
    assert read == BatchKey("prod/topics/orders", 42, 7, 1_700_000_000_000, 0, "host-1")
    assert str(read) == key


@given(LONGS, LONGS, st.integers(0, 2**62), st.integers(0, 99), st.booleans())
def test_keys_come_back(client: int, server: int, ms: int, attempt: int, hashed: bool) -> None:
    key = BatchKey("prod/topics/a_b", client, server, ms, attempt, "a_host-1", hashed)
    assert parse_batch_key(str(key), "prod/topics/a_b") == key


@pytest.mark.parametrize(
    "key",
    [
        "28/prod/topics/orders/42_7_1_0",  # no host
        "29/prod/topics/orders/42_7_1_0_h",  # the first part does not match the rest
        "28/prod/topics/orders2/42_7_1_0_h",
        "28/prod/topics/orders/x/42_7_1_0_h",
        "28/prod/topics/orders/42_7_one_0_h",
        "prod/topics/42_7_1_0_h",
        "",
    ],
)
def test_what_is_no_key_of_the_path(key: str) -> None:
    assert parse_batch_key(key, "prod/topics/orders") is None


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "a/../b", "./a", "a\0b", "a" * 513])
def test_a_path_whose_keys_could_be_anothers(path: str) -> None:
    with pytest.raises(ConfigError, match="invalid path"):
        check_path(path)
