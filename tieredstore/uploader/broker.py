"""Facts about the uploader's broker, from the uploader's settings or, if these lack a fact, from the broker's
properties file."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tieredstore.config.properties import read_properties
from tieredstore.errors import ConfigError
from tieredstore.kafka.checkpoints import parse_broker_id
from tieredstore.uploader.settings import UploaderSettings

AUTO: Final = "auto"
STATIC: Final = "static"
ZOOKEEPER: Final = "zookeeper"

_LISTENER: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)://(\[[^\]]*\]|[^:]*):(\d+)\s*")
_EVERY_ADDRESS: Final = frozenset({"", "0.0.0.0", "[::]", "::"})  # noqa: S104  addresses in listeners of the broker
_SERVERS: Final = "bootstrap.servers"
ENABLED: Final = "zookeeper.ssl.client.enable"
_TLS: Final = "zookeeper.ssl."
_PEM: Final = "PEM"
_NOT_TAKEN_OVER: Final = ("cipher.suites", "crl.enable", "enabled.protocols", "ocsp.enable", "protocol")
_OTHERWISE: Final = (
    "set uploader.zookeeper.connect to an address without TLS, or uploader.leadership=auto, which asks the brokers"
)


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """The broker's log directories and id (-1 if unknown), and the settings of a Kafka client for it.

    ``client`` is empty if there is no broker to ask. ``client`` may contain secrets, so ``repr`` omits it.
    ``zookeeper`` is the connection string of the cluster's ZooKeeper, or empty. ``zookeeper_tls`` has the options of a
    kazoo client for TLS, perhaps with a password; it is empty for a connection without TLS.
    """

    log_dirs: tuple[Path, ...]
    broker_id: int
    client: Mapping[str, str] = field(repr=False)
    zookeeper: str = ""
    zookeeper_tls: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)


def broker_environment(settings: UploaderSettings) -> BrokerEnvironment:
    """Read the environment from files, without any request. Raise ConfigError for a missing or invalid setting."""
    path = settings.server_properties
    broker = {} if path is None else read_properties(path)
    log_dirs = _log_dirs(settings, broker)
    client = {name: secret.get_secret_value() for name, secret in settings.kafka}
    protocol = client.get("security.protocol", "PLAINTEXT").upper()  # librdkafka also takes lower case
    if _SERVERS not in client and (servers := _own_listener(broker, protocol)):
        client[_SERVERS] = servers
    if _SERVERS not in client:
        client = {}
    if settings.leadership == AUTO and not client:
        raise ConfigError(
            "uploader.leadership is auto, but there is no broker to ask: set "
            "uploader.kafka.bootstrap.servers, or uploader.server.properties to a file with a listener of "
            f"{protocol}; or set uploader.leadership=static"
        )
    zookeeper = settings.zookeeper_connect or broker.get("zookeeper.connect", "").strip()
    if settings.leadership == ZOOKEEPER and not zookeeper:
        raise ConfigError(
            "uploader.leadership is zookeeper, but there is no ZooKeeper to ask: set "
            "uploader.zookeeper.connect, or uploader.server.properties to a file with zookeeper.connect"
        )
    by_zookeeper = settings.leadership == ZOOKEEPER and settings.zookeeper_connect is None
    tls: Mapping[str, object] = tls_of(broker) if by_zookeeper else {}
    broker_id = _broker_id(settings, broker, log_dirs)
    if settings.leadership in (AUTO, ZOOKEEPER) and broker_id < 0:
        raise ConfigError(
            "the broker's id is unknown: set uploader.broker.id, or uploader.server.properties to a file with node.id"
        )
    return BrokerEnvironment(log_dirs, broker_id, client, zookeeper, tls)


def _log_dirs(settings: UploaderSettings, broker: Mapping[str, str]) -> tuple[Path, ...]:
    of_broker = (broker.get("log.dirs") or broker.get("log.dir") or "").split(",")
    paths = settings.log_dirs or tuple(Path(text.strip()) for text in of_broker if text.strip())
    if not paths:
        raise ConfigError(
            "no log directory is known: set uploader.log.dirs, or uploader.server.properties to a file with log.dirs"
        )
    folders = tuple(dict.fromkeys(path.absolute() for path in paths))
    known: dict[str, Path] = {}
    for folder in folders:
        first = known.setdefault(os.path.realpath(folder), folder)
        if first != folder:
            raise ConfigError(
                f"log directories {first} and {folder} are the same folder: name it only once in uploader.log.dirs"
            )
    return folders


def check_log_dir(folder: Path) -> None:
    """Raise ConfigError if a log directory is absent, or cannot be read by this user."""
    try:
        with os.scandir(folder):
            is_readable = os.access(folder, os.X_OK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"log directory {folder} does not exist or is not a directory") from error
    except PermissionError:
        is_readable = False
    except OSError as error:
        way = "repair its disk, or remove it from uploader.log.dirs to ship from the others"
        raise ConfigError(f"log directory {folder} cannot be read: {error.strerror}; {way}") from error
    if not is_readable:
        raise ConfigError(f"log directory {folder} cannot be read: run the uploader as the broker's user")


def has_failed(folder: Path) -> bool:
    """Return True if the folder's disk has failed. A broker then goes on with its other log directories."""
    try:
        with os.scandir(folder):
            return False
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False  # not the disk's fault
    except OSError:
        return True


