"""Properties of a Kafka client, under the names that Java clients and Spark users know, for librdkafka."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, get_args

from tieredstore.errors import ConfigError
from tieredstore.live.jaas import login_of_jaas
from tieredstore.live.key_stores import translate_stores
from tieredstore.model import Isolation

_logger: Final = logging.getLogger(__name__)

_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
_OPERATING_SYSTEM: Final = ("socket.receive.buffer.bytes", "socket.send.buffer.bytes")
"""Where Java says -1 for what the operating system chooses, and librdkafka says 0."""

_WITHOUT_EFFECT: Final = frozenset(
    {
        "allow.auto.create.topics", "auto.commit.interval.ms", "auto.include.jmx.reporter", "default.api.timeout.ms",
        "exclude.internal.topics",
        "group.instance.id", "group.protocol", "group.remote.assignor", "heartbeat.interval.ms", "max.poll.interval.ms",
        "max.poll.records", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
        "partition.assignment.strategy", "session.timeout.ms", "socket.connection.setup.timeout.max.ms",
        "ssl.enabled.protocols", "ssl.keymanager.algorithm", "ssl.protocol", "ssl.trustmanager.algorithm",
    }
)  # fmt: skip
"""Groups, polling, metrics of the JVM; and the protocol of TLS, which is 1.2 or later here."""

_REFUSED: Final = {
    "auto.offset.reset": "where a read starts is said by offsets, and one that is gone is an error",
    "enable.auto.commit": "nothing is committed to the broker",
    "enable.auto.offset.store": "nothing is committed to the broker",
    "enable.partition.eof": "a read ends by it",
    "interceptor.classes": "there is no JVM here that could load classes",
    "key.deserializer": "keys are bytes; decode them in the query",
    "plugin.library.paths": "libraries are not loaded into a reader",
    "value.deserializer": "values are bytes; decode them in the query",
    **dict.fromkeys(
        (
            "metric.reporters", "sasl.client.callback.handler.class", "sasl.login.callback.handler.class",
            "sasl.login.class", "security.providers", "ssl.engine.factory.class", "ssl.provider",
            "ssl.secure.random.implementation",
        ),
        "there is no JVM here that could load classes",
    ),
}  # fmt: skip

_OF_JAVA: Final = frozenset(
    {
        "auto.include.jmx.reporter", "default.api.timeout.ms", "exclude.internal.topics", "max.poll.records",
        "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
        "socket.connection.setup.timeout.max.ms", "ssl.enabled.protocols", "ssl.keymanager.algorithm", "ssl.protocol",
        "ssl.trustmanager.algorithm",
    }
)  # fmt: skip
"""What of these librdkafka has no name for."""

_ASSIGNORS: Final = {
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
}
_STRATEGY: Final = "partition.assignment.strategy"

_NOT_FROM_TEXT: Final = frozenset({"default.topic.config", "logger", "on_commit", "on_delivery"})
"""What the Python binding takes, and takes objects for."""

_MAX_TIMEOUT_S: Final = 3600
_DEFAULTS: Final = {
    "group.id": "tieredstore",
    "check.crcs": "true",
    # One second by default, which a reader that was slow for a moment would wait.
    "fetch.queue.backoff.ms": "5",
    # What is read ahead, at most (one answer of the broker more). The library's default is 64 MiB; what lies behind the
    # end of a bounded read is fetched for nothing, with that a third of a read of 200 MB.
    "queued.max.messages.kbytes": "16384",
    "fetch.message.max.bytes": "4194304",
}

_FIXED: Final = {
    # Nothing is written to the cluster, and an administrative client would by asking for a topic's metadata.
    "allow.auto.create.topics": "false",
}


def client_configuration(properties: Mapping[str, str], isolation: Isolation) -> dict[str, str]:
    """What librdkafka's consumer is to be given. Names are looked at, values only where they are translated.

    ConfigError for what is refused, for what contradicts ``isolation``, and without ``bootstrap.servers``.
    """
    if isolation not in get_args(Isolation):
        raise ConfigError(f"isolation is {isolation!r}; it must be {' or '.join(get_args(Isolation))}")
    given = {name: value for name, value in properties.items() if name not in _WITHOUT_EFFECT}
    _check(given, isolation)
    for name in sorted(properties.keys() & _WITHOUT_EFFECT):
        _logger.debug("the client property %s has no effect here", name)
    settings = translate_stores(given) | _login(given)
    renamed = {_RENAMED.get(name, name): value for name, value in given.items()}
    for name in _OPERATING_SYSTEM:
        if renamed.get(name) == "-1":
            renamed[name] = "0"
    if "ssl.endpoint.identification.algorithm" in renamed:
        renamed["ssl.endpoint.identification.algorithm"] = _host_check(renamed["ssl.endpoint.identification.algorithm"])
    return _with_defaults(renamed | settings) | _FIXED | {"isolation.level": isolation}


def member_configuration(properties: Mapping[str, Any]) -> dict[str, Any]:
    """What librdkafka's consumer is to be given that is a member of a group: its own properties, and Java's translated.

    Values may be numbers and functions too, as confluent-kafka takes them. ConfigError for what needs a JVM.
    """
    given: dict[str, Any] = {}
    for name, value in properties.items():
        if _REFUSED.get(name, "").startswith("there is no JVM"):
            raise ConfigError(f"the client property {name} cannot be set: {_REFUSED[name]}")
        if name in _OF_JAVA:
            _logger.debug("the client property %s has no effect here", name)
        else:
            given[name] = value
    settings = translate_stores(given) | _login(given)
    renamed = {_RENAMED.get(name, name): value for name, value in given.items()}
    for name in _OPERATING_SYSTEM:
        if str(renamed.get(name)) == "-1":
            renamed[name] = 0
    if "ssl.endpoint.identification.algorithm" in renamed:
        renamed["ssl.endpoint.identification.algorithm"] = _host_check(renamed["ssl.endpoint.identification.algorithm"])
    if _STRATEGY in renamed:
        names = str(renamed[_STRATEGY]).split(",")
        renamed[_STRATEGY] = ",".join(_ASSIGNORS.get(name.strip(), name.strip()) for name in names)
    if renamed.get("auto.offset.reset") == "none":
        renamed["auto.offset.reset"] = "error"
    return renamed | settings


def is_translated(name: str) -> bool:
    """Whether librdkafka is never given this name: it has no effect here, is refused, or is Java's for a login."""
    return name in _WITHOUT_EFFECT or name in _OF_JAVA or name in _REFUSED or name == "sasl.jaas.config"


