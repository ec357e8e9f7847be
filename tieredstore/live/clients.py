"""librdkafka's clients with shared logging and safe behavior after a fork, and a pool of consumers."""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from tieredstore.errors import BrokerUnavailableError, ConfigError
from tieredstore.live.client_log import ClientLog, log_to
from tieredstore.live.faults import Trouble, kind_of, unknown_s
from tieredstore.model import TopicPartition
from tieredstore.process.forks import begin_again_after_fork, is_inherited, leave_to_parent

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class Statistics:
    """Passes the statistics of a consumer to the read that uses this consumer at the moment."""

    def __init__(self) -> None:
        self._listener: Callable[[str], None] | None = None

    @contextmanager
    def pass_to(self, listener: Callable[[str], None]) -> Generator[None]:
        """Pass the statistics to a read for the block."""
        self._listener = listener
        try:
            yield
        finally:
            self._listener = None

    def hear(self, text: str) -> None:
        """Receive statistics as JSON. librdkafka calls this every ``statistics.interval.ms``."""
        if (listener := self._listener) is not None:
            listener(text)


class _Family:
    """The Kafka clients of this process. ``is_forked_beside_clients`` is True if this process was forked from a process
    with clients."""

    def __init__(self) -> None:
        self._clients: weakref.WeakSet[object] = weakref.WeakSet()
        self._undestroyed: list[object] = []
        self.is_forked_beside_clients = False
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Forget the clients after a fork, because they belong to the parent process."""
        self.is_forked_beside_clients = self.is_forked_beside_clients or bool(self._clients)
        self._clients = weakref.WeakSet()

    def add(self, client: object) -> None:
        """Register a client. A forked child must not destroy the client, because that would wait for threads that only
        the parent has.
        """
        self._undestroyed.clear()
        self._clients.add(client)
        leave_to_parent(client)

    def keep_in_alien_thread(self, client: object) -> None:
        """Keep a client that is about to be destroyed in a thread of librdkafka, until the next client is registered.

        A thread of librdkafka calls Python for the answer to a request. A garbage collection in this call may find the
        client, for example in a traceback. If a client's own thread destroys the client, librdkafka ends the process.
        """
        if threading.current_thread().name.startswith(_ALIEN):
            self._undestroyed.append(client)
            leave_to_parent(client)


_ALIEN: Final = "Dummy-"
"""The beginning of the name that ``threading`` gives to a thread that it did not start."""

_family: Final = _Family()


def call_client(call: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
    """Return the result of ``call``; raise KafkaException for a fatal error.

    confluent-kafka 2.16 sometimes raises the KafkaError itself, although a KafkaError is no BaseException. Only a bare
    ``except`` catches it. If nothing catches it, the process ends.
    """
    try:
        return call(*arguments, **named)
    except:  # noqa: E722  a KafkaError is no BaseException
        error: object = sys.exc_info()[1]
        if not isinstance(error, KafkaError):
            raise
    # Raise after the ``except`` block, because within the block Python would set the KafkaError as the new exception's
    # ``__context__``, although a KafkaError is no exception.
    raise KafkaException(error)


class LiveConsumer(Consumer):
    """A consumer that keeps its last connection error (``trouble``). Unlike confluent-kafka's consumer, it supports
    weak references."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self.trouble: Trouble = Trouble(beside_clients=_family.is_forked_beside_clients)
        self.statistics: Statistics = Statistics()
        _construct(super().__init__, configuration, self.trouble, {"stats_cb": self.statistics.hear})
        _family.add(self)

    def __del__(self) -> None:
        _family.keep_in_alien_thread(self)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Consume like the library's method. But raise KeyboardInterrupt if Ctrl-C interrupts the call, and
        KafkaException for a fatal error."""
        try:
            return call_client(super().consume, num_messages, timeout)
        except SystemError as error:
            # If a signal handler raises an exception during the call, confluent-kafka 2.16 often loses it. Python then
            # raises SystemError, so raise the interrupt here.
            raise KeyboardInterrupt from error

    def poll(self, timeout: float = -1) -> Message | None:
        """Return a record or None, like the library's method; raise KafkaException for a fatal error."""
        return call_client(super().poll, timeout)

    def close(self) -> None:
        """Close like the library's method; raise KafkaException for a fatal error."""
        call_client(super().close)


