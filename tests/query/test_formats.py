"""Tests of the table of output formats: commands write each format as its row says."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tieredstore.cli.app.options import Rows
from tieredstore.cli.records.row_output import Target, bytes_in_terminal
from tieredstore.errors import ConfigError
from tieredstore.query import writers
from tieredstore.query.writers import WRITERS, writer_for

TABLE = pa.table({"n": [1, 2], "name": ["a", "ä"]})


def written(name: str, table: Any = TABLE) -> bytes:
    file = io.BytesIO()
    assert WRITERS[name].write(table.to_reader(), file) == table.num_rows
    return file.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", WRITERS)
def test_only_a_format_of_text_goes_to_a_terminal_unasked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    data = written(name)
    if bytes_in_terminal(data) == data:
        assert Target.parse(Rows(row_format=name)) == Target(None, name)
    else:
        with pytest.raises(ConfigError, match=r"^binary output would garble a terminal: give -o FILE"):
            Target.parse(Rows(row_format=name))
    assert Target.parse(Rows(row_format=name, output=Path("-"))) == Target(None, name)


@pytest.mark.parametrize("name", WRITERS)
def test_rows_that_a_read_can_have_are_written_and_none_too(name: str) -> None:
    arrow: Any = pa
    columns = {
        "topic": arrow.array(["orders"]).dictionary_encode(),
        "partition": arrow.array([0]).dictionary_encode(),
        "value": arrow.array(['{"a": 1}'], arrow.json_()),
    }
    rows = arrow.table(columns)
    assert b"orders" in written(name, rows) or name == "parquet"
    written(name, rows.slice(0, 0))


def test_a_new_row_is_all_that_a_format_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    row = replace(WRITERS["parquet"], other_endings=(".zyx",))
    monkeypatch.setattr(writers, "WRITERS", {**WRITERS, "xyz": row})
    with pytest.raises(ConfigError, match="binary output"):
        Target.parse(Rows(row_format="xyz"))
    for ending in ("xyz", "ZYX"):
        path = tmp_path / f"a.{ending}"
        assert Target.parse(Rows(output=path)) == Target(path, "xyz")
        assert writer_for(path) is row.write
    names = re.escape(f"name it .{', .'.join(WRITERS)} or .xyz")
    with pytest.raises(ConfigError, match=f"{names}$"):
        writer_for(tmp_path / "a.txt")
    with pytest.raises(ConfigError, match=f"{names}, or give --format$"):
        Target.parse(Rows(output=tmp_path / "a.txt"))


@pytest.mark.parametrize("name", WRITERS)
def test_columns_of_one_name_are_refused_where_a_row_would_lose_one(name: str, tmp_path: Path) -> None:
    twice: Any = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    target = Target(tmp_path / "a", name)
    if WRITERS[name].takes_equal_names:
        target.write(twice.to_reader())
        assert re.findall(r"\w", (tmp_path / "a").read_text()) == ["a", "a", "1", "2"]
    else:
        with pytest.raises(ConfigError, match="the query returns two columns named a"):
            target.write(twice.to_reader())
