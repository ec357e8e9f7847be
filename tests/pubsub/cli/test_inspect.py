"""``pubsub inspect``: what a batch says, of a file and of a store; damage is told and is exit code 4."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.pubsub.memq_batches import GOLDEN, golden_batches

EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
FILES = {path.name.split(".")[0]: path for path in (GOLDEN / "batches").iterdir()}


@pytest.mark.parametrize("vector", FILES)
def test_records_as_json_are_what_the_producer_was_given(vector: str) -> None:
    lines = [
        json.loads(line)
        for line in tieredstore("pubsub", "inspect", FILES[vector], "--records", "--json").text.splitlines()
    ]
    given = [
        {name: record[name] or None for name in ("id", "key", "headers")}
        | {name: record[name] for name in ("value", "timestamp")}
        for record in EXPECTED[vector]
    ]
    shown = [{name: line[name] for name in given[0]} for line in lines]
    assert sorted(map(repr, shown)) == sorted(map(repr, [{name: row[name] for name in given[0]} for row in given]))


def test_messages_of_a_file() -> None:
    done = tieredstore("pubsub", "inspect", FILES["v05-mixed"], "--json")
    assert {message["compression"] for message in done.json["messages"]} == {"none", "gzip", "zstd"}
    assert sum(message["records"] for message in done.json["messages"]) == 60
    assert done.json["size"] == FILES["v05-mixed"].stat().st_size
    assert "127.0.0.1" in tieredstore("pubsub", "inspect", FILES["v05-mixed"]).text


def test_a_key_of_a_store(tmp_path: Path) -> None:
    key = "28/prod/topics/orders/42_7_1_0_host"
    (tmp_path / key).parent.mkdir(parents=True)
    (tmp_path / key).write_bytes(golden_batches()["v01-one"])
    shown = tieredstore("pubsub", "inspect", key, "--store", tmp_path, "--records", "--json").json
    assert base64.b64decode(shown["value"]) == b"v"
    assert tieredstore("pubsub", "inspect", "no/such/key", "--store", tmp_path).code == 3
    no_place = tieredstore("pubsub", "inspect", "no/such/key")
    assert no_place.code == 2
    assert "--store" in no_place.stderr


def test_damage_is_shown_beside_what_is_whole(tmp_path: Path) -> None:
    damaged = bytearray(golden_batches()["v02-three-plain"])
    damaged[1500] ^= 1
    path = tmp_path / "damaged"
    path.write_bytes(damaged)
    done = tieredstore("pubsub", "inspect", path, "--json")
    assert done.code == 4
    assert [message["damage"] is None for message in done.json["messages"]] == [True, False, True]
    records = tieredstore("pubsub", "inspect", path, "--records", "--json")
    assert records.code == 4
    assert len(records.text.splitlines()) == 10
    assert "Message 1, byte 1105" in records.stderr


def test_records_that_a_count_hides_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "count-too-small"
    path.write_bytes((GOLDEN / "handmade" / "h10-count-too-small").read_bytes())
    done = tieredstore("pubsub", "inspect", path, "--json")
    assert done.code == 4
    assert [message["damage"] is None for message in done.json["messages"]] == [False, True]


def test_what_is_no_batch(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(b"")
    done = tieredstore("pubsub", "inspect", path)
    assert (done.code, "are no batch" in done.stderr) == (4, True)
