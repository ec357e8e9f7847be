"""``show`` of batches in files and stores; damage is reported, with exit code 4."""

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
    lines = [json.loads(line) for line in tieredstore("show", FILES[vector], "--records", "--json").text.splitlines()]
    given = [
        {name: record[name] or None for name in ("id", "key", "headers")}
        | {name: record[name] for name in ("value", "timestamp")}
        for record in EXPECTED[vector]
    ]
    shown = [{name: line[name] for name in given[0]} for line in lines]
    assert sorted(map(repr, shown)) == sorted(map(repr, [{name: row[name] for name in given[0]} for row in given]))


def test_messages_of_a_file() -> None:
    messages, summary = tieredstore("show", FILES["v05-mixed"], "--json").rows
    assert {message["compression"] for message in messages} == {"none", "gzip", "zstd"}
    assert sum(message["records"] for message in messages) == 60
    assert (summary["size"], summary["entries"]) == (FILES["v05-mixed"].stat().st_size, 3)
    assert "127.0.0.1" in tieredstore("show", FILES["v05-mixed"]).text


def test_a_key_of_a_store(tmp_path: Path) -> None:
    key = "28/prod/topics/orders/42_7_1_0_host"
    (tmp_path / key).parent.mkdir(parents=True)
    (tmp_path / key).write_bytes(golden_batches()["v01-one"])
    shown = tieredstore("show", key, "--store", tmp_path, "--records", "--json").json
    assert base64.b64decode(shown["value"]) == b"v"
    assert tieredstore("show", f"{key}-2", "--store", tmp_path).code == 3
    assert "none of" in tieredstore("show", "no/such/key", "--store", tmp_path).stderr
    no_place = tieredstore("show", "no/such/key")
    assert no_place.code == 2
    assert "--store" in no_place.stderr


def test_damage_is_shown_beside_what_is_whole(tmp_path: Path) -> None:
    damaged = bytearray(golden_batches()["v02-three-plain"])
    damaged[1500] ^= 1
    path = tmp_path / "damaged"
    path.write_bytes(damaged)
    done = tieredstore("show", path, "--json")
    assert (done.code, "damaged: 1 of 3 Messages damaged" in done.stderr) == (4, True)
    messages, summary = done.rows
    assert [message["damage"] is None for message in messages] == [True, False, True]
    assert summary["failed"] == 1
    records = tieredstore("show", path, "--records", "--json")
    assert records.code == 4
    assert len(records.text.splitlines()) == 10
    assert "Message 1, byte 1105" in records.stderr


def test_records_that_a_count_hides_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "count-too-small"
    path.write_bytes((GOLDEN / "handmade" / "h10-count-too-small").read_bytes())
    done = tieredstore("show", path, "--json")
    assert done.code == 4
    assert [message["damage"] is None for message in done.rows[0]] == [False, True]


def test_what_is_no_batch(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(b"")
    done = tieredstore("show", path)
    assert (done.code, "it is none of" in done.stderr) == (2, True)
    assert "batches of MemQ" in done.stderr
    named = tmp_path / "42_7_1_0_host"
    named.write_bytes(b"")
    done = tieredstore("show", named)
    assert (done.code, "are too few for a batch" in done.stderr) == (4, True)
