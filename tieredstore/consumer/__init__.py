"""A group member that reads the bucket and the broker as one log. Needs ``tieredstore[kafka]``."""

from __future__ import annotations

from tieredstore.errors import ConfigError
from tieredstore.installation import install_command

try:
    from tieredstore.consumer._message import Message
    from tieredstore.consumer.consumer import Consumer
    from tieredstore.consumer.deserializing import DeserializingConsumer
    from tieredstore.consumer.handing_out import PartitionBatch
    from tieredstore.consumer.settings import Mode
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    # Any other module that is missing is a fault of the installation, and says best itself what it is.
    if missing not in {"confluent_kafka", "pyarrow"}:
        raise
    raise ConfigError(f"a consumer needs the package {missing}: {install_command('kafka')}") from error

__all__ = ["Consumer", "DeserializingConsumer", "Message", "Mode", "PartitionBatch"]
