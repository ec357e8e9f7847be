"""Conversion of Avro into structs, by a given schema, or by the schemas of a registry."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.support.network.schema_registry_server import framed, written
from tieredstore.errors import ConfigError, InvalidValueError, StoreUnavailableError
from tieredstore.values import Avro, arrow_type_of

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "before", "type": "Kind"},
        {"name": "trace", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
ORDER = {
    "id": 1, "who": None, "at": datetime(2026, 1, 1, tzinfo=UTC), "tags": ["a", "b"], "counts": {"k": 1},
    "price": Decimal("1.25"), "kind": "NEW", "before": "OLD", "trace": "63541de3-579e-46d0-b19b-1a2bb162b071",
}  # fmt: skip


def place(row: int) -> str:
    return f"the value at offset {row} of orders-0"


def column(*messages: bytes | None) -> Any:
    return pa.array(messages, pa.binary())


def test_data_become_structs() -> None:
    kind = pickle.loads(pickle.dumps(Avro(SCHEMA)))
    rows: Any = kind.convert(column(written(SCHEMA, ORDER), None), place)
    assert rows.type == kind.arrow_type
    assert rows.to_pylist() == [{**ORDER, "counts": [("k", 1)]}, None]


def test_an_invalid_datum_is_named_or_null() -> None:
    whole = written(SCHEMA, ORDER)
    for wrong in (b"", b"\xff" * 50, whole + b"x", whole[:-1]):
        with pytest.raises(InvalidValueError, match=r"^the value at offset 1 of orders-0 is not Avro of the schema"):
            Avro(SCHEMA).convert(column(whole, wrong), place)
        rows: Any = Avro(SCHEMA, on_invalid="null").convert(column(wrong, whole), place)
        assert [row and row["id"] for row in rows.to_pylist()] == [None, 1]


def test_a_registry_tells_by_which_schema_a_message_was_written() -> None:
    old = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    new = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}],
    }
    asked: list[int] = []

    def lookup(number: int) -> Any:
        asked.append(number)
        if number == 99:
            raise StoreUnavailableError("the registry is silent")
        return {1: old, 2: new}[number]

    kind = Avro(new, lookup)
    first = framed(1, written(old, {"id": 5}))
    rows: Any = kind.convert(column(first, framed(2, written(new, {"id": 6, "note": "x"})), first), place)
    assert rows.to_pylist() == [{"id": 5, "note": "-"}, {"id": 6, "note": "x"}, {"id": 5, "note": "-"}]
    assert asked == [1, 2]
    for wrong in (written(new, {"id": 6, "note": "x"}), b"\0\0", framed(7, b"")):
        with pytest.raises(InvalidValueError):
            kind.convert(column(wrong), place)
    # A failing registry does not make the message a bad one.
    with pytest.raises(StoreUnavailableError):
        kind.convert(column(framed(99, b"")), place)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("{", "not an Avro schema"),
        ({"type": "nothing"}, "not an Avro schema"),
        (["int", "string"], "union of several types"),
        ({"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}, "a type within itself"),
        ({"type": "array", "items": "null"}, "has no limit"),
    ],
    ids=str,
)
def test_schemas_that_cannot_be_columns_are_refused(schema: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Avro(schema)


def test_types_that_are_no_record() -> None:
    assert arrow_type_of({"type": "fixed", "name": "F", "size": 3}) == pa.binary(3)
    assert Avro("long").convert(column(written("long", 7)), place).to_pylist() == [7]
