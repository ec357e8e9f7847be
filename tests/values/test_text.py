"""Conversion into text: a value that is not UTF-8 is an error that names the record, or null."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.errors import InvalidValueError
from tieredstore.values import Binary, InvalidValues, Text


def decoded(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


@given(st.lists(st.none() | st.binary(max_size=3) | st.text(max_size=3).map(str.encode)))
def test_text_is_what_python_decodes(messages: list[bytes | None]) -> None:
    column: Any = pa.array(messages, pa.binary())
    texts = [decoded(message) for message in messages]
    rows: Any = Text(on_invalid="null").convert(column, str)
    assert (rows.to_pylist(), rows.type) == (texts, pa.string())
    wrong = [row for row, data in enumerate(messages) if data is not None and texts[row] is None]
    if wrong:
        with pytest.raises(InvalidValueError, match=f"^row {wrong[0]} is not UTF-8"):
            Text().convert(column, lambda row: f"row {row}")
    else:
        assert Text().convert(column, str).to_pylist() == texts


def test_only_the_first_invalid_row_that_becomes_null_is_placed() -> None:
    column: Any = pa.array([b"\xff"] * 3, pa.binary())
    placed: list[int] = []

    def place(row: int) -> str:
        placed.append(row)
        return f"row {row}"

    for nulls in (None, InvalidValues()):
        Text(on_invalid="null", nulls=nulls).convert(column, place)
    assert placed == [0]


def test_bytes_stay_what_they_are() -> None:
    column: Any = pa.array([b"\xff", None], pa.binary())
    assert Binary().convert(column, str) is column
    assert Binary().arrow_type == pa.binary()
