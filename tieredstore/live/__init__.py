"""Bounded and long-lived reads from a Kafka broker, as Arrow. Needs ``tieredstore[kafka]``."""

from __future__ import annotations

from tieredstore.errors import ConfigError
from tieredstore.installation import install_command
from tieredstore.model import Isolation

try:
    from tieredstore.live.cluster import LiveCluster, LiveEnd, LiveTopic
    from tieredstore.live.epochs import EpochEnd
    from tieredstore.live.follower import LiveEvent, LiveFollower
    from tieredstore.live.reader import LiveReader, read_live
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    # Pass on errors about other missing modules: they explain a broken installation best.
    if missing not in {"confluent_kafka", "pyarrow"}:
        raise
    raise ConfigError(f"reading from a broker needs the package {missing}: {install_command('kafka')}") from error

__all__ = [
    "EpochEnd",
    "Isolation",
    "LiveCluster",
    "LiveEnd",
    "LiveEvent",
    "LiveFollower",
    "LiveReader",
    "LiveTopic",
    "read_live",
]
