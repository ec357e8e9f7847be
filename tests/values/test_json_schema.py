"""A schema of JSON messages, written in JSON."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tieredstore.errors import ConfigError
from tieredstore.values.json_text import parse_json_schema


def test_a_schema_is_names_and_types() -> None:
    text = '{"a": "long", "b": {"c": ["string"]}, "d": "decimal(9, 2)", "e": "timestamp", "f": "bool"}'
    assert parse_json_schema(text) == pa.schema(
        [
            ("a", pa.int64()),
            ("b", pa.struct([("c", pa.list_(pa.string()))])),
            ("d", pa.decimal128(9, 2)),
            ("e", pa.timestamp("us", "UTC")),
            ("f", pa.bool_()),
        ]
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        ('{"a": "number"}', "'a' is of the type 'number'"),
        ('{"a": "decimal(99, 2)"}', "decimal"),
        ('{"a": []}', "'a' is of the type"),
        ('{"a": {}}', "'a' is of the type"),
        ('{"a": ' + "[" * 40 + '"string"' + "]" * 40 + "}", "levels deep"),
        ('{"a": ' + "[" * 100_000, "not JSON"),
    ],
    ids=lambda value: value[:20],
)
def test_text_that_is_no_schema_is_an_error(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_json_schema(text)