def _broker_id(settings: UploaderSettings, broker: Mapping[str, str], log_dirs: tuple[Path, ...]) -> int:
    if settings.broker_id is not None:
        return settings.broker_id
    text = broker.get("node.id", broker.get("broker.id", "")).strip()
    if text.isascii() and text.isdecimal():
        return int(text)
    for folder in log_dirs:
        with contextlib.suppress(OSError):
            broker_id = parse_broker_id((folder / "meta.properties").read_bytes())
            if broker_id is not None:
                return broker_id
    return -1


def _own_listener(broker: Mapping[str, str], protocol: str) -> str | None:
    """Return host and port of the broker's first listener with this security protocol, except controller listeners."""
    protocols = dict(
        entry.strip().split(":", 1)
        for entry in broker.get("listener.security.protocol.map", "").split(",")
        if ":" in entry
    )
    controllers = {name.strip() for name in broker.get("controller.listener.names", "").split(",")}
    for property_name in ("advertised.listeners", "listeners"):
        for text in broker.get(property_name, "").split(","):
            match = _LISTENER.fullmatch(text)
            if match and match[1] not in controllers and protocols.get(match[1], match[1]) == protocol:
                host = "localhost" if match[2] in _EVERY_ADDRESS else match[2]
                return f"{host}:{match[3]}"
    return None


def tls_of(broker: Mapping[str, str]) -> Mapping[str, object]:
    """Return the TLS settings in the broker's file as options of a kazoo client; empty if the broker connects to
    ZooKeeper without TLS. Raise ConfigError for an unsupported setting."""
    if broker.get(ENABLED, "false").strip().lower() != "true":
        return {}
    for name in _NOT_TAKEN_OVER:
        if broker.get(_TLS + name, "").strip().lower() not in ("", "false"):
            raise ConfigError(
                f"uploader.leadership=zookeeper does not support the broker's {_TLS}{name}: remove it from the file "
                f"that the uploader reads, or {_OTHERWISE}"
            )
    # As in Kafka, an empty algorithm turns off the check of host names.
    algorithm = broker.get(f"{_TLS}endpoint.identification.algorithm", "HTTPS").strip()
    identity = _pem(broker, "keystore")
    return {
        "use_ssl": True,
        "certfile": identity,
        "keyfile": identity,
        "keyfile_password": broker.get(f"{_TLS}keystore.password"),
        "ca": _pem(broker, "truststore"),
        "check_hostname": algorithm.upper() == "HTTPS",
    }


def _pem(broker: Mapping[str, str], kind: str) -> str | None:
    location = broker.get(f"{_TLS}{kind}.location", "").strip()
    if not location:
        return None
    path = Path(location)
    # As in ZooKeeper, the file name's extension is the default type.
    known = broker.get(f"{_TLS}{kind}.type", "").strip() or path.suffix.removeprefix(".")
    if known.upper() != _PEM:
        raise ConfigError(
            f"the broker's {_TLS}{kind}.location {path} is not a PEM file: convert it to PEM with keytool and openssl, "
            f"set the new path and {_TLS}{kind}.type=PEM in the file that the uploader reads, or {_OTHERWISE}"
        )
    if not path.is_file():
        raise ConfigError(f"the broker's {_TLS}{kind}.location {path} does not exist or is not a file")
    return location
