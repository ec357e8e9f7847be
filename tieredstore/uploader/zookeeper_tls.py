"""How the broker reaches ZooKeeper by TLS, by the names of its own file, and the same for our client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tieredstore.errors import ConfigError

ENABLED: Final = "zookeeper.ssl.client.enable"
_PREFIX: Final = "zookeeper.ssl."
_PEM: Final = "PEM"
_NOT_TAKEN_OVER: Final = ("cipher.suites", "crl.enable", "enabled.protocols", "ocsp.enable", "protocol")
_OTHERWISE: Final = (
    "set uploader.zookeeper.connect to an address without TLS, or uploader.leadership=auto, which asks the brokers"
)


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """PEM files: ``identity`` has the client's key and certificate, ``authorities`` those that sign the servers'.

    Either may be None: then nobody asks for the client's, or the system's authorities are trusted.
    """

    identity: Path | None = None
    authorities: Path | None = None
    checks_host: bool = True
    password: str | None = field(default=None, repr=False)

    def options(self) -> dict[str, object]:
        """Those of a kazoo client."""
        identity = None if self.identity is None else str(self.identity)
        return {
            "use_ssl": True,
            "certfile": identity,
            "keyfile": identity,
            "keyfile_password": self.password,
            "ca": None if self.authorities is None else str(self.authorities),
            "check_hostname": self.checks_host,
        }


def tls_of(broker: Mapping[str, str]) -> ZooKeeperTls | None:
    """What the broker's file says; None if it goes without TLS. ConfigError for what cannot be done as it does."""
    if broker.get(ENABLED, "false").strip().lower() != "true":
        return None
    for name in _NOT_TAKEN_OVER:
        if broker.get(_PREFIX + name, "").strip().lower() not in ("", "false"):
            raise ConfigError(
                f"the broker's {_PREFIX}{name} is not honoured by uploader.leadership=zookeeper: take it out of the "
                f"file that the uploader reads, or {_OTHERWISE}"
            )
    # An empty one turns the check off, as in Kafka.
    algorithm = broker.get(f"{_PREFIX}endpoint.identification.algorithm", "HTTPS").strip()
    return ZooKeeperTls(
        _pem(broker, "keystore"),
        _pem(broker, "truststore"),
        algorithm.upper() == "HTTPS",
        broker.get(f"{_PREFIX}keystore.password"),
    )


def _pem(broker: Mapping[str, str], kind: str) -> Path | None:
    location = broker.get(f"{_PREFIX}{kind}.location", "").strip()
    if not location:
        return None
    path = Path(location)
    # As ZooKeeper does: a type that is not given is that of the file's name.
    known = broker.get(f"{_PREFIX}{kind}.type", "").strip() or path.suffix.removeprefix(".")
    if known.upper() != _PEM:
        raise ConfigError(
            f"the broker's {_PREFIX}{kind}.location {path} is no PEM file: write one out of it (keytool and openssl "
            f"do), name it in the file that the uploader reads, with {_PREFIX}{kind}.type=PEM, or {_OTHERWISE}"
        )
    if not path.is_file():
        raise ConfigError(f"the broker's {_PREFIX}{kind}.location {path} is not there, or cannot be read")
    return path
