"""``tieredstore cat`` across the boundary between bucket and broker, once and while the log grows."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli.cli_process import Result, command, environment, tieredstore, write_settings
from tests.support.kafka.kafka_topics import Produced, Transaction, delete_records, produce
from tests.support.kafka.live_topics import TieredTopic
from tests.support.servers.kafka import PASSWORD, USER, KafkaServer
from tests.support.servers.process import unanswered_port

COUNT = 600


@pytest.fixture
def tiered(kafka: KafkaServer, tmp_path: Path) -> Iterator[TieredTopic]:
    """Yield a topic of two partitions, in which each record's key is its offset."""
    topic = TieredTopic(kafka, tmp_path, partitions=2)
    for partition in range(2):
        topic.produce([Produced(b"%d" % at, b"v" * 100) for at in range(COUNT)], partition=partition)
    yield topic
    topic.close()


@pytest.fixture
def settings(tiered: TieredTopic, tmp_path: Path) -> Path:
    return write_settings(tmp_path, {**tiered.store, "chunk.size": "8192"})


def offsets(done: Result) -> list[tuple[int, int]]:
    """Return partitions and offsets of JSON lines."""
    return [(row["partition"], row["offset"]) for row in done.clean().lines]


def test_bucket_and_broker_are_shown_as_one_log(tiered: TieredTopic, settings: Path) -> None:
    seam = tiered.tier(but_last=1)
    live = ("--bootstrap-server", tiered.server.bootstrap_servers)
    alone = offsets(tieredstore("cat", "-c", settings, tiered.topic, "--json"))
    both = offsets(tieredstore("cat", "-c", settings, tiered.topic, "--json", *live))
    assert both == [(partition, offset) for partition in range(2) for offset in range(COUNT)]
    assert 0 < len(alone) < len(both)
    one = ("-p", 0, "--from", seam - 2, "--to", seam + 3, "--json", *live)
    assert offsets(tieredstore("cat", "-c", settings, tiered.topic, *one)) == [
        (0, at) for at in range(seam - 2, seam + 3)
    ]
    end = ("-p", 1, "--from", COUNT, "--json", *live)
    assert offsets(tieredstore("cat", "-c", settings, tiered.topic, *end)) == []
    tieredstore("cat", "-c", settings, tiered.topic, *end, "--to", COUNT + 7).fails(
        2, f"offset {COUNT + 7} is beyond the end of {tiered.topic}-1 ({COUNT}); a time is written"
    )
    # --last and -n count records across the boundary.
    assert offsets(tieredstore("cat", "-c", settings, tiered.topic, "--last", 150, "--json", *live)) == [
        (partition, offset) for partition in range(2) for offset in range(COUNT - 150, COUNT)
    ]
    some = ("--last", 150, "-n", 200, "--grep", "0$", "--json", *live)
    assert offsets(tieredstore("cat", "-c", settings, tiered.topic, *some)) == [
        (partition, offset) for partition in range(2) for offset in range(COUNT - 150, COUNT, 10)
    ]
    absent = tieredstore("cat", "-c", settings, tiered.topic, "-p", "1-3", *live)
    assert absent.code == 3
    assert (
        f"topic '{tiered.topic}' has no partitions 2 to 3 in the bucket or on the broker, only 0 to 1" in absent.stderr
    )
    text = tieredstore("cat", "-c", settings, tiered.topic, "-p", 0, "--to", 1, *live).text
    assert text.split()[:5] == ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE"]


def test_client_properties_come_from_a_file_and_one_by_one(tiered: TieredTopic, settings: Path, tmp_path: Path) -> None:
    login = tmp_path / "client.properties"
    login.write_text(
        f"bootstrap.servers={tiered.server.sasl_servers}\nsecurity.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism=PLAIN\nsasl.username={USER}\nsasl.password=not-it\n"
    )
    asked = ("cat", "-c", settings, tiered.topic, "-p", 0, "--json", "--kafka-config", login)
    assert len(offsets(tieredstore(*asked, "-X", f"sasl.password={PASSWORD}"))) == COUNT
    refused = tieredstore(*asked)
    assert refused.code == 6
    assert "not-it" not in refused.stderr + refused.text


