"""The commands ``pubsub topics``, ``produce``, ``cat``, ``gc`` and ``broker``."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.project.test_docs import blocks
from tests.support.cli.cli_process import Result, environment, measured_command, tieredstore, write_settings
from tests.support.fresh_python import run_fresh
from tests.support.paths import REPOSITORY
from tests.support.servers.process import free_port


class Stdin:
    """The input of a command."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


def produce(monkeypatch: pytest.MonkeyPatch, store: Path, content: bytes, *options: str) -> Result:
    monkeypatch.setattr("sys.stdin", Stdin(content))
    return tieredstore("pubsub", "produce", "orders", "--store", store, *options)


def replace_places(text: str, places: Mapping[str, str]) -> str:
    """Return the text with each path or address replaced by the test's own."""
    for place, here in places.items():
        text = text.replace(place, here)
    return text


def values(result: Result) -> list[bytes]:
    return [base64.b64decode(json.loads(line)["value"]) for line in result.text.splitlines()]


def test_from_stdin_to_a_groups_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = ("pubsub", "topics", "--store", tmp_path, "orders")
    assert tieredstore(*topics, "--create", "--read-partitions", "2").code == 0
    done = produce(monkeypatch, tmp_path, b"k1=one\nk2=two\nk3=three\n", "--key-separator", "=")
    assert (done.code, done.text) == (0, "3 records, 11 bytes of values, stored in topic orders\n")
    cat = ("pubsub", "cat", "orders", "--store", tmp_path, "--json")
    assert values(tieredstore(*cat)) == [b"one", b"two", b"three"]
    assert values(tieredstore(*cat, "--group", "g", "-n", "2")) == [b"one", b"two"]
    assert values(tieredstore(*cat, "--group", "g")) == [b"three"]
    assert values(tieredstore(*cat, "--group", "g")) == []
    assert values(tieredstore(*cat, "--last", "0")) == []
    assert values(tieredstore(*cat, "--last", "2")) == [b"two", b"three"]
    (topic, *groups), summary = tieredstore(*topics, "--json").rows
    assert (topic["topic"], topic["partitions"], summary) == ("orders", 2, {"topics": 1, "groups": 1})
    assert {(row["group"], row["topic"], row["partition"]) for row in groups} == {
        ("g", "orders", 0),
        ("g", "orders", 1),
    }
    assert max(row["position"] for row in groups) == [256, 0, 0]
    assert "one" in tieredstore("pubsub", "cat", "orders", "--store", tmp_path).text
    assert "\ng " in tieredstore(*topics).text
    assert "\ng " not in tieredstore(*topics[:-1]).text


def test_a_group_without_a_commit_begins_where_last_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tieredstore("pubsub", "topics", "orders", "--create", "--store", tmp_path)
    for content in (b"1\n2\n3\n", b"4\n5\n"):
        produce(monkeypatch, tmp_path, content)
    cat = ("pubsub", "cat", "orders", "--store", tmp_path, "--json", "--last")
    assert values(tieredstore(*cat, "3", "--group", "a", "-n", "1")) == [b"3"]
    assert values(tieredstore(*cat, "1", "--group", "a")) == [b"4", b"5"]
    assert values(tieredstore(*cat, "0", "--group", "b")) == []
    assert values(tieredstore(*cat, "9")) == [b"1", b"2", b"3", b"4", b"5"]
    assert tieredstore(*cat, "-1").code == 2


def test_a_group_of_a_topic_that_was_created_again_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tieredstore("pubsub", "topics", "orders", "--create", "--store", tmp_path)
    cat = ("pubsub", "cat", "orders", "--store", tmp_path, "--json", "--group", "g")
    for content in (b"1\n", b"2\n"):
        produce(monkeypatch, tmp_path, content)
        assert values(tieredstore(*cat)) == [content.strip()]
    for entry in (tmp_path / "!tieredstore/pubsub/default/queues/orders/0").iterdir():
        entry.unlink()
    produce(monkeypatch, tmp_path, b"3\n")
    done = tieredstore(*cat)
    assert (done.code, done.text) == (3, "")
    assert "offset 512 is beyond the end, 256" in done.stderr


