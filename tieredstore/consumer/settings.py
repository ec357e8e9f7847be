"""A consumer's settings: the properties under ``tiered.storage.``, and librdkafka's properties."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from tieredstore.config.nearest import did_you_mean
from tieredstore.config.pinterest import of_consumer
from tieredstore.errors import ConfigError, quote
from tieredstore.live.properties import member_configuration
from tieredstore.model import DEFAULT_ISOLATION, Isolation, Uuid
from tieredstore.query.arguments import topic_ids_of
from tieredstore.remote.stores import StoreLike, settings_of

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.records.report import LostOffsets
    from tieredstore.records.settings import OnDataLoss

PREFIX: Final = "tiered.storage."

_POLICIES: Final = ("fail", "report")

LossCallback: TypeAlias = "Callable[[LostOffsets], object]"
"""The user's callback for each range of lost offsets, if ``on.data.loss`` is ``report``."""

Reset: TypeAlias = Literal["earliest", "latest", "error"]

_RESETS: Final[dict[str, Reset]] = {
    "earliest": "earliest", "smallest": "earliest", "beginning": "earliest",
    "latest": "latest", "largest": "latest", "end": "latest", "error": "error",
}  # fmt: skip


class Mode(enum.Enum):
    """The logs that a consumer reads (bucket, broker or both), and the log that it prefers."""

    KAFKA_ONLY = "kafka_only"
    KAFKA_PREFERRED = "kafka_preferred"
    REMOTE_PREFERRED = "remote_preferred"
    REMOTE_ONLY = "remote_only"


_PINTEREST: Final = {
    "KAFKA_ONLY": Mode.KAFKA_ONLY,
    "KAFKA_PREFERRED": Mode.KAFKA_PREFERRED,
    "TIERED_STORAGE_PREFERRED": Mode.REMOTE_PREFERRED,
    "TIERED_STORAGE_ONLY": Mode.REMOTE_ONLY,
}

_NAMES: Final = tuple(
    PREFIX + name
    for name in (
        "mode", "settings", "store", "on.data.loss", "refresh.ms", "queued.max.kbytes", "partitions.at.once",
        "timeout.ms", "loss_cb", "topic.ids",
    )
)  # fmt: skip

_POLL_RECORDS: Final = "max.poll.records"
_AUTO_COMMIT: Final = ("enable.auto.commit", "auto.commit.enable")


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """All settings of a consumer. ``client`` holds the user's properties for librdkafka."""

    mode: Mode
    store: Settings | None
    topic_ids: Mapping[str, Uuid]
    """For each topic that was created more than once: the topic id to read from the bucket."""
    on_data_loss: OnDataLoss
    loss_cb: LossCallback | None
    refresh_s: float
    queued_bytes: int
    partitions_at_once: int
    timeout_s: float
    reset: Reset
    isolation: Isolation
    auto_commit_s: float | None
    """None if automatic commits are off."""
    auto_store: bool
    emits_eof: bool
    is_eager: bool
    """True for eager rebalancing: each new assignment replaces the whole previous assignment."""
    poll_records: int | None
    client: Mapping[str, object] = field(repr=False)

    @property
    def has_broker(self) -> bool:
        """True if the properties name a broker."""
        return bool(self.client.get("bootstrap.servers") or self.client.get("metadata.broker.list"))

    def member_properties(self) -> dict[str, object]:
        """Return librdkafka's properties for the group member. Except with ``kafka_only``, turn off librdkafka's resets
        and automatic commits, because this consumer does both itself.
        """
        client = dict(self.client)
        if self.mode is Mode.KAFKA_ONLY:
            return client
        for name in (*_AUTO_COMMIT, "auto.commit.interval.ms", "enable.auto.offset.store"):
            client.pop(name, None)
        return {
            **client, "auto.offset.reset": "error", "enable.auto.commit": False, "enable.auto.offset.store": False,
        }  # fmt: skip


