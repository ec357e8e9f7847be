"""librdkafka's clients with common logging and fork safety, and a pool of consumers."""

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
    """Passes a consumer's statistics to its current reader, if there is one."""

    def __init__(self) -> None:
        self.listener: Callable[[str], None] | None = None

    def hear(self, text: str) -> None:
        """Handle librdkafka's callback: JSON, every ``statistics.interval.ms``."""
        if self.listener is not None:
            self.listener(text)


class _Family:
    """The clients of this process; records whether its parent had some at the fork."""

    def __init__(self) -> None:
        self._clients: weakref.WeakSet[object] = weakref.WeakSet()
        self.is_forked_beside_clients = False
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Reset in a forked child, since the clients are the parent's."""
        self.is_forked_beside_clients = self.is_forked_beside_clients or bool(self._clients)
        self._clients = weakref.WeakSet()

    def add(self, client: object) -> None:
        """Register a client. A forked child must not destroy it, which would wait for threads that it does not have."""
        self._clients.add(client)
        leave_to_parent(client)


_family: Final = _Family()


class LiveConsumer(Consumer):
    """A consumer with its noted trouble and weak references."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self.trouble: Trouble = Trouble(beside_clients=_family.is_forked_beside_clients)
        self.statistics: Statistics = Statistics()
        _construct(super().__init__, configuration, self.trouble, {"stats_cb": self.statistics.hear})
        _family.add(self)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Consume like the library, but end on an interrupt."""
        try:
            return super().consume(num_messages, timeout)
        except SystemError as error:
            # In about half of all cases, confluent-kafka 2.16 loses the exception of a signal handler during the wait,
            # and returns an error without setting one.
            raise KeyboardInterrupt from error


class LiveProducer(Producer):
    """A producer with its noted trouble; ``is_lost`` is True after a fatal error."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self.trouble: Trouble = Trouble(beside_clients=_family.is_forked_beside_clients)
        self.is_lost = False
        _construct(super().__init__, configuration, self.trouble, {"error_cb": self._note})
        _family.add(self)

    def _note(self, error: KafkaError) -> None:
        """Note an error; the library calls it fatal if an idempotent producer lost track of the broker's state."""
        self.is_lost = self.is_lost or error.fatal() or error.code() == KafkaError._FATAL
        self.trouble.note(error)


class LiveAdmin(AdminClient):
    """An administrative client with its noted trouble."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self.trouble: Trouble = Trouble(beside_clients=_family.is_forked_beside_clients)
        self._log = _construct(super().__init__, configuration, self.trouble, {})
        _family.add(self)

    def hear(self) -> None:
        """Note an answer: trouble reported before it is over, except that returned brokers are still logged.

        Nothing else polls a client with immediate answers, so its reports would pile up.
        """
        with self._log.of_the_past():
            self.poll(0)
        self.trouble.forget()

    def listen(self, doing: str) -> None:
        """Raise errors that waiting cannot fix, such as denied access: the client reports them only while polled."""
        self.poll(0)
        final = self.trouble.final(doing)
        if final is not None:
            raise final

    def metadata(self, timeout_s: float, doing: str) -> ClusterMetadata:
        """Return the cluster's metadata; raise KafkaException if no broker answers in time, or as :meth:`listen`."""
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
"""Time without polling the client while waiting for metadata."""

_SILENT_S: Final = 1.0
"""Time without an answer before metadata are refreshed; it doubles each time."""

_POLL_S: Final = 0.02


def await_answer(client: LiveAdmin, future: Future[Result], end: float, between: Callable[[], None]) -> Result:
    """Return the result of ``future``; raise TimeoutError at ``end``, on the monotonic clock.

    ``between`` is called repeatedly during the wait, and may raise. Some requests go to the controller. If that broker
    has died, librdkafka 2.16 waits for it (and uses a whole core) until another answer names a new controller.
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
    """Raise ConfigError for properties that librdkafka rejects. Connects to nothing."""
    known = {name: value for name, value in configuration.items() if name != "bootstrap.servers"}
    LiveConsumer(known).close()


def _construct(
    constructor: Any, configuration: Mapping[str, str], trouble: Trouble, callbacks: dict[str, Any]
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
"""Most idle consumers of a pool; any number of parallel reads have one each."""

_STATISTICS_MS: Final = 1000

_FETCH_WAIT_MS: Final = 20
"""Time for which a broker waits at its log's end before it answers a bounded read without records.

A read to the end waits for that answer if transactions end there, and the consumer's next read waits for a pending one:
the library's default of 500 ms would cost each of them half a second.
"""


def reading_configuration(configuration: Mapping[str, str], timeout_s: float) -> dict[str, str]:
    """Return the configuration of a consumer that reads assigned offsets and commits nothing."""
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
    """Return the configuration of a consumer whose reads end at the recent end of the broker's log."""
    return {"fetch.wait.max.ms": str(_FETCH_WAIT_MS), **reading_configuration(configuration, timeout_s)}


class ConsumerPool:
    """Lends consumers of one configuration to one read at a time each. Thread-safe within one process."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        self._configuration = dict(configuration)
        self._idle: list[LiveConsumer] = []
        self._is_open = True

    @contextmanager
    def lent(self) -> Generator[LiveConsumer]:
        """Lend a consumer without assignment for the block; a consumer is discarded after a failed read."""
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
        """Close idle consumers now, and lent ones when they return."""
        self._is_open = False
        while (consumer := self._take_idle()) is not None:
            consumer.close()

    def _take_idle(self) -> LiveConsumer | None:
        # One step without a check before: another thread may take the last one in between.
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
            _logger.debug("discarding a consumer: %s", error)
            _close(consumer)
            return
        # Forget trouble of this read, which would be reported as the next one's.
        consumer.trouble.noted = None
        self._idle.append(consumer)
        if not self._is_open:  # closed since the check
            self.close()


def _close(consumer: LiveConsumer) -> None:
    # A forked child inherits the lent consumer, but none of the threads that closing waits for.
    if not is_inherited(consumer):
        consumer.close()