def test_topics_are_shown_and_grow(tmp_path: Path) -> None:
    topics = ("pubsub", "topics")
    assert "no topics in cluster default" in tieredstore(*topics, "--store", tmp_path).text
    tieredstore(*topics, "orders", "others", "--create", "--store", tmp_path)
    (grown,), _ = tieredstore(*topics, "orders", "--read-partitions", "3", "--store", tmp_path, "--json").rows
    assert grown["partitions"] == 3
    assert tieredstore(*topics, "orders", "--create", "--store", tmp_path).code == 5
    assert tieredstore(*topics, "--create", "--store", tmp_path).code == 2
    for names in ([], ["o*"], ["others", "orders"]):
        rows, summary = tieredstore(*topics, *names, "--store", tmp_path, "--json").rows
        assert ({row["topic"] for row in rows}, summary["topics"]) == ({"orders", "others"}, 2)
    absent = tieredstore(*topics, "x*", "--store", tmp_path)
    assert (absent.code, "no topic in cluster default matches 'x*'" in absent.stderr) == (3, True)


def test_a_damaged_definition_hides_no_other_topic(tmp_path: Path) -> None:
    topics, store = ("pubsub", "topics"), ("--store", tmp_path, "--json")
    tieredstore(*topics, "orders", "others", "--create", *store)
    (tmp_path / "!tieredstore/pubsub/default/topics/orders.json").write_text("{")
    for names in ([], ["o*"], ["orders", "others"]):
        shown = tieredstore(*topics, *names, *store)
        assert ([row["topic"] for row in shown.rows[0]], shown.code) == (["others"], 4)
        assert "topics/orders.json is not a valid pub/sub topic" in shown.stderr
    for command in ((*topics, "orders"), ("pubsub", "gc"), ("pubsub", "gc", "--yes")):
        refused = tieredstore(*command, *store)
        assert (refused.code, "topics/orders.json is not a valid" in refused.stderr) == (4, True)
    assert tieredstore(*topics, "orders", *store).text == ""


def test_a_damaged_queue_hides_no_other_topic(tmp_path: Path) -> None:
    topics, store = ("pubsub", "topics"), ("--store", tmp_path, "--json")
    tieredstore(*topics, "orders", "others", "--create", *store)
    start = tmp_path / "!tieredstore/pubsub/default/queues/orders/0/start"
    start.parent.mkdir(parents=True, exist_ok=True)
    start.write_text("{")
    for more in ((), ("o*",), ("--prices", REPOSITORY / "examples" / "prices.toml")):
        shown = tieredstore(*topics, *more, *store)
        assert ([row["topic"] for row in shown.rows[0]], shown.code) == (["others"], 4)
        assert "queues/orders/0/start is not a valid" in shown.stderr


def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = produce(monkeypatch, tmp_path, b"v\n")
    assert missing.code == 3
    assert "pubsub topics orders --create" in missing.stderr
    tieredstore("pubsub", "topics", "orders", "--create", "--store", tmp_path)
    no_key = produce(monkeypatch, tmp_path, b"v\n", "--key-separator", "=")
    assert no_key.code == 2
    assert "line 1 has no '='" in no_key.stderr
    assert "no group has read topic orders" in tieredstore("pubsub", "topics", "orders", "--store", tmp_path).text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("audit", "tieredstore pubsub verify"),
        ("consume", "tieredstore pubsub cat"),
        ("cost", "tieredstore pubsub topics --prices FILE"),
        ("groups", "tieredstore pubsub topics TOPIC"),
        ("inspect", "tieredstore show FILE"),
    ],
)
def test_an_old_word_is_answered_with_the_new_one(old: str, new: str) -> None:
    refused = tieredstore("pubsub", old, "orders")
    assert (refused.code, refused.text) == (2, "")
    assert f"there is no command 'pubsub {old}'; {new} does that" in refused.stderr


def test_an_offset_is_no_time_of_audit_records(tmp_path: Path) -> None:
    verify = ("pubsub", "verify", "orders", "--store", tmp_path)
    without = tieredstore(*verify, "--from", "-1h")
    assert (without.code, "give --audit-records or --follow" in without.stderr) == (2, True)
    offset = tieredstore(*verify, "--audit-records", "--from", "20260131")
    assert (offset.code, "--from is 20260131, an offset" in offset.stderr) == (2, True)
    both = tieredstore(*verify, "--bodies", "--follow")
    assert (both.code, "leave out" in both.stderr) == (2, True)


