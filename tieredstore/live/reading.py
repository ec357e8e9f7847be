"""The records of one partition of a broker, from one offset up to another."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from tieredstore.errors import ConfigError, DataLoss
from tieredstore.kafka.records import COLUMNS
from tieredstore.live.bounded import BoundedConsumer, Window
from tieredstore.live.clients import check_configuration
from tieredstore.live.cluster import LiveCluster
from tieredstore.live.messages import MessageColumns
from tieredstore.live.properties import Isolation, check_timeout, client_configuration
from tieredstore.model import Uuid

_MAX_OFFSET: Final = 2**63 - 1


def read_live(
    properties: Mapping[str, str],
    topic: str,
    partition: int,
    start: int,
    stop: int,
    *,
    isolation: Isolation,
    columns: Sequence[str] = COLUMNS,
    topic_id: Uuid | None = None,
    timeout_s: float = 60.0,
) -> Generator[pa.RecordBatch, None, None]:
    """The records with offsets in ``[start, stop)``, ascending, in record batches of about 4 MiB or 10,000 rows.

    ``stop`` is an end that the broker has told; the read goes on until the broker's log reaches it, whether or not a
    record lies there: markers of transactions and aborted records take offsets and do not come. ConfigError at once for
    what cannot be. Then DataLoss if the broker does not have ``start``, or if retention passes by the reader, or if the
    log ends before ``stop`` and does not grow for ``timeout_s``, or if the topic's id is not ``topic_id`` before or
    after the read (two requests); ResourceNotFound, BrokerDenied, BatchCorrupt; and BrokerUnavailable, which is to be
    tried again, if nothing comes for ``timeout_s``. Records that came before an error are given before it is raised.
    """
    shape = MessageColumns(columns)
    if not 0 <= start <= stop <= _MAX_OFFSET:
        raise ConfigError(f"there are no offsets from {start} up to {stop} of {topic}-{partition}")
    check_timeout(timeout_s)
    configuration = client_configuration(properties, isolation)
    check_configuration(configuration)
    identity = None if topic_id is None else _Identity(properties, topic, topic_id, timeout_s)
    window = Window(configuration["bootstrap.servers"], topic, partition, start, stop)
    return _read(configuration, window, shape, identity, timeout_s)


def _read(
    configuration: Mapping[str, str],
    window: Window,
    shape: MessageColumns,
    identity: _Identity | None,
    timeout_s: float,
) -> Generator[pa.RecordBatch, None, None]:
    if window.start == window.stop:
        return
    if identity is not None:
        identity.check()
    consumer = BoundedConsumer(configuration, window, shape, timeout_s)
    try:
        yield from consumer.batches()
    finally:
        consumer.close()
    if identity is not None:
        identity.check()


class _Identity:
    """Whether the topic is still the one that was meant: the offsets of another one mean nothing."""

    def __init__(self, properties: Mapping[str, str], topic: str, topic_id: Uuid, timeout_s: float) -> None:
        uncommitted = {name: value for name, value in properties.items() if name != "isolation.level"}
        self._cluster = LiveCluster(uncommitted, isolation="read_uncommitted", timeout_s=timeout_s)
        self._topic = topic
        self._topic_id = topic_id

    def check(self) -> None:
        """DataLoss naming both ids."""
        with self._cluster:
            found = self._cluster.topic(self._topic)
        if found.topic_id != self._topic_id:
            raise DataLoss(
                f"topic {self._topic} was created again: its id is {found.topic_id} on the broker, and the records of "
                f"{self._topic_id} were to be read"
            )
