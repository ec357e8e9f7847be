"""Translation of a Kafka client's properties from the names of Java and Spark to those of librdkafka.

The translation includes ``sasl.jaas.config``, key stores and trust stores. PEM and PKCS12 files work; JKS files need
Java.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_args

from confluent_kafka import Consumer, KafkaException
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from tieredstore.errors import ConfigError
from tieredstore.model import Isolation

_logger: Final = logging.getLogger(__name__)

_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
_OPERATING_SYSTEM: Final = ("socket.receive.buffer.bytes", "socket.send.buffer.bytes")
"""Properties for which Java's value -1 (the operating system's default) must be translated to librdkafka's 0."""

_OF_JAVA: Final = frozenset(
    {
        "auto.include.jmx.reporter", "default.api.timeout.ms", "exclude.internal.topics", "max.poll.records",
        "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
        "socket.connection.setup.timeout.max.ms", "ssl.enabled.protocols", "ssl.keymanager.algorithm", "ssl.protocol",
        "ssl.trustmanager.algorithm",
    }
)  # fmt: skip
"""Properties of Java's clients that librdkafka does not know. They are ignored."""

_WITHOUT_EFFECT: Final = _OF_JAVA | {
    "allow.auto.create.topics", "auto.commit.interval.ms", "group.instance.id", "group.protocol",
    "group.remote.assignor", "heartbeat.interval.ms", "max.poll.interval.ms", "partition.assignment.strategy",
    "session.timeout.ms",
}  # fmt: skip
"""Properties that this translation ignores. They concern groups, polling, JVM metrics, and TLS protocols (always 1.2 or
later)."""

_REFUSED: Final = {
    "auto.offset.reset": "reads start at given offsets, and a missing offset is an error",
    "enable.auto.commit": "nothing is committed to the broker",
    "enable.auto.offset.store": "nothing is committed to the broker",
    "enable.partition.eof": "reads need the value true to find the end of the log",
    "interceptor.classes": "there is no JVM to load classes",
    "key.deserializer": "keys are bytes; decode them in the query",
    "plugin.library.paths": "readers do not load libraries",
    "value.deserializer": "values are bytes; decode them in the query",
    **dict.fromkeys(
        (
            "metric.reporters", "sasl.client.callback.handler.class", "sasl.login.callback.handler.class",
            "sasl.login.class", "security.providers", "ssl.engine.factory.class", "ssl.provider",
            "ssl.secure.random.implementation",
        ),
        "there is no JVM to load classes",
    ),
}  # fmt: skip

_ASSIGNORS: Final = {
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
}
_STRATEGY: Final = "partition.assignment.strategy"
_HOST_CHECK: Final = "ssl.endpoint.identification.algorithm"

_NOT_FROM_TEXT: Final = frozenset({"default.topic.config", "logger", "on_commit", "on_delivery"})
"""Properties that take Python objects in confluent-kafka."""

_MAX_TIMEOUT_S: Final = 3600
_DEFAULTS: Final = {
    "group.id": "tieredstore",
    "check.crcs": "true",
    # Milliseconds until the client fetches again after its queue was full. With the default, a reader that was slow for
    # a moment waits one second.
    "fetch.queue.backoff.ms": "5",
    # The read-ahead is at most this size plus one answer of the broker. With the default of 64 MiB, the client read
    # ahead beyond a range of 200 MB, and fetched a third more.
    "queued.max.messages.kbytes": "16384",
    "fetch.message.max.bytes": "4194304",
}

_FIXED: Final = {
    # Without this property, an administrative client would create a topic by asking for its metadata.
    "allow.auto.create.topics": "false",
}


def client_configuration(properties: Mapping[str, str], isolation: Isolation) -> dict[str, str]:
    """Return the configuration of librdkafka's consumer. Most values are passed on unchanged.

    Raise ConfigError for refused properties, for an ``isolation.level`` other than ``isolation``, and for missing
    ``bootstrap.servers``.
    """
    if isolation not in get_args(Isolation):
        raise ConfigError(f"isolation is {isolation!r}; it must be {' or '.join(get_args(Isolation))}")
    given = {name: value for name, value in properties.items() if name not in _WITHOUT_EFFECT}
    _check(given, isolation)
    for name in sorted(properties.keys() & _WITHOUT_EFFECT):
        _logger.debug("the client property %s has no effect here", name)
    return _with_defaults(_translate(given)) | _FIXED | {"isolation.level": isolation}


_OF_CONSUMERS: Final = ("group.id", "check.crcs", "fetch.", "queued.", "isolation.level")


