"""Arrays from Python values equal those of pyarrow, which would import pandas to make them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.support.fresh_python import run_fresh
from tieredstore.kafka.arrow_values import array_of, repeat_value

SOURCE = random.Random(3)


def some_text() -> str:
    return "ключ"[: SOURCE.randrange(5)]


def some_bytes() -> bytes:
    return SOURCE.randbytes(SOURCE.randrange(9))


def some_headers() -> list[tuple[str, bytes | None]]:
    return [(some_text(), SOURCE.choice([None, some_bytes()])) for _ in range(SOURCE.randrange(4))]


VALUES: dict[Any, Callable[[], Any]] = {
    pa.int8(): lambda: SOURCE.randrange(-(2**7), 2**7),
    pa.int32(): lambda: SOURCE.randrange(-(2**31), 2**31),
    pa.int64(): lambda: SOURCE.randrange(-(2**63), 2**63),
    pa.timestamp("ms"): lambda: SOURCE.randrange(2**40),
    pa.bool_(): lambda: SOURCE.random() < 0.5,
    pa.string(): some_text,
    pa.binary(): some_bytes,
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])): some_headers,
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_arrays_are_pyarrows(kind: Any) -> None:
    # The arrays have no nulls, some, or only nulls. Try lengths around 8, because a byte holds eight null bits.
    for nulls, length in itertools.product((0, 0.3, 1), (0, 1, 7, 8, 9, 100)):
        values = [None if SOURCE.random() < nulls else VALUES[kind]() for _ in range(length)]
        built = array_of(values, kind)
        built.validate(full=True)
        assert built.equals(pa.array(values, kind)), values
    for value in (None, VALUES[kind]()):
        assert repeat_value(value, 3, kind).to_pylist() == pa.array([value] * 3, kind).to_pylist()


def test_integers_that_the_type_does_not_hold_are_an_error() -> None:
    with pytest.raises(OverflowError):
        array_of([2**31], pa.int32())


def test_what_a_task_of_spark_does_imports_no_pandas() -> None:
    """The script converts a broker's record, and adds constant columns to rows."""
    printed = run_fresh("""
import sys
import pyarrow as pa
from confluent_kafka import Message
from tieredstore.kafka.records import COLUMNS
from tieredstore.live.messages import MessageColumns
from tieredstore.spark.source.rows import RowShape

message = Message(topic="t", partition=0, offset=1, value=b"v", headers=[("h", b"x")], timestamp=(1, 5))
records = MessageColumns(COLUMNS).build([message])
columns = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
rows = RowShape(columns).convert(records, "t", 0)
print(rows.num_rows, "pandas" in sys.modules)
""")
    assert printed == "1 False\n"
