"""Row groups of Parquet files, and their encodings. Row groups do not depend on how batches arrive."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.files.test_columns import json_columns
from tests.pipelines.files.test_files import WINDOW, batch, write
from tieredstore.pipelines import writers
from tieredstore.pipelines.files.formats import Orc, Parquet, ParquetFile
from tieredstore.pipelines.writers import ENVELOPE, GROUP_ROWS, PIECE_ROWS, Format, envelope, running_sizes, total_size

ROWS = GROUP_ROWS + 3 * PIECE_ROWS + 7
CUTS: Sequence[Sequence[int]] = ([], [1, PIECE_ROWS], [GROUP_ROWS, GROUP_ROWS + 1], range(777, ROWS, 777))


def of_many_kinds(number: int) -> dict[str, Any]:
    """Return values that fill several Parquet pages, because passing rows in other pieces moves the ends of pages."""
    header = {"key": "h", "value": b"%d" % number}
    return {
        "key": b"k%d" % (number % 50) if number % 5 else None,
        "value": b"%-99d" % number,
        "headers": None if number % 3 else [header] * (number % 4),
    }


@pytest.fixture(scope="module")
def rows() -> Any:
    return batch(rows=[of_many_kinds(number) for number in range(ROWS)])


@pytest.mark.parametrize("how", [Parquet(), Orc()], ids=["parquet", "orc"])
def test_whatever_batches_rows_come_in_they_are_the_same_bytes(how: Format, rows: Any) -> None:
    written = [
        write(how, *(rows.slice(start, stop - start) for start, stop in zip([0, *cuts], [*cuts, ROWS], strict=True)))
        for cuts in CUTS
    ]
    assert len(written[0]) == 1
    assert all(one == written[0] for one in written[1:])


def test_groups_end_at_their_number_of_rows(rows: Any) -> None:
    (data,) = write(Parquet(), rows.slice(0, 99), rows.slice(99)).values()
    file = pq.ParquetFile(io.BytesIO(data))
    assert [file.metadata.row_group(number).num_rows for number in range(2)] == [GROUP_ROWS, ROWS - GROUP_ROWS]
    assert file.read().column("offset").to_pylist() == list(range(ROWS))


def test_groups_of_columns_end_by_the_bytes_of_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "GROUP_BYTES", 25)
    five = batch(rows=[{"key": b"k", "value": b'{"id":7}', "headers": None}] * 5)
    for cuts in ([five], [five.slice(0, 1), five.slice(1, 3), five.slice(4)]):
        (data,) = write(json_columns(Parquet(), "id BIGINT"), *cuts).values()
        metadata = pq.ParquetFile(io.BytesIO(data)).metadata
        assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [3, 2]


@pytest.mark.parametrize("how", [Parquet(), json_columns(Parquet(), "id BIGINT")], ids=["rows", "columns"])
def test_no_record_is_looked_at_where_no_group_ends(how: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = batch(rows=[{"key": b"k", "value": b'{"id":7}', "headers": None}] * 5000)
    looks: list[int] = []

    def looking(records: Any) -> Sequence[int]:
        looks.append(records.num_rows)
        return running_sizes(records)

    monkeypatch.setattr(writers, "running_sizes", looking)
    write(how, *(rows.slice(start, 500) for start in range(0, 5000, 500)))
    assert looks == []


def file_of(times: Sequence[int], **options: Any) -> bytes:
    """Return a file with one full group of rows; ``options`` select pyarrow's own settings."""
    records: Any = batch(rows=[{"key": None, "value": b"v", "headers": None}] * GROUP_ROWS)
    place = records.schema.get_field_index("timestamp")
    column: Any = pa.array(times, pa.int64())
    rows: Any = envelope(records.set_column(place, "timestamp", column), WINDOW.topic, WINDOW.partition)
    file = io.BytesIO()
    if options:
        pq.write_table(pa.Table.from_batches([rows]), file, row_group_size=GROUP_ROWS, **options)
    else:
        writer = ParquetFile(file, ENVELOPE, "none")
        writer.write(rows)
        writer.close()
    return file.getvalue()


def encodings(data: bytes) -> dict[str, set[str]]:
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: set(column.encodings) for column in columns}


@pytest.mark.parametrize(
    ("times", "has_dictionary"),
    [
        pytest.param(range(0, 3 * GROUP_ROWS, 3), False, id="all differ"),
        pytest.param([number // 2 for number in range(GROUP_ROWS)], True, id="two at a time"),
        pytest.param([7] * GROUP_ROWS, True, id="a batch's own"),
        pytest.param([number * 7919 % 100 for number in range(GROUP_ROWS)], True, id="a few, mixed"),
    ],
)
def test_only_what_repeats_has_a_dictionary_and_no_file_is_larger_for_it(
    times: Sequence[int], has_dictionary: bool
) -> None:
    data = file_of(times)
    by_column = encodings(data)
    assert "RLE_DICTIONARY" not in by_column["offset"]
    assert ("RLE_DICTIONARY" in by_column["timestamp"]) is has_dictionary
    assert all("RLE_DICTIONARY" in by_column[name] for name in ("topic", "value", "headers.list.element.key"))
    assert len(data) <= len(file_of(times, compression="none"))


def test_columns_are_encoded_by_what_kafka_tells_of_them_and_not_by_their_own_names() -> None:
    rows = batch(rows=[{"key": None, "value": b'{"offset":7,"timestamp":9}', "headers": None}] * 100)
    (data,) = write(json_columns(Parquet(), "offset BIGINT, timestamp BIGINT"), rows).values()
    plain = {name for name, encoded in encodings(data).items() if "RLE_DICTIONARY" not in encoded}
    assert plain == {"kafka.offset", "kafka.timestamp"}


def test_a_file_without_rows_is_one() -> None:
    file = io.BytesIO()
    ParquetFile(file, ENVELOPE).close()
    assert pq.read_table(file).num_rows == 0


CELLS = st.none() | st.binary(max_size=9)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=12), start=st.integers(0, 12), kind=st.sampled_from(["", "large_"])
)
def test_a_batch_is_as_large_as_its_records(rows: list[tuple[bytes | None, ...]], start: int, kind: str) -> None:
    binary = getattr(pa, f"{kind}binary")()
    schema = pa.schema([("key", binary), ("value", binary)])
    records = pa.RecordBatch.from_pylist([{"key": key, "value": value} for key, value in rows], schema=schema)
    sizes = list(accumulate(sum(len(cell or b"") for cell in row) for row in rows[start:]))
    assert total_size(records.slice(start)) == (sizes[-1] if sizes else 0)
    assert list(running_sizes(records.slice(start))) == sizes


@pytest.mark.parametrize("validity", [0b1101, 0b1111])
def test_bytes_below_a_null_do_not_count(validity: int) -> None:
    buffers = [pa.py_buffer(bytes([validity])), pa.array([0, 3, 5, 5, 9], pa.int32()).buffers()[1]]
    column = pa.Array.from_buffers(pa.binary(), 4, [*buffers, pa.py_buffer(b"123456789")])
    records = pa.RecordBatch.from_arrays([column, column], ["key", "value"])
    assert total_size(records) == (18 if validity == 0b1111 else 14)
    assert list(running_sizes(records))[-1] == total_size(records)
