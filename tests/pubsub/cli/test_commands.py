"""``pubsub topics``, ``produce``, ``consume`` and ``groups``: from stdin to a group's position."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.cli.cli_process import Result, environment, measured_command, tieredstore, write_settings
from tests.support.fresh_python import run_fresh
from tests.support.servers.process import free_port


class Stdin:
    """What a command reads."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


def produce(monkeypatch: pytest.MonkeyPatch, store: Path, content: bytes, *options: str) -> Result:
    monkeypatch.setattr("sys.stdin", Stdin(content))
    return tieredstore("pubsub", "produce", "orders", "--store", store, *options)


def values(result: Result) -> list[bytes]:
    return [base64.b64decode(json.loads(line)["value"]) for line in result.text.splitlines()]


def test_from_stdin_to_a_groups_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tieredstore("pubsub", "topics", "orders", "--create", "--partitions", "2", "--store", tmp_path).code == 0
    done = produce(monkeypatch, tmp_path, b"k1=one\nk2=two\nk3=three\n", "--key-separator", "=")
    assert (done.code, done.text) == (0, "3 records, 11 bytes of values, stored in topic orders\n")
    consume = ("pubsub", "consume", "orders", "--store", tmp_path, "--json")
    assert values(tieredstore(*consume)) == [b"one", b"two", b"three"]
    assert values(tieredstore(*consume, "--group", "g", "-n", "2")) == [b"one", b"two"]
    assert values(tieredstore(*consume, "--group", "g")) == [b"three"]
    assert values(tieredstore(*consume, "--group", "g")) == []
    assert values(tieredstore(*consume, "--from", "latest")) == []
    shown = tieredstore("pubsub", "groups", "orders", "--store", tmp_path, "--json").json
    assert {row["partition"] for row in shown} == {0, 1}
    assert max(row["position"] for row in shown) == [1, 0, 0]
    assert "one" in tieredstore("pubsub", "consume", "orders", "--store", tmp_path).text
    assert "g " in tieredstore("pubsub", "groups", "orders", "--store", tmp_path).text


def test_topics_are_shown_and_grow(tmp_path: Path) -> None:
    topics = ("pubsub", "topics")
    assert "no topics in cluster default" in tieredstore(*topics, "--store", tmp_path).text
    tieredstore(*topics, "orders", "--create", "--store", tmp_path)
    assert tieredstore(*topics, "orders", "--partitions", "3", "--store", tmp_path, "--json").json[0]["partitions"] == 3
    assert tieredstore(*topics, "orders", "--create", "--store", tmp_path).code == 5
    assert tieredstore(*topics, "--create", "--store", tmp_path).code == 2


def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = produce(monkeypatch, tmp_path, b"v\n")
    assert missing.code == 3
    assert "pubsub topics orders --create" in missing.stderr
    tieredstore("pubsub", "topics", "orders", "--create", "--store", tmp_path)
    no_key = produce(monkeypatch, tmp_path, b"v\n", "--key-separator", "=")
    assert no_key.code == 2
    assert "line 1 has no '='" in no_key.stderr
    assert "no group has read" in tieredstore("pubsub", "groups", "orders", "--store", tmp_path).text


@pytest.mark.slow
def test_a_broker_takes_lines_and_stores_them_when_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    settings = write_settings(
        tmp_path,
        {
            "pubsub.broker.listen": f"127.0.0.1:{port}",
            "pubsub.broker.metrics.listen": "127.0.0.1:0",
            "pubsub.batch.ms": "50",
        },
    )
    assert tieredstore("pubsub", "topics", "orders", "--create", "-c", settings).code == 0
    process = subprocess.Popen(
        measured_command("pubsub", "broker", "-c", settings), stderr=subprocess.PIPE, env=environment(), text=True
    )
    try:
        assert process.stderr is not None
        while f"listens on 127.0.0.1:{port}" not in (line := process.stderr.readline()):
            assert line, "it has ended"
        monkeypatch.setattr("sys.stdin", Stdin(b"one\ntwo\n"))
        done = tieredstore("pubsub", "produce", "orders", "--bootstrap", f"127.0.0.1:{port}")
        assert (done.code, done.text) == (0, "2 records, 6 bytes of values, stored in topic orders\n"), done.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()
    assert values(tieredstore("pubsub", "consume", "orders", "-c", settings, "--json")) == [b"one", b"two"]


def test_a_broker_needs_settings_and_a_producer_one_place_to_write_to(tmp_path: Path) -> None:
    without = tieredstore("pubsub", "broker")
    assert (without.code, "no settings are named" in without.stderr) == (2, True)
    both = tieredstore("pubsub", "produce", "orders", "--bootstrap", "a:1", "--store", tmp_path)
    assert (both.code, "give one of them" in both.stderr) == (2, True)
    wrong = tieredstore("pubsub", "produce", "orders", "--bootstrap", "a")
    assert (wrong.code, "pubsub.bootstrap" in wrong.stderr) == (2, True)


def test_garbage_is_named_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tieredstore("pubsub", "topics", "orders", "--create", "--store", tmp_path)
    produce(monkeypatch, tmp_path, b"v\n")
    (batch,) = (path for path in tmp_path.rglob("*") if path.is_file() and "default/topics/orders/" in str(path))
    orphan = batch.with_name("0_77_1_0_h")
    orphan.write_bytes(batch.read_bytes())
    os.utime(orphan, (0, 0))
    collect = ("pubsub", "gc", "orders", "--store", tmp_path)
    dry = tieredstore(*collect)
    assert f"would be deleted: {orphan.relative_to(tmp_path)}" in dry.text
    assert orphan.exists()
    assert tieredstore(*collect, "--adopt", "--json").text.count("adopted") == 2
    assert tieredstore(*collect, "--min-age", "5m").code == 2
    done = tieredstore(*collect, "--yes")
    assert (done.code, orphan.exists(), batch.exists()) == (0, False, True)
    assert tieredstore(*collect, "--yes").text == "there is nothing to collect\n"


def test_memqs_topic_json_names_the_topic_and_where_it_is(tmp_path: Path) -> None:
    config = tmp_path / "orders.json"
    handler = {"bucket": "logs", "path": "prod/orders", "notificationTopic": "told", "enableHashing": False}
    config.write_text(json.dumps({"topic": "orders", "storageHandlerName": "s3v2", "storageHandlerConfig": handler}))
    (tmp_path / "store").mkdir()
    given = ("--store", tmp_path / "store", "--topic-config", config)
    missing = tieredstore("pubsub", "gc", "orders", *given)
    assert (missing.code, "set pubsub.kafka.bootstrap.servers" in missing.stderr) == (2, True)
    both = tieredstore("pubsub", "produce", "orders", "--topic-config", config, "--bootstrap", "a:1")
    assert (both.code, "give one of them" in both.stderr) == (2, True)
    other = tieredstore("pubsub", "consume", "payments", *given)
    assert (other.code, "there is no topic payments" in other.stderr) == (3, True)
    config.write_text("{}")
    assert tieredstore("pubsub", "topics", "orders", *given).code == 2


def test_what_looks_at_a_bucket_alone_needs_no_client_of_kafka() -> None:
    code = """
        import sys
        sys.modules["confluent_kafka"] = None  # as where the extra is not installed
        from tieredstore.pubsub.cli import commands, pubsub, upkeep
        print(upkeep.show_audit.__name__)
    """
    assert run_fresh(code) == "show_audit\n"
