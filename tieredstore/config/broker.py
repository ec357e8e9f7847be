"""Settings of brokers and of those who speak to them: ``pubsub.broker.*``, ``pubsub.bootstrap`` and beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, model_validator

from tieredstore.config.fields import SettingsGroup, broken_rule
from tieredstore.config.values import BOOLEAN, NAME, PATH, choice, host_and_port, integer, long, string, words

MOST_BROKER_PORT: Final = 32767
"""MemQ's packets have a port in signed 16 bits."""

_COORDINATOR: Final = "pubsub.broker.coordinator"
_KEY: Final = "pubsub.broker.tls.key"
_CLIENT_KEY: Final = "pubsub.tls.key"


def _address(text: str) -> tuple[str, int]:
    return host_and_port(text, MOST_BROKER_PORT)


class BrokerSettings(SettingsGroup):
    """How ``tieredstore pubsub broker`` listens, what it holds, and who governs."""

    listen: Annotated[tuple[str, int], string("host:port, the port up to 32767", _address)] = Field(
        default=("0.0.0.0", 9092),  # noqa: S104  a broker is there for others
        alias="pubsub.broker.listen",
        description="Where a broker listens for MemQ's packets.",
    )
    advertised: Annotated[tuple[str, int] | None, string("host:port, the port up to 32767", _address)] = Field(
        default=None,
        alias="pubsub.broker.advertised",
        description="What clients are told of where it listens; unset, this machine's address and the port.",
    )
    rack: Annotated[str, string()] = Field(
        default="", alias="pubsub.broker.rack", description="The zone that the broker is in (MemQ's locality)."
    )
    pages: Annotated[tuple[str, int] | None, string("host:port", host_and_port)] = Field(
        default=None,
        alias="pubsub.broker.metrics.listen",
        description="Where `/metrics`, `/healthz` and `/readyz` are served.",
    )
    buffer_bytes: Annotated[int, integer(16777216)] = Field(
        default=268435456,
        alias="pubsub.broker.buffer.bytes",
        description="Bytes of Messages that a broker holds until they are stored; then it stops reading.",
    )
    connections: Annotated[int, integer(1, 1000000)] = Field(
        default=10000, alias="pubsub.broker.max.connections", description="Connections at once; more are closed."
    )
    serve_reads: Annotated[bool, BOOLEAN] = Field(
        default=False, alias="pubsub.broker.serve.reads", description="Answer reads of a topic's own objects."
    )
    batch_by: Annotated[str, choice("any", "producer")] = Field(
        default="any",
        alias="pubsub.batch.by",
        description="What a batch of a broker holds: Messages of `any` producers; or, with `producer`, those of some "
        "producers whose Messages all go to the same read partition, which effectively-once needs with several "
        "brokers.",
    )
    coordinator: Annotated[str, choice("none", "store", "zookeeper")] = Field(
        default="store",
        alias=_COORDINATOR,
        description="Who says which broker has which topics: a governor by leases in the `store`, or by MemQ's nodes "
        "in `zookeeper`; or `none`: this one has all of them.",
    )
    zookeeper: Annotated[str | None, NAME] = Field(
        default=None,
        alias="pubsub.broker.zookeeper.connect",
        description="ZooKeeper's servers, `host:port,host:port/path`: those of MemQ's brokers, if there are any.",
    )
    zookeeper_session_ms: Annotated[int, integer(1000, 600000)] = Field(
        default=8000,
        alias="pubsub.broker.zookeeper.session.ms",
        description="A broker that ZooKeeper did not hear of for so long is gone.",
    )
    assignment: Annotated[str, NAME] = Field(
        default="free-capacity",
        alias="pubsub.broker.assignment",
        description="How topics are assigned: `free-capacity`, or a Python class `module.Class`, a subclass of "
        "`tieredstore.pubsub.governor.assigning.AssignmentStrategy`.",
    )
    capacity_mb: Annotated[int, integer(1, 1000000)] = Field(
        default=200, alias="pubsub.broker.capacity.mb", description="MB a second that a broker takes in."
    )
    drain_ms: Annotated[int, long(0)] = Field(
        default=60000,
        alias="pubsub.broker.drain.ms",
        description="For so long a broker that is told to stop may hand its topics over, and store what it holds.",
    )
    authorizer: Annotated[str, NAME] = Field(
        default="none",
        alias="pubsub.broker.authorizer",
        description="Who may read and write: `none` lets all, or a Python class `module.Class`, a subclass of "
        "`tieredstore.pubsub.broker.authorization.Authorizer`.",
    )
    certificate: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="pubsub.broker.tls.certificate",
        description="The broker's certificate and its chain (PEM); with it clients must speak TLS.",
    )
    key: Annotated[Path | None, PATH] = Field(
        default=None, alias=_KEY, description="The certificate's private key (PEM), without a password."
    )
    client_ca: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="pubsub.broker.tls.client.ca",
        description="Certificates of who signs those of clients (PEM); with it clients must have one.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> BrokerSettings:
        if (self.certificate is None) != (self.key is None):
            raise broken_rule(_KEY, "and pubsub.broker.tls.certificate belong together: set both, or none")
        if self.client_ca is not None and self.certificate is None:
            raise broken_rule("pubsub.broker.tls.client.ca", "needs pubsub.broker.tls.certificate")
        if self.coordinator == "zookeeper" and self.zookeeper is None:
            raise broken_rule(_COORDINATOR, "zookeeper needs pubsub.broker.zookeeper.connect")
        return self


def _bootstrap(text: str) -> None:
    host_and_port(text)


class BrokerClientSettings(SettingsGroup):
    """How a producer speaks to brokers."""

    bootstrap: Annotated[tuple[str, ...], words("host:port, separated by commas", _bootstrap)] = Field(
        default=(), alias="pubsub.bootstrap", description="Brokers to ask first; with it producers write to brokers."
    )
    rack: Annotated[str, string()] = Field(
        default="", alias="pubsub.rack", description="The zone of a producer: brokers of the same one come first."
    )
    linger_ms: Annotated[int, integer(0, 60000)] = Field(
        default=10, alias="pubsub.linger.ms", description="A Message goes to a broker when its first record is so old."
    )
    request_timeout_ms: Annotated[int, integer(100)] = Field(
        default=15000,
        alias="pubsub.request.timeout.ms",
        description="A broker that has not answered for so long is left for another; more than a batch takes to be "
        "stored.",
    )
    endpoints: Annotated[int, integer(1, 64)] = Field(
        default=1, alias="pubsub.write.endpoints", description="Brokers that a producer writes to in turn."
    )
    tls: Annotated[str, choice("none", "tls")] = Field(
        default="none", alias="pubsub.security", description="Whether brokers are spoken to by TLS."
    )
    ca: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="pubsub.tls.ca",
        description="Certificates of who signs those of brokers (PEM); unset, the system's.",
    )
    certificate: Annotated[Path | None, PATH] = Field(
        default=None, alias="pubsub.tls.certificate", description="The client's certificate and its chain (PEM)."
    )
    key: Annotated[Path | None, PATH] = Field(
        default=None, alias=_CLIENT_KEY, description="The certificate's private key (PEM), without a password."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> BrokerClientSettings:
        if (self.certificate is None) != (self.key is None):
            raise broken_rule(_CLIENT_KEY, "and pubsub.tls.certificate belong together: set both, or none")
        return self
