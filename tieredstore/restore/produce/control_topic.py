"""The control topic in the target cluster: how far each run is, and the offsets that its records got.

Separate from ``producing``, because it has the reads after which a run may go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tieredstore.errors import BrokerUnavailableError, ConfigError, CorruptDataError
from tieredstore.live import LiveReader
from tieredstore.model import TopicPartition
from tieredstore.records.columns import int64_values
from tieredstore.restore.produce.runs import CONTROL_TOPIC, OffsetRun, RunPosition, offsets_from_bytes

_logger: Final = logging.getLogger(__name__)

_WHERE: Final = CONTROL_TOPIC, 0
_NEWEST: Final = 1000
"""Records of the control topic that are read first in search of a run's newest position."""
_PAUSE_S: Final = 0.05
_TELL_S: Final = 2.0
"""Markers of this run's own last transaction take a moment."""


class ControlTopic:
    """The records of one run. ``settles_s`` is the longest time that a transaction of another run may be open."""

    def __init__(self, reader: LiveReader, run: str, *, settles_s: float) -> None:
        self._reader = reader
        self._run = run
        self._settles_s = settles_s

    def newest_position(self) -> RunPosition | None:
        """Return how far the run of ``restore produce`` is; None if nothing is recorded yet. Call it after
        ``Transactions.start``.
        """
        begin, end = self._settled()
        count, key = _NEWEST, self._run.encode()
        while begin < end:
            start = max(begin, end - count)
            newest = [value for each, value in self._records(start, end) if each == key]
            if newest or start == begin:
                where = f"the position of the run {self._run} in {CONTROL_TOPIC}"
                return RunPosition.from_bytes(newest[-1], where) if newest else None
            count *= 4
        return None

    def offset_runs(self, after: int, up_to: int) -> Iterator[Sequence[OffsetRun]]:
        """Yield what the records RUN/NUMBER have, for each number above ``after`` and at most ``up_to``."""
        wanted = {f"{self._run}/{number}".encode(): number for number in range(after + 1, up_to + 1)}
        begin, end = self._settled()
        for key, value in self._records(begin, end) if wanted else ():
            if key in wanted and value is not None:
                del wanted[key]
                yield offsets_from_bytes(value, f"{key.decode()} in {CONTROL_TOPIC}")
        if wanted:
            missing = next(iter(wanted)).decode()
            raise CorruptDataError(f"{CONTROL_TOPIC} has lost the record {missing}, which has restored offsets")

    def _settled(self) -> tuple[int, int]:
        """Return the topic's offsets, once nothing before the end is undecided.

        A record of this run may follow one of another run whose transaction is still open. Readers of committed records
        stop before that, and would miss the newest position.
        """
        cluster = self._reader.cluster
        end = cluster.end_offsets([_WHERE], "read_uncommitted")[_WHERE]
        begun, is_told = time.monotonic(), False
        while cluster.end_offsets([_WHERE], "read_committed")[_WHERE] < end:
            waited_s = time.monotonic() - begun
            if waited_s > self._settles_s:
                raise BrokerUnavailableError(
                    f"a transaction of another restore is open in {CONTROL_TOPIC}: run that again to end it, or wait"
                )
            if waited_s > _TELL_S and not is_told:
                _logger.warning("waiting for the end of a transaction of another restore")
                is_told = True
            time.sleep(_PAUSE_S)
        return cluster.earliest_offsets([_WHERE])[_WHERE], end

    def _records(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes | None]]:
        batches: Iterator[Any] = self._reader.read(*_WHERE, start, stop, columns=("key", "value"))
        for batch in batches:
            yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)


def check_ends(reader: LiveReader, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the next offset of each partition. Raise ConfigError, naming a record, if one follows ``ends``.

    Aborted records and markers may follow: they are what killed runs leave behind.
    """
    actual = reader.cluster.end_offsets(ends, "read_uncommitted")
    begins = reader.cluster.earliest_offsets(ends)
    for (topic, number), end in sorted(ends.items()):
        where, stop = (topic, number), actual[topic, number]
        if stop < end:
            raise ConfigError(
                f"{topic}-{number} ends at offset {stop}, and the run has written up to {end}: the topic was created "
                "again; restore by a run of another name (--run)"
            )
        start = max(end, begins[where])
        for batch in reader.read(topic, number, start, stop, columns=("offset",)) if start < stop else ():
            raise ConfigError(
                f"{topic}-{number} has a record at offset {int64_values(batch, 'offset')[0]} that this run has not "
                "written: restore into a topic that is empty and that nothing else writes to"
            )
    return actual
