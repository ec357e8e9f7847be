"""librdkafka's clients with this project's additions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ClusterMetadata

from tests.support.fresh_python import run_fresh
from tests.support.kafka.fatal_errors import FATAL, raise_fatal
from tests.support.kafka.mock_kafka import mock_kafka
from tests.support.simulated_time import SimulatedClock
from tieredstore.errors import BrokerUnavailableError
from tieredstore.live.clients import LiveAdmin, LiveConsumer, LiveProducer


@pytest.mark.slow
def test_an_interrupt_is_one_whenever_it_comes() -> None:
    """The signal is sent to a separate process. That process has no broker, so its consumer waits."""
    printed = run_fresh("""
import os
import signal
import threading
from confluent_kafka import TopicPartition
from tieredstore.live.clients import LiveConsumer

signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background begins with interrupts ignored
consumer = LiveConsumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "none", "log_level": "0"})
consumer.assign([TopicPartition("none", 0, 0)])
ends = []
for moment in range(1, 31):
    try:
        # In here: on a busy machine it may come at once.
        threading.Timer(0.01 * moment, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            consumer.consume(1, 0.1)
    except BaseException as error:
        ends.append(type(error).__name__)
consumer.close()
print(*sorted(set(ends)))
""")
    assert printed == "KeyboardInterrupt\n"


@pytest.mark.slow
def test_a_client_that_is_collected_in_its_own_thread_does_not_end_the_process() -> None:
    """The client's thread calls back for the answer to a request. A garbage collection may run in this call."""
    printed = run_fresh("""
import gc
import logging
import threading
import weakref
from queue import SimpleQueue
from tieredstore.live.clients import LiveAdmin

logging.disable()  # nobody listens at that port
configuration, answered = {"bootstrap.servers": "127.0.0.1:1"}, SimpleQueue()

def answer(_):
    gc.collect()
    answered.put(threading.current_thread())

def ask_and_forget():
    client = LiveAdmin(configuration)
    client.myself = client
    client.list_consumer_groups(request_timeout=0.1).add_done_callback(answer)
    return weakref.ref(client)

gc.disable()
client = ask_and_forget()
while answered.get(timeout=120) is threading.main_thread():  # the answer came before the callback was added
    client = ask_and_forget()
assert client() is None
LiveAdmin(configuration)  # destroys the client
print("alive")
""")
    assert printed == "alive\n"


@pytest.mark.slow
@pytest.mark.parametrize("call", ["poll", "flush"])
def test_a_fatal_error_that_only_a_bare_except_catches_is_kept(call: str) -> None:
    assert not issubclass(KafkaError, BaseException)
    raised = list[str]()

    def raise_once(text: str) -> None:
        if not raised:
            raised.append(text)
            raise_fatal(text)

    configuration: Any = {
        "bootstrap.servers": "127.0.0.1:9", "statistics.interval.ms": "10", "stats_cb": raise_once
    }  # fmt: skip
    producer = LiveProducer(configuration)
    producer.produce("orders", b"1")
    while not producer.is_lost:
        getattr(producer, call)(1)
    assert len(producer) >= 1  # the length includes statistics that are not delivered yet
    producer.purge()
    producer.close()  # its statistics would pile up until the run ends


@pytest.mark.parametrize(
    "call",
    [lambda one: one.consume(1, 0.2), lambda one: one.poll(0.2), LiveConsumer.close],
    ids=["consume", "poll", "close"],
)
def test_a_consumer_raises_an_exception_in_its_place(call: Callable[[LiveConsumer], object]) -> None:
    configuration = {"bootstrap.servers": "127.0.0.1:9", "group.id": "none", "statistics.interval.ms": "1"}

    def call_until_statistics() -> None:
        while True:
            consumer = LiveConsumer(configuration)
            try:
                with consumer.statistics.pass_to(raise_fatal):
                    call(consumer)
            finally:
                with contextlib.suppress(KafkaException, RuntimeError):  # the call may have closed the consumer
                    consumer.close()

    with pytest.raises(KafkaException) as raised:
        call_until_statistics()
    assert raised.value.args == (FATAL,)
    assert raised.value.__context__ is None


@pytest.mark.parametrize("timeout_s", [0.3, 2.5, 60.0])
def test_brokers_that_do_not_answer_hold_no_call_beyond_its_time(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    clock = SimulatedClock()

    def unanswered(client: LiveAdmin, topic: str | None, timeout: float) -> None:
        clock.sleep(timeout)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(LiveAdmin, "list_topics", unanswered)
    monkeypatch.setattr("tieredstore.live.clients.time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    client = LiveAdmin({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"})
    with pytest.raises(BrokerUnavailableError, match="the leaders cannot be looked up"):
        client.leader_errors([("orders", 0)], timeout_s, "the leaders cannot be looked up")
    assert timeout_s <= clock.now < timeout_s + 0.1


@pytest.mark.parametrize("count", [2, 16, 17])
def test_leaders_of_a_few_topics_take_no_metadata_of_the_whole_cluster(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A topic that the metadata of the whole cluster lacks is asked for by its name."""
    asked, list_topics = list[str | None](), LiveAdmin.list_topics

    def noted(client: LiveAdmin, topic: str | None = None, *, timeout: float) -> ClusterMetadata:
        asked.append(topic)
        return list_topics(client, topic, timeout=timeout)

    monkeypatch.setattr(LiveAdmin, "list_topics", noted)
    topics = [f"topic{number}" for number in range(count - 1)]
    with mock_kafka() as mocked:
        for topic in topics:
            mocked.make_topic(topic)
        client = LiveAdmin({"bootstrap.servers": mocked.bootstrap_servers, "allow.auto.create.topics": "false"})
        places = [*((topic, 0) for topic in topics), ("absent", 0), ("absent", 1), (topics[0], 9)]
        errors = client.leader_errors(places, 60, "the leaders cannot be looked up")
    names = {where: error.name() for where, error in errors.items()}
    unknown = dict.fromkeys([("absent", 0), ("absent", 1)], "UNKNOWN_TOPIC_OR_PART")
    assert names == {(topics[0], 9): "_UNKNOWN_PARTITION", **unknown}
    assert sorted(map(str, asked)) == (sorted([*topics, "absent"]) if count <= 16 else ["None", "absent"])
