"""The records of partitions of a broker, from one offset up to another."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from tieredstore.errors import ConfigError, DataLoss
from tieredstore.kafka.records import COLUMNS
from tieredstore.limits import MAX_OFFSET
from tieredstore.live.bounded import BoundedRead, LiveRange
from tieredstore.live.cluster import LiveCluster
from tieredstore.live.consumers import ConsumerPool, bounded_configuration
from tieredstore.live.messages import MessageColumns
from tieredstore.live.properties import client_configuration
from tieredstore.model import Isolation, Uuid
from tieredstore.process.closing import Closing
from tieredstore.process.per_process import PerProcess


class LiveReader(Closing):
    """Reads of one cluster that share their clients: ``cluster``'s, and consumers that go from read to read.

    Thread-safe; picklable with its properties, clients are made anew after fork or unpickling. To be closed.
    """

    def __init__(self, properties: Mapping[str, str], *, isolation: Isolation, timeout_s: float = 60.0) -> None:
        """ConfigError for properties that cannot be used; nothing is connected to yet."""
        self.cluster = LiveCluster(properties, isolation=isolation, timeout_s=timeout_s)
        configuration = client_configuration(properties, isolation)
        self._servers = configuration["bootstrap.servers"]
        self._timeout_s = timeout_s
        # Lent from read to read: a new consumer has to connect, and to ask who leads what, before its first record.
        self._consumers = PerProcess(
            partial(ConsumerPool, bounded_configuration(configuration, timeout_s)), ConsumerPool.close
        )

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        *,
        columns: Sequence[str] = COLUMNS,
        topic_id: Uuid | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """The records with offsets in ``[start, stop)``, ascending, in record batches of about 4 MiB or 10,000 rows.

        ``stop`` is an end that the broker has told; the read goes on until the broker's log reaches it, whether or not
        a record lies there: markers of transactions and aborted records take offsets and do not come. ConfigError at
        once for what cannot be. Then DataLoss if the broker does not have ``start``, or if retention passes by the
        reader, or if the log ends before ``stop`` and does not grow for ``timeout_s``, or if the topic's id is not
        ``topic_id`` before or after the read (two requests); ResourceNotFound, BrokerDenied, BatchCorrupt; and
        BrokerUnavailable, which is to be tried again, if nothing comes for ``timeout_s``. Records that came before an
        error are given before it is raised.
        """
        shape = MessageColumns(columns)
        if not 0 <= start <= stop <= MAX_OFFSET:
            raise ConfigError(f"there are no offsets from {start} up to {stop} of {topic}-{partition}")
        return self._read(LiveRange(self._servers, topic, partition, start, stop), shape, topic_id)

    def _read(
        self, extent: LiveRange, shape: MessageColumns, topic_id: Uuid | None
    ) -> Generator[pa.RecordBatch, None, None]:
        if extent.start == extent.stop:
            return
        self._check_identity(extent.topic, topic_id)
        # Looked at before and after: a topic may be created anew while it is read, and offsets alone do not tell.
        with self._consumers.get().lent() as consumer:
            yield from BoundedRead(consumer, extent, shape, self._timeout_s).batches()
        self._check_identity(extent.topic, topic_id)

    def _check_identity(self, topic: str, topic_id: Uuid | None) -> None:
        """DataLoss naming both ids if the topic is another one than was meant: its offsets mean nothing then."""
        if topic_id is None:
            return
        known_id = self.cluster.existing_topic(topic).topic_id
        if known_id != topic_id:
            raise DataLoss(
                f"topic {topic} was created again: its id is {known_id} on the broker, and the records of {topic_id} "
                "were to be read"
            )

    def close(self) -> None:
        """End this process's connections, those of ``cluster`` too; they are made again if they are needed."""
        self._consumers.close()
        self.cluster.close()


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
    """One read by clients of its own: see :meth:`LiveReader.read`, which many reads share clients by."""
    reader = LiveReader(properties, isolation=isolation, timeout_s=timeout_s)
    return _read_and_close(reader, reader.read(topic, partition, start, stop, columns=columns, topic_id=topic_id))


def _read_and_close(
    reader: LiveReader, batches: Generator[pa.RecordBatch, None, None]
) -> Generator[pa.RecordBatch, None, None]:
    with reader:
        yield from batches
