"""The broker that the options name, if they name one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.live import LiveCluster
    from tieredstore.spark.source.options import SourceOptions

_TIMEOUT: Final = "default.api.timeout.ms"
_MINUTE_MS: Final = "60000"
_LONGEST: Final = 999_999


def live_cluster(options: SourceOptions) -> LiveCluster | None:
    """The cluster of ``kafka.bootstrap.servers``, which connects when it is first asked; to be closed by who asks."""
    if options.kafka is None:
        return None
    # Needs the extra `kafka`, which a bucket alone does not.
    from tieredstore.live import LiveCluster  # noqa: PLC0415

    return LiveCluster(dict(options.kafka), isolation=options.isolation, timeout_s=patience_s(options))


def patience_s(options: SourceOptions) -> float:
    """For how many seconds the broker may be silent: ``kafka.default.api.timeout.ms``, as Kafka's clients a minute."""
    text = dict(options.kafka or ()).get(_TIMEOUT, _MINUTE_MS)
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_LONGEST)) and int(text)):
        raise ConfigError(f"the option kafka.{_TIMEOUT} is {text[:20]!r}: it must be milliseconds, 1 to {_LONGEST}")
    return int(text) / 1000