def producer_configuration(properties: Mapping[str, str], isolation: Isolation) -> dict[str, str]:
    """Return the configuration like :func:`client_configuration`, without the properties of consumers."""
    given = client_configuration(properties, isolation)
    return {name: value for name, value in given.items() if not name.startswith(_OF_CONSUMERS)}


Value = TypeVar("Value")


def member_configuration(properties: Mapping[str, Value]) -> dict[str, Value | str]:
    """Return the configuration of a group member, from properties of librdkafka and of Java's clients.

    The values may be texts, numbers and functions, as in confluent-kafka. Raise ConfigError for properties that need a
    JVM.
    """
    given: dict[str, Any] = {}
    for name, value in properties.items():
        if _REFUSED.get(name, "").startswith("there is no JVM"):
            raise ConfigError(f"the client property {name} cannot be set: {_REFUSED[name]}")
        if name in _OF_JAVA:
            _logger.debug("the client property %s has no effect here", name)
        else:
            given[name] = value
    renamed = _translate(given)
    if _STRATEGY in renamed:
        names = str(renamed[_STRATEGY]).split(",")
        renamed[_STRATEGY] = ",".join(_ASSIGNORS.get(name.strip(), name.strip()) for name in names)
    if renamed.get("auto.offset.reset") == "none":
        renamed["auto.offset.reset"] = "error"
    return renamed


def _translate(given: dict[str, Any]) -> dict[str, Any]:
    """Translate key stores, trust stores, login and property names from Java's form to librdkafka's."""
    settings = translate_stores(given) | _login(given)
    renamed = {_RENAMED.get(name, name): value for name, value in given.items()}
    for name in _OPERATING_SYSTEM:
        if str(renamed.get(name)) == "-1":
            renamed[name] = "0"
    if _HOST_CHECK in renamed:
        # In Java an empty value disables the check of the host name, so translate it to "none".
        renamed[_HOST_CHECK] = renamed[_HOST_CHECK].lower() or "none"
    return renamed | settings


def is_never_text(name: str) -> bool:
    """Return True if this property takes a Python object, which no properties file can hold."""
    return name in _NOT_FROM_TEXT or name.endswith("_cb")


def shared_properties(properties: Mapping[str, object]) -> dict[str, str]:
    """Return those properties of a group member that the caller's other clients need too, such as servers and
    credentials."""
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in properties.items()
        if isinstance(value, str | int | float) and name not in _REFUSED and not is_never_text(name)
    }


def check_timeout(timeout_s: float) -> None:
    """Raise ConfigError unless the timeout is positive and at most an hour."""
    if not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise ConfigError(f"timeout_s is {timeout_s}; it must be over 0 and at most {_MAX_TIMEOUT_S}")


def _check(given: Mapping[str, str], isolation: Isolation) -> None:
    for name in given:
        if name in _REFUSED:
            raise ConfigError(f"the client property {name} cannot be set: {_REFUSED[name]}")
        if is_never_text(name):
            raise ConfigError(f"the client property {name} is not known")
    if not given.get("bootstrap.servers"):
        raise ConfigError("bootstrap.servers is not set: name the brokers, as host:port,host:port")
    if given.get("isolation.level", isolation) != isolation:
        raise ConfigError(
            f"isolation.level is {given['isolation.level']}, but the isolation of this read is {isolation}"
        )


def _login(given: dict[str, str]) -> dict[str, str]:
    jaas = given.pop(_JAAS, None)
    if jaas is None:
        return {}
    return login_of_jaas(jaas, given.get("sasl.mechanism", given.get("sasl.mechanisms", "GSSAPI")))


def _with_defaults(given: Mapping[str, str]) -> dict[str, str]:
    same = {"max.partition.fetch.bytes": "fetch.message.max.bytes"}
    named = {same.get(name, name) for name in given}
    return {name: value for name, value in _DEFAULTS.items() if name not in named} | dict(given)


