"""Topics whose settings forbid or warn, as a broker tells them, does not tell them, or refuses to."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from tieredstore.config.loading import uploader_settings_from
from tieredstore.errors import BrokerDenied, BrokerUnavailable, TieredStoreError
from tieredstore.live.broker_state import BrokerState
from tieredstore.uploader.topics import TopicAdvice


class Broker:
    """Answers what it is given, or fails with it."""

    def __init__(self, answers: dict[str, dict[str, str]]) -> None:
        self.answers = answers
        self.error: TieredStoreError | None = None
        self.asked: list[list[str]] = []

    def topic_settings(self, topics: list[str]) -> dict[str, dict[str, str]]:
        self.asked.append(list(topics))
        if self.error is not None:
            raise self.error
        return {topic: self.answers[topic] for topic in topics if topic in self.answers}


def advice_of(broker: Broker | None, **settings: str) -> TopicAdvice:
    parsed = uploader_settings_from({f"uploader.{name.replace('_', '.')}": value for name, value in settings.items()})
    return TopicAdvice(parsed, cast("BrokerState | None", broker))


def test_refused_warned_of_and_forced_topics(caplog: pytest.LogCaptureFixture) -> None:
    short = {"cleanup.policy": "delete", "retention.ms": "1000", "file.delete.delay.ms": "60000"}
    broker = Broker(
        {"plain": {}, "short": short, "table": {"cleanup.policy": "compact"}, "forced": {"cleanup.policy": "compact"}}
    )
    advice = advice_of(broker, force_topics="forced")
    with caplog.at_level(logging.WARNING):
        advice.ask(["plain", "short", "table", "forced"])
        advice.ask(["short"])
    assert len(broker.asked) == 1
    assert set(advice.refused) == {"table"}
    assert "uploader.force.topics=table" in caplog.text
    assert any("retention.ms is 1000" in sentence for sentence in advice.advice["short"])
    assert all(map(advice.knows, ("plain", "short", "table", "forced")))
    # Settings change, and are told again.
    broker.answers["table"] = {}
    advice.forget()
    advice.ask(["table"])
    assert advice.refused == {}


def test_a_warning_is_one_line_for_all_its_topics(caplog: pytest.LogCaptureFixture) -> None:
    many = {f"topic-{number:02d}": {"file.delete.delay.ms": "60000"} for number in range(14)}
    others = {"kept": {"retention.ms": "-1"}, "bytes": {"retention.ms": "-1", "retention.bytes": "5"}}
    advice = advice_of(Broker({**many, **others}))
    lines: list[str] = []
    for _ in range(2):
        caplog.clear()
        advice.ask([*many, *others])
        lines = caplog.messages
        (line,) = lines
        assert line.startswith("topics bytes, topic-00, topic-01,")
        assert " and 5 more: file.delete.delay.ms is 60000" in line
        # An hour later.
        advice.forget()
    assert advice.advice["kept"] == ()
    assert advice.sentences() == lines


def test_where_links_outlive_the_process_the_delay_of_deletion_does_not_matter() -> None:
    advice = advice_of(Broker({"plain": {}}), hold_dir="/held")
    advice.ask(["plain"])
    assert advice.advice["plain"] == ()


def test_an_outage_is_tried_again_and_a_refusal_ships_what_is_selected(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker({})
    advice = advice_of(broker)
    broker.error = BrokerUnavailable("away")
    with pytest.raises(BrokerUnavailable):
        advice.ask(["orders"])
    assert not advice.knows("orders")
    broker.error = BrokerDenied("no")
    advice.ask(["orders"])
    assert advice.knows("orders")
    assert not advice.refused
    assert "are not told" in caplog.text


def test_a_topic_that_is_never_told_of_is_shipped_after_some_tries(caplog: pytest.LogCaptureFixture) -> None:
    broker: Any = Broker({})
    advice = advice_of(broker)
    for _ in range(50):
        advice.ask(["orders"])
    assert advice.knows("orders")
    assert 1 < len(broker.asked) < 50
    assert "orders are not told, so it is shipped" in caplog.text


def test_without_a_broker_nobody_is_asked() -> None:
    advice = advice_of(None)
    advice.ask(["orders"])
    assert advice.knows("orders")
