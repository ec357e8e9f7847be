"""Secor's deterministic limits: how much is read of a partition until all its files end, by payload and by times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class InputLimits:
    """Files end at the record with which values reach so many bytes, or times reach over so many ms; 0: at none.

    Of all records of a partition together, whatever directories they are filed in, with those that are left out.
    """

    payload_bytes: int
    range_ms: int


class Reached:
    """How much of a window was read since its files ended; for its records in their order."""

    def __init__(self, limits: InputLimits) -> None:
        self._limits = limits
        self._bytes, self._earliest_ms, self._latest_ms = 0, -1, -1

    def pieces(self, batch: Any) -> Iterator[tuple[Any, bool]]:
        """The batch, cut behind the records with which files end, and whether they do."""
        sizes = pc.fill_null(pc.binary_length(batch.column("value")), 0).to_pylist()
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        start = 0
        for row, (size, time_ms) in enumerate(zip(sizes, times, strict=True)):
            self._bytes += size
            if time_ms >= 0:
                self._earliest_ms = time_ms if self._earliest_ms < 0 else min(self._earliest_ms, time_ms)
                self._latest_ms = max(self._latest_ms, time_ms)
            if self._is_full():
                yield batch.slice(start, row + 1 - start), True
                self._start_anew()
                start = row + 1
        if start < batch.num_rows:
            yield batch.slice(start), False

    def _start_anew(self) -> None:
        self._bytes, self._earliest_ms, self._latest_ms = 0, -1, -1

    def _is_full(self) -> bool:
        by_bytes = 0 < self._limits.payload_bytes <= self._bytes
        return by_bytes or 0 < self._limits.range_ms <= self._latest_ms - self._earliest_ms