class LiveProducer(Producer):
    """A producer that keeps its last connection error (``trouble``). ``is_lost`` is true after a fatal error."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self.trouble: Trouble = Trouble(beside_clients=_family.is_forked_beside_clients)
        self.is_lost = False
        _construct(super().__init__, configuration, self.trouble, {"error_cb": self._note})
        _family.add(self)

    def __del__(self) -> None:
        _family.keep_in_alien_thread(self)

    def poll(self, timeout: float = -1) -> int:
        """Run callbacks. Keep a fatal error, which the library raises here without calling ``error_cb``."""
        return self._unless_fatal(super().poll, timeout) or 0

    def flush(self, timeout: float = -1) -> int:
        """Wait until records are delivered; return the number of undelivered records. Keep a fatal error, as
        :meth:`poll` does."""
        left = self._unless_fatal(super().flush, timeout)
        return len(self) if left is None else left

    def _unless_fatal(self, call: Callable[[float], int], timeout: float) -> int | None:
        """Return the result of ``call``. If it raises a Kafka error, keep the error and return None."""
        try:
            return call_client(call, timeout)
        except KafkaException as error:
            self._note(error.args[0])
            return None

    def _note(self, error: KafkaError) -> None:
        """Keep an error, and set ``is_lost`` if the error is fatal. For example, an error is fatal if an idempotent
        producer no longer knows which records the broker has.
        """
        self.is_lost = self.is_lost or error.fatal() or error.code() == KafkaError._FATAL
        self.trouble.note(error)


class LiveAdmin(AdminClient):
    """An administrative client that keeps its last connection error (``trouble``)."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self.trouble: Trouble = Trouble(beside_clients=_family.is_forked_beside_clients)
        self._log = _construct(super().__init__, configuration, self.trouble, {})
        _family.add(self)

    def __del__(self) -> None:
        _family.keep_in_alien_thread(self)

    def hear(self) -> None:
        """Record that a broker has answered: drop earlier connection errors, and log that the broker is back.

        This method also polls the client. If all answers arrive at once, no other code polls it, and error reports
        would accumulate in the client's queue.
        """
        with self._log.of_the_past():
            self.poll(0)
        self.trouble.forget()

    def listen(self, doing: str) -> None:
        """Poll, and raise an error that waiting cannot fix, such as denied access. The client reports errors only while
        it is polled.
        """
        self.poll(0)
        final = self.trouble.final(doing)
        if final is not None:
            raise final

    def metadata(self, timeout_s: float, doing: str, topic: str | None = None) -> ClusterMetadata:
        """Return the cluster's metadata, with all topics or only ``topic``. Raise BrokerUnavailableError if no broker
        answers in time, and the errors of :meth:`listen`."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                listed = self.list_topics(topic, timeout=min(_LISTED_S, max(_POLL_S, end - time.monotonic())))
            except KafkaException as error:
                self.listen(doing)
                if kind_of(error.args[0]) is not BrokerUnavailableError or time.monotonic() > end:
                    raise self.trouble.failure(error.args[0], doing, timeout_s) from error
                time.sleep(_POLL_S)
            else:
                self.hear()
                return listed

    def leader_errors(
        self, partitions: Iterable[TopicPartition], timeout_s: float, doing: str
    ) -> dict[TopicPartition, KafkaError]:
        """Load the leaders of these partitions, and return the errors of partitions without a leader. Call this before
        each request that goes to leaders. Raise the errors of :meth:`metadata`.

        Each topic takes one request. Many topics take one request for the metadata of the whole cluster, and one more
        for each topic that the answer lacks: it may be absent, or the login may not describe it.

        If a request needs an unknown leader, librdkafka 2.16 looks it up. If other metadata arrives at that moment, it
        uses memory that it has freed, and the process ends.
        """
        end, errors = time.monotonic() + timeout_s, dict[TopicPartition, KafkaError]()
        by_topic: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for where in partitions:
            by_topic[where[0]].append(where)
        whole = self.metadata(timeout_s, doing) if len(by_topic) > _MOST_NAMED else None
        for topic, own in by_topic.items():
            if whole is not None and topic in whole.topics:
                errors |= partition_errors(whole, own)
            else:
                errors |= partition_errors(self.metadata(max(_POLL_S, end - time.monotonic()), doing, topic), own)
        return errors


_MOST_NAMED: Final = 16
"""Number of topics up to which each is asked for by its name. The metadata of a whole cluster may have many MB."""


def partition_errors(listed: ClusterMetadata, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KafkaError]:
    """Return the errors that the cluster's metadata reports about these partitions."""
    errors: dict[TopicPartition, KafkaError] = {}
    for topic, number in partitions:
        known = listed.topics.get(topic)
        partition = None if known is None else known.partitions.get(number)
        if known is None:
            errors[topic, number] = KafkaError(KafkaError._UNKNOWN_TOPIC)
        elif known.error is not None:
            errors[topic, number] = known.error
        elif partition is None:
            errors[topic, number] = KafkaError(KafkaError._UNKNOWN_PARTITION)
        # Ignore all other errors, because they concern unavailable replicas and do not affect reading.
        elif partition.leader not in listed.brokers:
            errors[topic, number] = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
    return errors


_LISTED_S: Final = 1.0
"""Maximum seconds to wait for metadata before the client is polled again."""

_SILENT_S: Final = 1.0
"""Seconds without an answer after which metadata is refreshed; the time doubles at each refresh."""