def is_never_text(name: str) -> bool:
    """Whether the Python binding takes an object under this name, which no file of properties has."""
    return name in _NOT_FROM_TEXT or name.endswith("_cb")


def renamed(name: str) -> str:
    """What librdkafka calls a property of Java's."""
    return _RENAMED.get(name, name)


def shared_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """Those of a member's properties that its other clients need too: how to connect, and who asks."""
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in properties.items()
        if isinstance(value, str | int | float)
        and name not in _REFUSED
        and name not in _NOT_FROM_TEXT
        and not name.endswith("_cb")
    }


def check_timeout(timeout_s: float) -> None:
    """ConfigError for what is no time to wait."""
    if not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise ConfigError(f"timeout_s is {timeout_s}; it must be over 0 and at most {_MAX_TIMEOUT_S}")


def _check(given: Mapping[str, str], isolation: Isolation) -> None:
    for name in given:
        if name in _REFUSED:
            raise ConfigError(f"the client property {name} cannot be set: {_REFUSED[name]}")
        if is_never_text(name):
            raise ConfigError(f"the client property {name} is not known")
    if not given.get("bootstrap.servers"):
        raise ConfigError("bootstrap.servers is not set: it names the brokers, as host:port,host:port")
    if given.get("isolation.level", isolation) != isolation:
        raise ConfigError(f"isolation.level is {given['isolation.level']}, and the records are to be read {isolation}")


def _login(given: dict[str, str]) -> dict[str, str]:
    jaas = given.pop("sasl.jaas.config", None)
    if jaas is None:
        return {}
    return login_of_jaas(jaas, given.get("sasl.mechanism", given.get("sasl.mechanisms", "GSSAPI")))


def _host_check(algorithm: str) -> str:
    """Java has no check of the host name where this is empty."""
    return algorithm.lower() or "none"


def _with_defaults(given: Mapping[str, str]) -> dict[str, str]:
    same = {"max.partition.fetch.bytes": "fetch.message.max.bytes"}
    named = {same.get(name, name) for name in given}
    return {name: value for name, value in _DEFAULTS.items() if name not in named} | dict(given)
