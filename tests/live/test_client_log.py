"""librdkafka's log as sentences: one for an unreachable broker, one for its return."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.support.kafka.mock_kafka import mock_kafka
from tests.support.servers.process import unanswered_port
from tieredstore.consumer import Consumer
from tieredstore.live import LiveCluster
from tieredstore.live.client_log import ClientLog, log_to
from tieredstore.live.clients import LiveAdmin, LiveConsumer, LiveProducer

_DEADLINE_S: Final = 60.0


@pytest.fixture(autouse=True)
def only_ours(caplog: pytest.LogCaptureFixture) -> None:
    """Forget brokers that clients of earlier tests know."""
    gc.collect()
    caplog.set_level(logging.DEBUG, "tieredstore")


def sentences(caplog: pytest.LogCaptureFixture, address: str = "") -> list[str]:
    """Return the logged sentences. ``address`` selects those about one broker, because clients of other tests may
    log too.
    """
    texts = [one.getMessage() for one in caplog.records if one.levelno > logging.INFO]
    return [text for text in texts if address in text]


def say(log: ClientLog, level: int, facility: str, text: str) -> None:
    log.log(level, "%s [%s] %s", facility, "rdkafka#consumer-1", text)


def refuse(log: ClientLog, name: str, host: str | None = None) -> None:
    host = host or name.partition("/")[0]
    reason = f"Connect to ipv4#{host} failed: Connection refused (after 0ms in state CONNECT)"
    say(log, logging.DEBUG, "FAIL", f"[thrd:{name}]: {name}: {reason} (_TRANSPORT)")
    say(log, logging.ERROR, "FAIL", f"[thrd:{name}]: {name}: {reason}")


def come_up(log: ClientLog, name: str) -> None:
    for step in ("TRY_CONNECT -> CONNECT", "APIVERSION_QUERY -> UP"):
        say(log, logging.DEBUG, "STATE", f"[thrd:{name}]: {name}: Broker changed state {step}")


def poll_until(poll: Callable[[], object], is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + _DEADLINE_S
    while not is_done():
        assert time.monotonic() < end
        poll()


def test_each_state_has_one_sentence_whatever_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    log, other = ClientLog(), ClientLog()
    for _ in range(3):
        refuse(log, "b:9092/bootstrap")
        refuse(log, "b:9092/1")
        refuse(other, "b:9092/1")
    assert sentences(caplog) == ["broker b:9092 cannot be reached: connection refused; trying again"]
    caplog.clear()
    come_up(other, "c:9092/2")
    come_up(other, "b:9092/1")
    come_up(log, "b:9092/1")
    assert sentences(caplog) == ["broker b:9092 is back"]
    caplog.clear()
    refuse(other, "b:9092/1")
    assert len(sentences(caplog)) == 1


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "sasl_ssl://b:9093/bootstrap: SASL authentication error: denied (after 5ms in state AUTH_REQ)",
            "broker b:9093 cannot be reached: SASL authentication error: denied; trying again",
        ),
        (
            "no.where:9092/bootstrap: Failed to resolve 'no.where:9092': unknown host (after 1ms in state CONNECT)",
            "broker no.where:9092 cannot be reached: failed to resolve 'no.where:9092': unknown host; trying again",
        ),
        (
            "[::1]:9092/3: Connect to ipv6#[::1]:9092 failed: Connection refused (after 0ms in state CONNECT)",
            "broker [::1]:9092 cannot be reached: connection refused; trying again",
        ),
    ],
)
def test_a_failure_of_any_kind(caplog: pytest.LogCaptureFixture, line: str, sentence: str) -> None:
    log = ClientLog()
    say(log, logging.ERROR, "FAIL", f"[thrd:x]: {line}")
    assert sentences(caplog) == [sentence]
    come_up(log, line.partition(": ")[0])
    assert sentences(caplog)[1:] == [f"{sentence.partition(' cannot')[0]} is back"]


def test_a_coordinator_is_named_by_its_broker(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog()
    refuse(log, "GroupCoordinator/1: b:9092", "b:9092")
    come_up(log, "GroupCoordinator")
    assert sentences(caplog) == [
        "broker b:9092 cannot be reached: connection refused; trying again", "broker b:9092 is back",
    ]  # fmt: skip


def test_what_a_client_that_is_gone_knew_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        log = ClientLog()
        refuse(log, "b:9092/1")
        del log
        gc.collect()
    assert len(sentences(caplog)) == 2


def test_other_warnings_are_given_once_each(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog()
    for _ in range(2):
        say(log, logging.WARNING, "CONFWARN", "[thrd:app]: Configuration property group.id is a consumer property")
        say(log, logging.WARNING, "MAXPOLL", "[thrd:main]: Application maximum poll interval (6000ms) exceeded")
        say(log, logging.INFO, "FAIL", "[thrd:b:9092/1]: b:9092/1: Disconnected (after 600000ms in state UP)")
    assert sentences(caplog) == ["the Kafka client reports: Application maximum poll interval (6000ms) exceeded"]


def test_old_failures_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog()
    refuse(log, "b:9092/1")
    with log.of_the_past():
        refuse(log, "c:9092/2")
        come_up(log, "b:9092/1")
    assert [text.split()[1] for text in sentences(caplog)] == ["b:9092", "b:9092"]


def test_a_client_that_is_to_be_silent_is() -> None:
    log = ClientLog()
    assert log_to(log, {"log_level": "2"}) == {"log_level": "2", "logger": log}
    assert log_to(log, {"debug": "cgrp,broker"})["debug"] == "broker,cgrp"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["consumer", "live consumer", "producer", "admin"])
def test_no_raw_line_of_a_broker_that_is_not_there(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    with unanswered_port() as port:
        properties = {"bootstrap.servers": f"127.0.0.1:{port}"}
        member = properties | {"group.id": "readers"}
        makers: dict[str, Callable[[], Any]] = {
            "consumer": lambda: Consumer({**member, "tiered.storage.mode": "kafka_only"}),
            "live consumer": lambda: LiveConsumer(member),
            "producer": lambda: LiveProducer(properties),
            "admin": lambda: LiveAdmin(properties),
        }
        client = makers[kind]()

        def has_failed_often() -> bool:
            return sum("FAIL" in one.getMessage() for one in caplog.records) > 5

        poll_until(lambda: client.poll(0.1), has_failed_often)
        if hasattr(client, "close"):
            client.close()
    said = sentences(caplog, f"127.0.0.1:{port} ")
    assert said == [f"broker 127.0.0.1:{port} cannot be reached: connection refused; trying again"]
    assert "|rdkafka#" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_a_broker_that_goes_and_comes_back(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with mock_kafka() as kafka:
        kafka.make_topic("orders")
        properties = {"bootstrap.servers": kafka.bootstrap_servers}
        down = f"broker {kafka.bootstrap_servers} cannot be reached: connection refused; trying again"
        back = f"broker {kafka.bootstrap_servers} is back"
        member = {**properties, "group.id": "readers", "tiered.storage.mode": "kafka_only"}
        with Consumer(member) as consumer, LiveCluster(properties, isolation="read_committed") as cluster:
            consumer.subscribe(["orders"])
            poll_until(lambda: consumer.poll(0.1), lambda: bool(consumer.assignment()))
            assert cluster.topics() == ("orders",)
            assert sentences(caplog, kafka.bootstrap_servers) == []
            for _ in range(2):
                kafka.set_down(1)
                poll_until(lambda: consumer.poll(0.1), lambda: down in sentences(caplog, kafka.bootstrap_servers))
                kafka.set_up(1)
                poll_until(lambda: consumer.poll(0.1), lambda: back in sentences(caplog, kafka.bootstrap_servers))
                assert cluster.topics() == ("orders",)
                assert sentences(caplog, kafka.bootstrap_servers) == [down, back]
                caplog.clear()
    assert "|rdkafka#" not in capfd.readouterr().err