_POLL_S: Final = 0.02


def await_answer(client: LiveAdmin, future: Future[Result], end: float, between: Callable[[], None]) -> Result:
    """Return the result of ``future``; raise TimeoutError at ``end`` (monotonic time).

    ``between`` is called repeatedly during the wait and may raise.

    Some requests go to the controller. If the controller has died, librdkafka 2.16 uses a whole core until new metadata
    names another controller. So the metadata is refreshed during the wait.
    """
    silent_s = _SILENT_S
    refresh_at = time.monotonic() + silent_s
    while True:
        try:
            return future.result(_POLL_S)
        except TimeoutError:
            between()
            now = time.monotonic()
            if now > end:
                raise
            if now > refresh_at:
                with suppress(KafkaException):
                    client.list_topics(timeout=min(_SILENT_S, max(_POLL_S, end - now)))
                silent_s *= 2
                refresh_at = time.monotonic() + silent_s


def check_configuration(configuration: Mapping[str, str]) -> None:
    """Raise ConfigError for properties that librdkafka rejects. The check does not connect to a broker."""
    known = {name: value for name, value in configuration.items() if name != "bootstrap.servers"}
    LiveConsumer(known).close()


def _construct(
    constructor: Callable[[dict[str, object]], object],
    configuration: Mapping[str, str],
    trouble: Trouble,
    callbacks: Mapping[str, Callable[..., object]],
) -> ClientLog:
    log = ClientLog()
    try:
        constructor(log_to(log, {**configuration, "error_cb": trouble.note, **callbacks}))
    except KafkaException as error:
        raise ConfigError(f"invalid client properties: {error.args[0].str()}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"invalid client properties: {error}") from error
    return log


_logger: Final = logging.getLogger(__name__)

_KEPT: Final = 4
"""The maximum number of idle consumers in a pool. Parallel reads have one consumer each, without a limit."""

_STATISTICS_MS: Final = 1000

_FETCH_WAIT_MS: Final = 20
"""At the end of a log, a broker waits this many milliseconds for new records before it answers a fetch.

If a read's range ends with a transaction marker, this read waits for the broker's answer. The consumer's next read
waits too. With the library's default of 500 ms, each read would take half a second longer.
"""


def reading_configuration(configuration: Mapping[str, str], timeout_s: float) -> dict[str, str]:
    """Return the configuration of a consumer that reads partitions assigned by its caller and commits nothing."""
    return {
        **configuration,
        "auto.offset.reset": "error",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "max.poll.interval.ms": "86400000",
        "statistics.interval.ms": str(_STATISTICS_MS),
        "topic.metadata.propagation.max.ms": str(int(unknown_s(timeout_s) * 1000)),
    }


def bounded_configuration(configuration: Mapping[str, str], timeout_s: float) -> dict[str, str]:
    """Return the configuration of a consumer that reads ranges. A range may end at the end of the broker's log."""
    return {"fetch.wait.max.ms": str(_FETCH_WAIT_MS), **reading_configuration(configuration, timeout_s)}


class ConsumerPool:
    """A pool that lends each consumer to one read at a time. All consumers have the same configuration. Thread-safe
    within one process."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self._configuration = dict(configuration)
        self._idle: list[LiveConsumer] = []
        self._is_open = True

    @contextmanager
    def lend(self) -> Generator[LiveConsumer]:
        """Lend a consumer without assignment for the block. If the block raises an error, discard the consumer."""
        consumer = self._take_idle() or LiveConsumer(self._configuration)
        try:
            yield consumer
        except GeneratorExit:
            self._take_back(consumer)
            raise
        except BaseException:
            _close(consumer)
            raise
        self._take_back(consumer)

    def close(self) -> None:
        """Close idle consumers now, and lent consumers when they return."""
        self._is_open = False
        while (consumer := self._take_idle()) is not None:
            consumer.close()

    def _take_idle(self) -> LiveConsumer | None:
        # Do not check for an empty list first, because another thread may take the last consumer after the check.
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _can_keep(self, consumer: LiveConsumer) -> bool:
        return self._is_open and len(self._idle) < _KEPT and not is_inherited(consumer)

    def _take_back(self, consumer: LiveConsumer) -> None:
        if not self._can_keep(consumer):
            _close(consumer)
            return
        try:
            consumer.unassign()
        except KafkaException as error:
            _logger.debug("discarding a consumer: %s", error)
            _close(consumer)
            return
        # Forget connection errors of this read, so that the next read does not report them.
        consumer.trouble.noted = None
        self._idle.append(consumer)
        if not self._is_open:  # another thread has closed the pool
            self.close()


def _close(consumer: LiveConsumer) -> None:
    # A forked child does not close a consumer of its parent, because closing would wait for threads that only the
    # parent has.
    if not is_inherited(consumer):
        consumer.close()
