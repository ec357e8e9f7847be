"""The control topic in the target cluster. It has the position of each run, and the offsets that the restored records
got.

This module is separate from ``producing``, because this module only reads. A run uses it to find its position before it
continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Final

from tieredstore.errors import BrokerUnavailableError, CorruptDataError
from tieredstore.live import LiveReader
from tieredstore.restore.produce.runs import CONTROL_TOPIC, OffsetRun, RunPosition, offsets_from_bytes

_logger: Final = logging.getLogger(__name__)

_WHERE: Final = CONTROL_TOPIC, 0
_NEWEST: Final = 1000
"""The search for a run's newest position begins with this many records at the end of the control topic."""
_PAUSE_S: Final = 0.05
_TELL_S: Final = 2.0
"""Seconds to wait before a warning. A shorter wait is normal, because the broker writes a transaction's end marker a
moment after the commit."""


class ControlTopic:
    """The control topic's records of one run. ``settles_s`` is the longest time to wait for an open transaction of
    another run."""

    def __init__(self, reader: LiveReader, run: str, *, settles_s: float) -> None:
        self._reader = reader
        self._run = run
        self._settles_s = settles_s

    def newest_position(self) -> RunPosition | None:
        """Return the newest position of the run; None if no position is recorded yet. Call this after
        ``Transactions.start``, which ends the run's old transactions.
        """
        begin, end = self._wait_settled()
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
        """Yield the offset runs in each record with a key RUN/NUMBER, for numbers above ``after`` and at most
        ``up_to``."""
        wanted = {f"{self._run}/{number}".encode(): number for number in range(after + 1, up_to + 1)}
        begin, end = self._wait_settled()
        for key, value in self._records(begin, end) if wanted else ():
            if key in wanted and value is not None:
                del wanted[key]
                yield offsets_from_bytes(value, f"{key.decode()} in {CONTROL_TOPIC}")
        if wanted:
            missing = next(iter(wanted)).decode()
            raise CorruptDataError(f"{CONTROL_TOPIC} has lost the record {missing} with offsets of restored records")

    def _wait_settled(self) -> tuple[int, int]:
        """Return the topic's first offset and its end. First wait until no transaction is open before that end.

        A reader of committed records stops before the first open transaction. If another run has an open transaction,
        the reader would miss later records of this run, and so the newest position.
        """
        cluster = self._reader.cluster
        end = cluster.end_offsets([_WHERE], "read_uncommitted")[_WHERE]
        begun, is_told = time.monotonic(), False
        while cluster.end_offsets([_WHERE], "read_committed")[_WHERE] < end:
            waited_s = time.monotonic() - begun
            if waited_s > self._settles_s:
                raise BrokerUnavailableError(
                    f"a transaction of another restore is open in {CONTROL_TOPIC}: run that restore again to end the "
                    "transaction, or wait"
                )
            if waited_s > _TELL_S and not is_told:
                _logger.warning("waiting for the end of a transaction of another restore")
                is_told = True
            time.sleep(_PAUSE_S)
        return cluster.earliest_offsets([_WHERE])[_WHERE], end

    def _records(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes | None]]:
        batches = self._reader.read(*_WHERE, start, stop, columns=("key", "value"))
        for batch in batches:
            yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