def test_a_hole_at_the_seam_by_the_policy(tiered: TieredTopic, settings: Path) -> None:
    tiered.tier(but_last=2)
    end = max(m.end_offset for (number, _), m in tiered.copied.items() if number == 0) + 1
    delete_records(tiered.server, tiered.topic, end + 5)
    asked = ("cat", "-c", settings, tiered.topic, "-p", 0, "--json")
    live = ("--bootstrap-server", tiered.server.bootstrap_servers)
    failed = tieredstore(*asked, *live)
    assert failed.code != 0
    assert f"offsets {end} to {end + 4} of {tiered.topic}-0 are not available" in failed.stderr
    assert "--on-loss report" in failed.stderr
    reported = tieredstore(*asked, *live, "--on-loss", "report")
    assert reported.code == 0
    assert len(reported.text.splitlines()) == COUNT - 5
    assert f"offsets {end} to {end + 4}" in reported.stderr


def test_new_records_are_followed_until_interrupted(tiered: TieredTopic, settings: Path) -> None:
    tiered.tier(but_last=1)
    live = ("--bootstrap-server", tiered.server.bootstrap_servers)
    asked = ("cat", "-c", settings, tiered.topic, "-p", 0, "--from", COUNT - 2, "--json", "-f", *live)
    with subprocess.Popen(
        command(*asked), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            shown = [json.loads(process.stdout.readline())["offset"] for _ in range(2)]
            produce(tiered.server, tiered.topic, [Produced(b"k", b"later")])
            shown.append(json.loads(process.stdout.readline())["offset"])
            assert shown == [COUNT - 2, COUNT - 1, COUNT]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_what_cannot_be_is_one_sentence(tiered: TieredTopic, settings: Path) -> None:
    asked = ("cat", "-c", settings, tiered.topic)
    for wrong, words in (
        (("-X", "secret"), "must be NAME=VALUE"),
        (("-X", "client.id=me"), "no broker is named: give --bootstrap-server HOST:PORT"),
        (("-f", "--to", "3"), "--follow has no end"),
        (("--bootstrap-server", "b:1", "-X", "no.such=1"), "no.such"),
    ):
        done = tieredstore(*asked, *wrong)
        assert done.code == 2
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    with unanswered_port() as port:
        nobody = ("--bootstrap-server", f"127.0.0.1:{port}", "-X", "default.api.timeout.ms=1500")
        unreachable = tieredstore(*asked, *nobody)
    assert unreachable.code == 75
    # The client's first warning comes before the error message.
    assert nobody[1] in unreachable.stderr.splitlines()[-1]
    assert unreachable.text == ""


def test_records_that_an_open_transaction_holds_back_are_reported(tiered: TieredTopic, settings: Path) -> None:
    asked = ("cat", "-c", settings, tiered.topic, "-p", 0, "--last", 1, "--json")
    live = ("--bootstrap-server", tiered.server.bootstrap_servers)
    tiered.tier(but_last=1)
    transaction = Transaction(tiered.server)
    transaction.send(tiered.topic, [Produced(None, b"open")])
    held_back = tieredstore(*asked, *live)
    assert [row["offset"] for row in held_back.lines] == [COUNT - 1]
    assert held_back.stderr == (
        f"tieredstore: left out: offsets {COUNT} to {COUNT} of {tiered.topic}-0, held back by an open transaction; "
        "--isolation read_uncommitted shows them\n"
    )
    uncommitted = tieredstore(*asked, *live, "--isolation", "read_uncommitted")
    assert offsets(uncommitted) == [(0, COUNT)]
    transaction.end("commit")
    assert offsets(tieredstore(*asked, *live)) == [(0, COUNT)]
