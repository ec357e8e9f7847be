"""librdkafka's clients, logged in one place and left alone by a forked child; and consumers that are kept."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from tieredstore.errors import BrokerUnavailableError, ConfigError
from tieredstore.live.client_log import ClientLog, log_to
from tieredstore.live.faults import Trouble, kind_of, unknown_s
from tieredstore.process.forks import begin_again_after_fork, is_inherited, leave_to_parent

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata

Result = TypeVar("Result")


class Statistics:
    """Hands a consumer's statistics to whoever reads by it at the moment, if somebody does."""

    def __init__(self) -> None:
        self.listener: Callable[[str], None] | None = None

    def hear(self, text: str) -> None:
        """librdkafka's callback: JSON, at every ``statistics.interval.ms``."""
        if self.listener is not None:
            self.listener(text)


class _Family:
    """The clients of this process, and whether its parent had some when it forked."""

    def __init__(self) -> None:
        self._clients: weakref.WeakSet[object] = weakref.WeakSet()
        self.is_forked_beside_clients = False
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """In a forked child: those were the parent's."""
        self.is_forked_beside_clients = self.is_forked_beside_clients or bool(self._clients)
        self._clients = weakref.WeakSet()

    def add(self, client: object) -> None:
        """One of this process. A forked child leaves it alone: its end would wait for threads that are not there."""
        self._clients.add(client)
        leave_to_parent(client)


_family: Final = _Family()


class LiveConsumer(Consumer):
    """A consumer that knows its trouble, and can be referred to weakly."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self.trouble: Trouble = Trouble(beside_clients=_family.is_forked_beside_clients)
        self.statistics: Statistics = Statistics()
        _construct(super().__init__, configuration, self.trouble, {"stats_cb": self.statistics.hear})
        _family.add(self)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """As the library's, which an interrupt ends as it ends anything else."""
        try:
            return super().consume(num_messages, timeout)
        except SystemError as error:
            # About half of the times confluent-kafka 2.16 loses what a signal's handler raised while it waited, and
            # returns an error without saying which.
            raise KeyboardInterrupt from error


class LiveProducer(Producer):
    """A producer that knows its trouble, and whether it can go on."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self.trouble: Trouble = Trouble(beside_clients=_family.is_forked_beside_clients)
        self.is_lost = False
        _construct(super().__init__, configuration, self.trouble, {"error_cb": self._note})
        _family.add(self)

    def _note(self, error: KafkaError) -> None:
        """Of an idempotent producer that cannot tell any more what the broker has the library says that it is fatal."""
        self.is_lost = self.is_lost or error.fatal() or error.code() == KafkaError._FATAL
        self.trouble.note(error)


class LiveAdmin(AdminClient):
    """An administrative client that knows its trouble."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self.trouble: Trouble = Trouble(beside_clients=_family.is_forked_beside_clients)
        self._log = _construct(super().__init__, configuration, self.trouble, {})
        _family.add(self)

    def hear(self) -> None:
        """Take note that an answer has come: what the client reported before it is over, but for brokers that are back.

        Nothing else polls a client that is answered at once, and its reports would pile up.
        """
        with self._log.of_the_past():
            self.poll(0)
        self.trouble.forget()

    def listen(self, doing: str) -> None:
        """Raise what waiting does not mend, as that we are refused: the client reports it only while it is polled."""
        self.poll(0)
        final = self.trouble.final(doing)
        if final is not None:
            raise final

    def metadata(self, timeout_s: float, doing: str) -> ClusterMetadata:
        """Return what the cluster has; KafkaException if no broker tells in time. Raises as :meth:`listen` too."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                listed: ClusterMetadata = self.list_topics(timeout=min(_LISTED_S, timeout_s))
            except KafkaException as error:
                self.listen(doing)
                if kind_of(error.args[0]) is not BrokerUnavailableError or time.monotonic() > end:
                    raise
                time.sleep(_POLL_S)
            else:
                self.hear()
                return listed


_LISTED_S: Final = 1.0
"""How long the client is not polled while metadata are waited for."""

_SILENT_S: Final = 1.0
"""How long an answer may be missing before the brokers are asked who they are; twice as long each time."""

_POLL_S: Final = 0.02


def await_answer(client: LiveAdmin, future: Future[Result], end: float, between: Callable[[], None]) -> Result:
    """Return what ``future`` gives; TimeoutError at ``end``, by the monotonic clock.

    ``between`` is called again and again while nothing comes, and may raise. Some requests go to the controller. If
    that broker has died, librdkafka 2.16 waits for it (and takes a whole core) until an answer to another question
    names a new one.
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
    """ConfigError for what librdkafka does not take. Connects to nothing."""
    known = {name: value for name, value in configuration.items() if name != "bootstrap.servers"}
    LiveConsumer(known).close()


def _construct(
    constructor: Any, configuration: Mapping[str, str], trouble: Trouble, callbacks: dict[str, Any]
) -> ClientLog:
    log = ClientLog()
    try:
        constructor(log_to(log, {**configuration, "error_cb": trouble.note, **callbacks}))
    except KafkaException as error:
        raise ConfigError(f"the client properties cannot be used: {error.args[0].str()}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the client properties cannot be used: {error}") from error
    return log


_logger: Final = logging.getLogger(__name__)

_KEPT: Final = 4
"""Idle ones of a pool; reads that go on side by side have one each, however many they are."""

_STATISTICS_MS: Final = 1000

_FETCH_WAIT_MS: Final = 20
"""How long a broker waits at the end of its log before it answers a bounded read that there is no more.

A read up to the end waits for that answer where transactions end, and the next read by the same consumer for one that
is under way: the library's 500 ms cost each of them half a second.
"""


def reading_configuration(configuration: Mapping[str, str], timeout_s: float) -> dict[str, str]:
    """That of a consumer which reads what it is told to, and commits nothing."""
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
    """That of a consumer whose reads end where the broker's log did a moment ago."""
    return {"fetch.wait.max.ms": str(_FETCH_WAIT_MS), **reading_configuration(configuration, timeout_s)}


class ConsumerPool:
    """Lends consumers of one configuration, each to one read at a time. Safe from several threads of one process."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self._configuration = dict(configuration)
        self._idle: list[LiveConsumer] = []
        self._is_open = True

    @contextmanager
    def lent(self) -> Generator[LiveConsumer]:
        """A consumer without an assignment, for the block; one that a read failed with is not used again."""
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
        """Close the idle ones; those that are lent are closed when they come back."""
        self._is_open = False
        while (consumer := self._take_idle()) is not None:
            consumer.close()

    def _take_idle(self) -> LiveConsumer | None:
        # In one step, without a look beforehand: another thread may take the last one in between.
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _can_keep(self, consumer: LiveConsumer) -> bool:
        return self._is_open and len(self._idle) < _KEPT and not is_inherited(consumer)

    def _take_back(self, consumer: LiveConsumer) -> None:
        consumer.statistics.listener = None
        if not self._can_keep(consumer):
            _close(consumer)
            return
        try:
            consumer.unassign()
        except KafkaException as error:
            _logger.debug("a consumer is not used again: %s", error)
            _close(consumer)
            return
        # What went wrong under one read would be told as the next one's trouble.
        consumer.trouble.noted = None
        self._idle.append(consumer)
        if not self._is_open:  # closed since it was looked
            self.close()


def _close(consumer: LiveConsumer) -> None:
    # A forked child has the read that borrowed it, and none of the threads that closing waits for.
    if not is_inherited(consumer):
        consumer.close()
