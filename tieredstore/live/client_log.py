"""Log lines from the messages of librdkafka's clients. One line reports an unreachable broker, and another line its
return."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final

from tieredstore.errors import excerpt
from tieredstore.process.forks import begin_again_after_fork

_logger: Final = logging.getLogger(__name__)

_THREAD: Final = re.compile(r"\[thrd:.*?\]: ")
_FAILURE: Final = re.compile(
    r"(?P<connection>(?:\w+://)?\S+?)(?:/-?\w+)?: (?:(?P<broker>\S+:\d+): )?(?P<reason>.*?)"
    r"(?: \(after \d+ms in state .*)?",
    re.DOTALL,
)
"""Pattern of a connection failure. The message names the connection by its broker, or by a role such as
GroupCoordinator followed by the broker."""

_UP: Final = re.compile(r"(?P<connection>(?:\w+://)?\S+?)(?:/-?\w+)?: Broker changed state \w+ -> UP")
_CONNECTING: Final = re.compile(r"Connect to \S+ failed: ")
_MOST: Final = 1000
_SILENT: Final = frozenset({"0", "1", "2"})
"""Syslog levels too low for librdkafka to report connection failures."""


class ClientLog:
    """The logger of one Kafka client, with the interface that confluent-kafka expects.

    At WARNING, the logger reports when a broker becomes unreachable and when it is back. It reports other warnings once
    per kind. At DEBUG, the logger reports every message. All clients of a process share the state of brokers, so that
    each change is logged once.
    """

    def __init__(self) -> None:
        self.down: dict[str, str] = {}
        """The broker of each connection that has failed and is not restored yet."""
        # Treat CONFWARN as already logged. It warns of properties for another kind of client, and such properties are
        # normal here.
        self._told: set[str] = {"CONFWARN"}
        self._is_past = False
        _shared.add(self)

    @contextmanager
    def of_the_past(self) -> Generator[None]:
        """Within the block, ignore reports of failed connections, because a broker has answered since these
        failures."""
        self._is_past = True
        try:
            yield
        finally:
            self._is_past = False

    def log(self, level: int, form: str, *words: object) -> None:
        """Handle one message of the client. confluent-kafka passes a facility, the client's name and a text."""
        facility, text = str(words[0]), _THREAD.sub("", str(words[-1]), count=1)
        if facility == "FAIL" and level >= logging.ERROR:
            self._fail(text)
        elif facility == "STATE":
            self._rise(text)
        elif level >= logging.WARNING and facility != "FAIL" and facility not in self._told:
            self._told.add(facility)
            _logger.warning("the Kafka client reports: %s", excerpt(text, _MOST))
        if _logger.isEnabledFor(logging.DEBUG):
            _logger.debug(form, *(excerpt(word, _MOST) if isinstance(word, str) else word for word in words))

    def _fail(self, text: str) -> None:
        failure = _FAILURE.fullmatch(text)
        if failure is None or self._is_past:
            return
        connection = _without_protocol(failure["connection"])
        broker = failure["broker"] or connection
        if _shared.loses(self, connection, broker):
            reason = _CONNECTING.sub("", " ".join(failure["reason"].split()), count=1)
            _logger.warning(
                "broker %s cannot be reached: %s; trying again", broker, _lower_first(excerpt(reason, _MOST))
            )

    def _rise(self, text: str) -> None:
        up = _UP.fullmatch(text)
        if up is not None:
            connection = _without_protocol(up["connection"])
            broker = self.down.get(connection, connection)
            if _shared.regains(broker):
                _logger.warning("broker %s is back", broker)


class _Shared:
    """The logs of all Kafka clients in this process, which together show the brokers that are unreachable."""

    def __init__(self) -> None:
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Forget all clients after a fork, because they belong to the parent process."""
        self._lock = threading.Lock()
        self._logs: weakref.WeakSet[ClientLog] = weakref.WeakSet()

    def add(self, log: ClientLog) -> None:
        """Register a client's log."""
        with self._lock:
            self._logs.add(log)

    def loses(self, log: ClientLog, connection: str, broker: str) -> bool:
        """Record a failed connection. Return False if a client already reports ``broker`` as unreachable."""
        with self._lock:
            is_known = any(broker in other.down.values() for other in self._logs)
            log.down[connection] = broker
            return not is_known

    def regains(self, broker: str) -> bool:
        """Record that a broker answers. Return True if a client had reported it as unreachable."""
        with self._lock:
            failed = [(log, name) for log in self._logs for name, other in log.down.items() if other == broker]
            for log, name in failed:
                del log.down[name]
            return bool(failed)


_shared: Final = _Shared()


def log_to(log: ClientLog, configuration: Mapping[str, object]) -> dict[str, object]:
    """Return the configuration of a client that reports to ``log``. If ``log_level`` hides errors, leave ``debug`` as
    it is.

    librdkafka reports a successful connection only if ``debug`` includes ``broker``. With ``broker``, librdkafka logs a
    line for each step of a connection, but no lines while records arrive.
    """
    if str(configuration.get("log_level")) in _SILENT:
        return {**configuration, "logger": log}
    debug = dict.fromkeys(["broker", *filter(None, str(configuration.get("debug", "")).split(","))])
    return {**configuration, "debug": ",".join(debug), "logger": log}


def _without_protocol(name: str) -> str:
    return name.rpartition("://")[2]


def _lower_first(reason: str) -> str:
    """Return the reason with its first letter in lower case, unless it begins with an abbreviation."""
    return reason[:1].lower() + reason[1:] if reason[1:2].islower() else reason