_JAAS: Final = "sasl.jaas.config"
_JAAS_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([=;])|([^\s=;"']+))""")
_JAAS_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_JAAS_LENGTH: Final = 64 * 1024
"""The longest accepted value, in characters."""


class _Word(NamedTuple):
    text: str
    is_mark: bool = False
    """True for an unquoted ``=`` or ``;``."""


_END: Final = _Word(";", is_mark=True)

_PASSWORD: Final = {"username": "sasl.username", "password": "sasl.password"}
_OAUTH: Final = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_MODULES: Final = {
    "PlainLoginModule": (("PLAIN",), _PASSWORD),
    "ScramLoginModule": (("SCRAM-SHA-256", "SCRAM-SHA-512"), _PASSWORD),
    "OAuthBearerLoginModule": (("OAUTHBEARER",), _OAUTH),
}


def login_of_jaas(text: str, mechanism: str) -> dict[str, str]:
    """Translate a JAAS login module. Errors show only names from ``text``, never values.

    The login modules of PLAIN, SCRAM and OAUTHBEARER are supported, in any Java package.
    """
    module, options = _parse_jaas(text)
    if module not in _MODULES:
        raise ConfigError(
            f"{_JAAS} names the login module {module}; only those of PLAIN, SCRAM and OAUTHBEARER are supported: "
            f"{', '.join(_MODULES)}"
        )
    mechanisms, names = _MODULES[module]
    if mechanism not in mechanisms:
        raise ConfigError(f"{_JAAS} names {module}, for which sasl.mechanism must be {' or '.join(mechanisms)}")
    unknown = sorted(options.keys() - names.keys())
    if unknown:
        raise ConfigError(f"{_JAAS} has the unsupported option {unknown[0]}; {module} takes {', '.join(names)}")
    return _login_properties(module, options, names)


def _login_properties(module: str, options: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    missing = [name for name in names if name not in options and name != "scope"]
    # OAUTHBEARER does not need a user name and a password in the login module, because the client id may be in other
    # properties.
    if missing and names is _PASSWORD:
        raise ConfigError(f"{_JAAS} has no {missing[0]}: {module} needs {' and '.join(names)}")
    login = {names[name]: value for name, value in options.items()}
    return login | ({"sasl.oauthbearer.method": "oidc"} if names is _OAUTH else {})


def _parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """Return the module's name without its package, and its options."""
    words = _split_jaas(text)
    if len(words) < 3 or words[-1] != _END or _END in words[:-1] or words[1].text not in _JAAS_FLAGS:
        raise ConfigError(f'{_JAAS} is not of the form "<login module> required <name>=<value> ...;" for one module')
    module, flag = words[0].text, words[1].text
    options: dict[str, str] = {}
    rest = words[2:-1]
    for at in range(0, len(rest), 3):
        option = rest[at : at + 3]
        if [word.is_mark for word in option] != [False, True, False]:
            raise ConfigError(f'{_JAAS} has something other than <name>="<value>" after {module} {flag}')
        name, _, value = (word.text for word in option)
        if name in options:
            raise ConfigError(f"{_JAAS} has the option {name} twice")
        options[name] = value
    # Drop the module's package, because repackaged clients have the same modules under names such as
    # kafkashaded.org.apache.
    return module.rpartition(".")[2], options


def _split_jaas(text: str) -> list[_Word]:
    words: list[_Word] = []
    at, text = 0, text.strip()
    while at < len(text):
        token = _JAAS_TOKEN.match(text, at) if len(text) <= _JAAS_LENGTH else None
        if token is None:
            raise ConfigError(f"{_JAAS} has an unclosed quote, or more than {_JAAS_LENGTH} characters")
        quoted = token[1] if token[1] is not None else token[2]
        if quoted is not None:
            words.append(_Word(re.sub(r"\\(.)", r"\1", quoted)))
        else:
            words.append(_Word(token[3] or token[4], is_mark=token[3] is not None))
        at = token.end()
    return words


_JKS_MAGICS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PEM_MARK: Final = b"-----BEGIN "
_MAX_STORE_BYTES: Final = 16 * 1024 * 1024
"""The largest accepted key store."""

_IN_WORDS: Final = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
}
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.crl.location", "ssl.key.location")
_TYPES: Final = ("JKS", "PKCS12", "PEM")
_PARTS: Final = ("location", "type", "password")
_OF_STORES: Final = (
    *_IN_WORDS,
    *(f"{store}.{part}" for store in ("ssl.truststore", "ssl.keystore") for part in _PARTS),
)
"""Properties that :func:`translate_stores` handles."""


def translate_stores(given: MutableMapping[str, str]) -> dict[str, str]:
    """Remove Java's properties of key and trust stores from ``given``; return the corresponding properties of
    librdkafka.

    The type of a key store or trust store is detected from the file's content. Raise ConfigError if a file cannot be
    read or used.
    """
    for name in _FILES:
        # Check that the files exist, because librdkafka's error does not name the missing file. ``ssl.ca.location`` may
        # also be a folder or the word "probe".
        if name in given and not Path(given[name]).exists() and given[name] != "probe":
            raise ConfigError(f"{name} cannot be read: there is no {given[name]}")
    settings = {ours: given.pop(java) for java, ours in _IN_WORDS.items() if java in given}
    trust = _take_store(given, "ssl.truststore")
    # Take Java's ``ssl.keystore.*`` out of ``given``, because librdkafka would read properties of these names (except
    # ``ssl.keystore.type``) as its own.
    key = _take_store(given, "ssl.keystore")
    if "location" in trust:
        kind, content = _read_store("ssl.truststore", trust)
        settings |= {"ssl.ca.location": trust["location"]} if kind == "PEM" else _pkcs12_trust(trust, content)
    if "location" in key:
        kind, _ = _read_store("ssl.keystore", key)
        if kind == "PEM":
            # Both properties name the same file, because Java expects key and certificate chain in one file.
            settings |= {"ssl.key.location": key["location"], "ssl.certificate.location": key["location"]}
        else:
            settings |= {f"ssl.keystore.{part}": key[part] for part in ("location", "password") if part in key}
    return settings


def _take_store(given: MutableMapping[str, str], store: str) -> dict[str, str]:
    return {part: given.pop(f"{store}.{part}") for part in _PARTS if f"{store}.{part}" in given}


def _read_store(store: str, given: Mapping[str, str]) -> tuple[str, bytes]:
    """Return the type of a store's file (``PEM`` or ``PKCS12``), and its content."""
    written = given.get("type", "").upper()
    if written and written not in _TYPES:
        raise ConfigError(f"{store}.type is {given['type']}; only PEM and PKCS12 are supported")
    content = _content_of(f"{store}.location", given["location"])
    if content.startswith(_JKS_MAGICS):
        raise ConfigError(
            f"{store}.location names a JKS file, which only Java can read: convert it to PKCS12 with "
            f"keytool -importkeystore -deststoretype PKCS12, or use PEM files, and set {store}.type"
        )
    # Let the content decide the type, because if no type is set, Java assumes JKS, but also accepts PKCS12 files.
    kind = "PEM" if _PEM_MARK in content else "PKCS12"
    if written in {"PEM", "PKCS12"} and written != kind:
        raise ConfigError(f"{store}.type is {written}, but the file of {store}.location is {kind}")
    return kind, content


def _content_of(name: str, location: str) -> bytes:
    try:
        with Path(location).open("rb") as file:
            content = file.read(_MAX_STORE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}: {location}") from error
    if len(content) > _MAX_STORE_BYTES:
        raise ConfigError(f"{name} is larger than {_MAX_STORE_BYTES} bytes, so it is no key store: {location}")
    return content


def _pkcs12_trust(given: Mapping[str, str], content: bytes) -> dict[str, str]:
    """Convert the certificates of a PKCS12 file to PEM, the only form that librdkafka accepts for trusted
    certificates."""
    password = given.get("password")
    try:
        store = load_pkcs12(content, None if password is None else password.encode())
    except ValueError as error:
        raise ConfigError(
            f"ssl.truststore.location is not a PEM or PKCS12 file, or ssl.truststore.password is wrong: "
            f"{given['location']}"
        ) from error
    certificates = [entry.certificate for entry in (store.cert, *store.additional_certs) if entry is not None]
    if not certificates:
        raise ConfigError(f"ssl.truststore.location has no certificate: {given['location']}")
    return {"ssl.ca.pem": "".join(each.public_bytes(Encoding.PEM).decode("ascii") for each in certificates)}


_TRANSLATED: Final = frozenset({*_WITHOUT_EFFECT, *_REFUSED, _JAAS, *_OF_STORES})
"""Properties that librdkafka never gets, because they are ignored, refused, or translated."""

_NO_PROPERTY: Final = "tieredstore.no.such.property"
_UNKNOWN: Final = "No such configuration property"


def is_known(name: str) -> bool:
    """Return True if librdkafka or Java's clients have a property of this name."""
    if name in _TRANSLATED:
        return True
    if is_never_text(name):
        return False
    try:
        # The last name is unknown on purpose, so that no client starts. librdkafka checks the names in order, and fails
        # at the last name at the latest.
        Consumer({"group.id": "names", _RENAMED.get(name, name): "", _NO_PROPERTY: ""})
    except KafkaException as error:
        words: str = error.args[0].str()
        return not words.startswith(_UNKNOWN) or _NO_PROPERTY in words
    except (TypeError, ValueError):
        return True
    raise AssertionError(f"librdkafka accepts {_NO_PROPERTY}")
