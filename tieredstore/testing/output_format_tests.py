"""Contract tests of a pipeline's output format: ``class TestMine(OutputFormatTests)`` with a fixture ``output``.

Needs the extras ``test`` and ``arrow``.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa
import pytest

from tieredstore.pipelines.writers import ENVELOPE, Format

_ROWS: Final = 40


def rows_of_all_kinds() -> list[dict[str, Any]]:
    """Return records of every kind: nulls, empty values, repeated header names, bytes that are not text, a MiB."""
    kinds: Sequence[tuple[bytes | None, bytes | None, list[dict[str, Any]] | None]] = [
        (b"k", b"one", [{"key": "h", "value": b"\0"}, {"key": "h", "value": None}]),
        (None, None, None),
        (b"", b"", []),
        (b"\xff", b"\xff\0", None),
        (b"large", b"v" * (1 << 20), None),
    ]
    kinds = [*kinds, *((b"k", b"v" * (number % 7), None) for number in range(_ROWS - len(kinds)))]
    place = {"topic": "events", "partition": 3, "timestampType": 0}
    return [
        {**place, "offset": 2 * at, "timestamp": 1_700_000_000_000 + at, "key": key, "value": value, "headers": headers}
        for at, (key, value, headers) in enumerate(kinds)
    ]


class _Forward(io.RawIOBase):
    """An append-only file."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            self.data += view
            return view.nbytes

    def tell(self) -> int:
        return len(self.data)


class OutputFormatTests:
    """The contract of :class:`~tieredstore.pipelines.writers.Format`."""

    @pytest.fixture
    def output(self) -> Format:
        """The format under test."""
        raise NotImplementedError

    def values_of(self, data: bytes, sidecar: bytes | None) -> list[bytes | None]:
        """Read the values in a file by a library other than the code under test."""
        raise NotImplementedError

    def written(self, output: Format, *cuts: int) -> tuple[bytes, bytes | None]:
        """Return a file of all rows, in batches that end at ``cuts``, and its sidecar."""
        file, sidecar = io.BytesIO(), io.BytesIO() if output.has_sidecar else None
        record_batch: Any = pa.RecordBatch
        rows = record_batch.from_pylist(rows_of_all_kinds(), schema=ENVELOPE)
        writer = output.open(file, sidecar)
        for start, stop in zip((0, *cuts), (*cuts, _ROWS), strict=True):
            writer.write(rows.slice(start, stop - start))
        writer.close()
        return file.getvalue(), None if sidecar is None else sidecar.getvalue()

    def test_every_value_comes_back(self, output: Format) -> None:
        """Values keep their order. Null stays null, or becomes an empty value if the format has no null."""
        values = self.values_of(*self.written(output))
        assert [value or b"" for value in values] == [row["value"] or b"" for row in rows_of_all_kinds()]

    def test_the_same_records_give_the_same_bytes_in_any_batches(self, output: Format) -> None:
        """The division into batches must not change the bytes: otherwise a committed file could not be reproduced."""
        whole = self.written(output)
        assert self.written(output) == whole
        assert self.written(output, 1, 4, 17) == whole
        assert self.written(output, *range(1, _ROWS)) == whole

    def test_a_format_that_writes_forward_neither_seeks_nor_reads(self, output: Format) -> None:
        """A format with ``writes_forward`` must not seek or read, because its files may support only appending."""
        if not output.writes_forward:
            pytest.skip("it may seek and read")
        file, sidecar = _Forward(), _Forward() if output.has_sidecar else None
        record_batch: Any = pa.RecordBatch
        writer = output.open(cast("BinaryIO", file), cast("BinaryIO | None", sidecar))
        writer.write(record_batch.from_pylist(rows_of_all_kinds(), schema=ENVELOPE))
        writer.close()
        assert (bytes(file.data), None if sidecar is None else bytes(sidecar.data)) == self.written(output)

    def test_a_pickled_copy_writes_the_same_bytes(self, output: Format) -> None:
        """A pickled copy writes the same bytes."""
        assert self.written(pickle.loads(pickle.dumps(output))) == self.written(output)  # noqa: S301  our own bytes

    def test_its_ending_begins_with_a_dot_and_has_no_separator(self, output: Format) -> None:
        """File name endings begin with a dot and contain no separator."""
        assert output.ending.startswith(".")
        assert "/" not in output.ending
