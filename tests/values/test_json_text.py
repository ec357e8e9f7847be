"""JSON into structs of a schema: each message becomes one object, whatever it contains, or an error says why not."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.errors import ConfigError, InvalidValueError
from tieredstore.values import Json
from tieredstore.values.base import WAY_OUT, InvalidValues
from tieredstore.values.json_text import is_json, json_values

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("t", pa.timestamp("ms", "UTC")),
        ("n", pa.struct([("x", pa.string())])),
        ("l", pa.list_(pa.float64())),
    ]
)
FAILS, NULLS = Json(SCHEMA), Json(SCHEMA, on_invalid="null")


def place(row: int) -> str:
    return f"the value at offset {row} of orders-0"


def column(*messages: bytes | None) -> Any:
    return pa.array(messages, pa.binary())


def test_objects_become_structs() -> None:
    messages = column(
        b'{"a": 1}', None, b"null", b'{\n"a": 2, "more": {"q": [1, {"r": 1}]}, "t": "2026-01-01T00:00:00Z"}',
        b'{"n": {"x": "y"}, "l": [1, 2.5]}',
    )  # fmt: skip
    rows: Any = FAILS.convert(messages, place)
    assert rows.type == FAILS.arrow_type
    listed = rows.to_pylist()
    assert [None if row is None else row["a"] for row in listed] == [1, None, None, 2, None]
    assert listed[3]["t"].isoformat() == "2026-01-01T00:00:00+00:00"
    assert (listed[4]["n"], listed[4]["l"]) == ({"x": "y"}, [1.0, 2.5])
    assert len(FAILS.convert(messages.slice(0, 0), place)) == 0
    assert FAILS.convert(messages.slice(3, 2), place).to_pylist() == listed[3:]


def test_dates_are_texts_or_days() -> None:
    days = pa.list_(pa.struct([("d", pa.date32())]))
    dated = Json(pa.schema([("d", pa.date32()), ("l", days)]), on_invalid="null")
    messages = column(
        b'{"d": "2026-01-31", "l": [{"d": "1970-01-02"}, {}, null]}', b'{"d": 1}', b'{"d": "2026-01-31T10:00:00"}',
        b'{"d": "no day", "l": []}', None,
    )  # fmt: skip
    rows: Any = dated.convert(messages, place)
    assert rows.type == dated.arrow_type
    assert [row and (row["d"] and str(row["d"]), row["l"]) for row in rows.to_pylist()] == [
        ("2026-01-31", [{"d": date(1970, 1, 2)}, {"d": None}, None]),
        ("1970-01-02", None),
        (None, None),
        (None, []),
        None,
    ]


WRONG = [
    b"5", b"[]", b"", b'"', b"{}\n{}", b'{"a": 1', b'{"a": 1}} {"v": {}', b'{"a": 1}}\n{"v": {"a": 3}',
    b'{"a": 1}, "v": {"a": 2}', b'}\n{"v": {}', b"\xff\xfe", b'{"a": 1.5}', b'{"a": 9223372036854775808}',
    b'{"a": "x"}', b'{"a": 1, "a": 2}', b'{"t": "yesterday"}', b'{"n": {"x": 5}}', b"{}/*", b"{}//",
    b'{"more": ' + b'{"a":' * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("message", WRONG, ids=lambda message: repr(message[:30]))
def test_a_value_that_is_not_one_object_of_the_schema_is_named_or_null(message: bytes) -> None:
    messages = column(b'{"a": 7}', message, b'{"a": 8}')
    with pytest.raises(
        InvalidValueError,
        match=r"^the value at offset 1 of orders-0 (is not JSON of|does not match) the schema.*: read it as binary",
    ):
        FAILS.convert(messages, place)
    rows: Any = NULLS.convert(messages, place)
    assert [row and row["a"] for row in rows.to_pylist()] == [7, None, 8]


MISFITS = [
    ('{"a": "2.5"}', "a: '2.5' is not int64", {"a": None}),
    ('{"a": 314.68}', "a: 314.68 is not int64", {"a": None}),
    ('{"t": "yesterday"}', "t: 'yesterday' is not timestamp[ms, tz=UTC]", {"t": None}),
    ('{"n": {"x": true}}', "n.x: true is not string", {"n": {"x": None}}),
    ('{"n": 5}', "n: 5 is not an object", {"n": None}),
    ('{"n": [{"x": 1}]}', "n: a list is not an object", {"n": None}),
    ('{"l": [1, 2, "3"]}', "l[2]: '3' is not double", {"l": None}),
    ('{"l": {"x": 1}}', "l: an object is not a list", {"l": None}),
    ('{"a": "' + "x" * 50 + '"}', "a: 'xxxxxxxxxxxxxxxxxx…xxxxx (50 characters)' is not int64", {"a": None}),
]


@pytest.mark.parametrize(("fields", "reason", "nulled"), MISFITS, ids=lambda each: str(each)[:30])
def test_a_value_that_does_not_fit_names_its_field_and_only_that_is_null(
    fields: str, reason: str, nulled: dict[str, Any]
) -> None:
    whole = {"a": 1, "t": "2026-01-01T00:00:00Z", "n": {"x": "y"}, "l": [1.5]}
    messages = column(json.dumps(whole).encode(), json.dumps(whole | json.loads(fields)).encode(), b'"no object"', None)
    sentence = f"the value at offset 1 of orders-0 does not match the schema: {reason}"
    with pytest.raises(InvalidValueError) as caught:
        FAILS.convert(messages, place)
    assert str(caught.value) == f"{sentence}: {WAY_OUT}"
    noted = InvalidValues()
    rows: Any = Json(SCHEMA, on_invalid="null", nulls=noted).convert(messages, place)
    assert rows.type == FAILS.arrow_type
    good = FAILS.convert(messages.slice(0, 1), place).to_pylist()[0]
    assert rows.to_pylist() == [good, good | nulled, None, None]
    assert noted.count == 2
    assert Json(SCHEMA, on_invalid="null", null_whole=True).convert(messages, place).to_pylist() == [good, *[None] * 3]
    alone: Any = Json(SCHEMA, on_invalid="null", nulls=(first := InvalidValues())).convert(messages.slice(1, 1), place)
    assert (alone.to_pylist(), first.count) == ([good | nulled], 1)
    assert first.first == sentence.replace("offset 1", "offset 0")


@given(st.lists(st.none() | st.dictionaries(st.sampled_from('ab\n"{}'), st.integers(-9, 9) | st.text(max_size=4))))
def test_any_objects_are_what_python_reads(objects: list[dict[str, Any] | None]) -> None:
    kind = Json(pa.schema([("a", pa.int64())]), on_invalid="null")
    rows: Any = kind.convert(column(*(json.dumps(one).encode() for one in objects)), place)
    numbers = [None if one is None else {"a": one.get("a")} for one in objects]
    expected = [one and {"a": None if isinstance(one["a"], str) else one["a"]} for one in numbers]
    assert rows.to_pylist() == expected


def test_a_schema_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="no field"):
        Json(pa.schema([]))
    sentence = (
        "^the schema of JSON has b as month_day_nano_interval, which pyarrow does not read from JSON: use a string"
    )
    two: Any = [pa.field("a", pa.int64()), pa.field("b", pa.month_day_nano_interval())]
    with pytest.raises(ConfigError, match=sentence):
        Json(pa.schema(two))
    with pytest.raises(ConfigError, match="fail or null"):
        Json(SCHEMA, on_invalid="skip")  # type: ignore[arg-type]


VALID = [b"{}", b"[1, 2]", b' {"a": {"b": null}} \n', b"null", b'"\xc3\xa9"', b"-1.5e3", b"9" * 400]
NO_JSON = [
    b"", b"{", b"\xff", b'"\xff"', b'1, "w": 2', b"1 2", b"{}\n{}", b"NaN", b"01", b'"\n"', b"[" * 100_000,
    b"\xef\xbb\xbf{}",
]  # fmt: skip


def test_without_a_schema_any_json_stays_its_text() -> None:
    messages = column(*VALID, None)
    rows: Any = Json().convert(messages, place)
    assert is_json(rows.type)
    assert is_json(Json().arrow_type)
    assert rows.to_pylist() == [*(message.decode() for message in VALID), None]
    assert is_json(Json().convert(messages.slice(0, 0), place).type)
    assert json_values(rows) == [*(json.loads(message) for message in VALID), None]


@pytest.mark.parametrize("message", NO_JSON, ids=lambda message: repr(message[:30]))
def test_invalid_json_is_named_or_null(message: bytes) -> None:
    messages = column(b'{"a": 7}', message, b"[]")
    assert Json(on_invalid="null").convert(messages, place).to_pylist() == ['{"a": 7}', None, "[]"]
    with pytest.raises(InvalidValueError, match=r"^the value at offset 1 of orders-0 is not JSON: read it as binary"):
        Json().convert(messages, place)