@pytest.mark.slow
def test_a_broker_takes_lines_and_stores_them_when_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings and the program are those of docs/how-to/batches.md."""
    port, page = free_port(), REPOSITORY / "docs" / "how-to" / "batches.md"
    here = {"10.0.0.7:9092": f"127.0.0.1:{port}", "0.0.0.0:9092": f"127.0.0.1:{port}", "127.0.0.1:9404": "127.0.0.1:0"}
    (shown,), (program,) = (
        [replace_places(code, here) for code in blocks(page, language) if "10.0.0.7" in code]
        for language in ("properties", "python")
    )
    own = dict(line.split("=", 1) for line in shown.splitlines() if line.startswith("pubsub."))
    settings = write_settings(tmp_path, {**own, "pubsub.batch.ms": "50"})
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
        exec(compile(program.replace("broker.properties", str(settings)), str(page), "exec"), {})
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()
    shown_values = values(tieredstore("pubsub", "cat", "orders", "-c", settings, "--json"))
    assert sorted(shown_values) == [b"a value", b"one", b"two"]  # records without a key keep no order


def test_a_broker_needs_settings_and_a_producer_one_place_to_write_to(tmp_path: Path) -> None:
    without = tieredstore("pubsub", "broker")
    assert (without.code, "no settings are named" in without.stderr) == (2, True)
    both = tieredstore("pubsub", "produce", "orders", "--bootstrap", "a:1", "--store", tmp_path)
    assert (both.code, "leave out" in both.stderr) == (2, True)
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
    assert dry.text.splitlines()[-1] == "nothing was deleted: --yes does it"
    (row,), summary = tieredstore(*collect, "--adopt", "--json").rows
    assert (row["action"], row["status"], row["code"], row["kind"]) == ("gc", "planned", "adopted", "orphan")
    assert (row["name"], row["topic"], row["size"]) == (
        str(orphan.relative_to(tmp_path)),
        "orders",
        len(batch.read_bytes()),
    )
    assert (summary["planned"], summary["codes"], summary["stored_size"]) == (1, {"adopted": 1}, 0)
    adopted = tieredstore(*collect, "--adopt")
    assert adopted.text.splitlines()[1:] == [
        "no objects would be deleted",
        "also: 1 orphans, now published: repeats records that were sent again after DeliveryFailedError",
        "nothing was deleted: --yes does it",
    ]
    assert tieredstore(*collect, "--min-age", "5m").code == 2
    done = tieredstore(*collect, "--yes")
    assert (done.code, orphan.exists(), batch.exists()) == (0, False, True)
    assert tieredstore(*collect, "--yes").text == "nothing to collect\n"


def test_memqs_topic_json_names_the_topic_and_where_it_is(tmp_path: Path) -> None:
    config = tmp_path / "orders.json"
    handler = {"bucket": "logs", "path": "prod/orders", "notificationTopic": "told", "enableHashing": False}
    config.write_text(json.dumps({"topic": "orders", "storageHandlerName": "s3v2", "storageHandlerConfig": handler}))
    (tmp_path / "store").mkdir()
    given = ("--store", tmp_path / "store", "--topic-config", config)
    missing = tieredstore("pubsub", "gc", "orders", *given)
    assert (missing.code, "set pubsub.kafka.bootstrap.servers" in missing.stderr) == (2, True)
    both = tieredstore("pubsub", "produce", "orders", "--topic-config", config, "--bootstrap", "a:1")
    assert (both.code, "leave out" in both.stderr) == (2, True)
    other = tieredstore("pubsub", "cat", "payments", *given)
    assert (other.code, "there is no topic payments" in other.stderr) == (3, True)
    config.write_text("{}")
    assert tieredstore("pubsub", "topics", "orders", *given).code == 2


@pytest.mark.slow
def test_what_looks_at_a_bucket_alone_needs_no_client_of_kafka() -> None:
    code = """
        import sys
        sys.modules["confluent_kafka"] = None  # as where the extra is not installed
        from tieredstore.pubsub.cli import pubsub, records, topics, upkeep
        print(upkeep.show_audit.__name__)
    """
    assert run_fresh(code) == "show_audit\n"
