"""Keys of batches: MemQ's prefixes, there and back, and what is no key of a path."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pubsub.memq_batches import GOLDEN
from tieredstore.errors import ConfigError
from tieredstore.pubsub.format.notifications import BatchKey, check_path, key_hash, parse_batch_key

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
        "29/prod/topics/orders/42_7_1_0_h",  # another prefix than the id's
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
    with pytest.raises(ConfigError, match="no path of keys"):
        check_path(path)