def parse_settings(properties: Mapping[str, object], store: StoreLike = None) -> ConsumerSettings:
    """Parse a consumer's properties, without connecting. ``store`` is the bucket if the properties name none.

    Raise ConfigError, which names the property, if a property is unknown, invalid or missing.
    """
    properties = of_consumer(properties)
    own = {name: value for name, value in properties.items() if name.startswith(PREFIX)}
    for name in own:
        if name not in _NAMES:
            raise ConfigError(f"unknown property {name}{did_you_mean(name, _NAMES)}")
    rest = {name: value for name, value in properties.items() if name not in own}
    poll_records = _number(rest, _POLL_RECORDS, 1, 1_000_000) if _POLL_RECORDS in rest else None
    client = member_configuration(rest)
    mode = _mode(own.get(f"{PREFIX}mode", Mode.KAFKA_PREFERRED))
    loss_cb = own.get(f"{PREFIX}loss_cb")
    if loss_cb is not None and not callable(loss_cb):
        raise ConfigError(f"{PREFIX}loss_cb must be a function")
    auto_commit = _flag(client, "enable.auto.commit", "auto.commit.enable", default=True)
    settings = ConsumerSettings(
        mode=mode,
        store=_store(own, mode, store),
        topic_ids=_topic_ids(own, mode),
        on_data_loss=cast("OnDataLoss", _choice(own, f"{PREFIX}on.data.loss", _POLICIES, "fail")),
        loss_cb=loss_cb,
        refresh_s=_number(own, f"{PREFIX}refresh.ms", 10, 86_400_000, 30_000) / 1000,
        queued_bytes=_number(own, f"{PREFIX}queued.max.kbytes", 1, 2**31 - 1, 65_536) * 1024,
        partitions_at_once=_number(own, f"{PREFIX}partitions.at.once", 1, 1000, 4),
        timeout_s=_number(own, f"{PREFIX}timeout.ms", 1, 3_600_000, 60_000) / 1000,
        reset=_RESETS[_choice(client, "auto.offset.reset", tuple(_RESETS), "latest")],
        isolation=cast("Isolation", _choice(client, "isolation.level", get_args(Isolation), DEFAULT_ISOLATION)),
        auto_commit_s=_number(client, "auto.commit.interval.ms", 0, 86_400_000, 5000) / 1000 if auto_commit else None,
        auto_store=_flag(client, "enable.auto.offset.store", default=True),
        emits_eof=_flag(client, "enable.partition.eof", default=False),
        is_eager=_is_eager(client),
        poll_records=poll_records,
        client=client,
    )
    if not settings.has_broker and mode is not Mode.REMOTE_ONLY:
        raise ConfigError(f"bootstrap.servers is not set: {PREFIX}mode {mode.value} needs it")
    return settings


def _mode(given: object) -> Mode:
    if isinstance(given, Mode):
        return given
    if given in _PINTEREST:
        return _PINTEREST[str(given)]
    try:
        return Mode(given)
    except ValueError:
        names = ", ".join(mode.value for mode in Mode)
        raise ConfigError(f"{PREFIX}mode is {quote(given)}; it must be one of {names}") from None


def _store(own: Mapping[str, Any], mode: Mode, given: StoreLike) -> Settings | None:
    settings, url = own.get(f"{PREFIX}settings", given), own.get(f"{PREFIX}store")
    if mode is Mode.KAFKA_ONLY:
        return None
    if settings is None and url is None:
        raise ConfigError(
            f"no store is named: {PREFIX}mode {mode.value} needs store=, {PREFIX}settings (a file or a mapping) or "
            f"{PREFIX}store (a URL)"
        )
    return settings_of(settings, store=None if url is None else str(url))


def _topic_ids(own: Mapping[str, Any], mode: Mode) -> dict[str, Uuid]:
    """Parse a mapping such as ``{"orders": "<topic id>"}``, or a text such as ``orders=<topic id>`` with commas between
    pairs."""
    name = f"{PREFIX}topic.ids"
    given = own.get(name)
    if given is None:
        return {}
    if mode is not Mode.REMOTE_ONLY:
        raise ConfigError(f"{name} needs {PREFIX}mode remote_only: a broker has only the newest topic of each name")
    if isinstance(given, str):
        pairs = [pair.partition("=") for pair in given.split(",")]
        given = {topic.strip(): topic_id.strip() for topic, _, topic_id in pairs}
    return topic_ids_of(given, name)


def _number(given: Mapping[str, object], name: str, least: int, most: int, default: int = 0) -> int:
    value = given.get(name, default)
    try:
        number = int(str(value)) if not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not least <= number <= most:
        raise ConfigError(f"{name} is {quote(value)}: it must be a whole number from {least} to {most}")
    return number


def _choice(given: Mapping[str, object], name: str, choices: tuple[str, ...], default: str) -> str:
    value = given.get(name, default)
    if value not in choices:
        raise ConfigError(f"{name} is {quote(value)}; it must be {' or '.join(choices)}")
    return str(value)


def _flag(given: Mapping[str, object], *names: str, default: bool) -> bool:
    for name in names:
        if name in given:
            text = str(given[name]).lower()
            if text not in {"true", "false", "1", "0"}:
                raise ConfigError(f"{name} is {quote(given[name])}; it must be true or false")
            return text in {"true", "1"}
    return default


def _is_eager(client: Mapping[str, object]) -> bool:
    if str(client.get("group.protocol", "classic")).lower() == "consumer":
        return False
    return "cooperative" not in str(client.get("partition.assignment.strategy", ""))
