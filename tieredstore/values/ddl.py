"""A schema of columns in the DDL of Spark and Hive: ``id BIGINT, tags ARRAY<STRING>`` or ``struct<id:bigint>``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from tieredstore.errors import ConfigError, quote

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
}
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)*`|[\w$-]+|'(?:[^'\\]|\\.)*'|[<>(),:])")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_DEPTH: Final = 32
_MOST_DIGITS: Final = 38


def parse_ddl(text: str) -> pa.Schema:
    """Parse a schema; raise ConfigError if the text is not one.

    Types are Spark's SQL names, ``DECIMAL(precision, scale)``, ``ARRAY<…>`` and ``STRUCT<…>``. Names may be in
    backquotes, and a colon may follow a name. ``NOT NULL`` and ``COMMENT '…'`` have no effect.
    """
    reading = _Reading(text)
    if reading.next_word() == "struct" and reading.peek(1) == "<":
        kind = reading.type(0)
        fields = [kind.field(number) for number in range(kind.num_fields)]
    else:
        fields = reading.fields(0, None)
    if reading.at < len(reading.tokens):
        raise ConfigError(f"the schema is not valid DDL from {quote(reading.tokens[reading.at])} on")
    return pa.schema(fields)


def format_ddl(schema: pa.Schema) -> str:
    """Return an inferred schema as text for :func:`parse_ddl`."""
    return ", ".join(f"{_quoted_name(each.name)} {_type_name(each.type)}" for each in schema)


def _quoted_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"ARRAY<{_type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{_quoted_name(each.name)} {_type_name(each.type)}' for each in kind)}>"
    return next(name for name, of_name in _TYPES.items() if of_name == kind).upper()


class _Reading:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        self.at = 0
        place, whole = 0, text.strip()
        while place < len(whole):
            match = _TOKEN.match(whole, place)
            if match is None:
                raise ConfigError(f"the schema is not valid DDL from {quote(whole[place : place + 20])} on")
            self.tokens.append(match[1])
            place = match.end()

    def peek(self, further: int = 0) -> str:
        """Return the next token, or the token ``further`` places after it; an empty text at the end."""
        place = self.at + further
        return self.tokens[place] if place < len(self.tokens) else ""

    def next_word(self) -> str:
        """Return the next token in lower case, to compare it with keywords."""
        return self.peek().lower()

    def take(self, wanted: str = "") -> str:
        """Take the next token, which must be ``wanted``."""
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise ConfigError(
                f"the schema is not valid DDL: {quote(wanted or 'a type')} is missing before {quote(token)}"
            )
        self.at += 1
        return token

    def fields(self, depth: int, end: str | None) -> list[pa.Field]:
        """Parse names and types up to the token ``end``, which remains the next token."""
        fields: list[pa.Field] = []
        names: set[str] = set()
        while True:
            token = self.take()
            name = token[1:-1].replace("``", "`") if token.startswith("`") else token
            if not name or (token == name and not re.fullmatch(r"[\w$-]+", token)):
                raise ConfigError(f"the schema is not valid DDL: {quote(token)} is not a column name")
            if name in names:
                raise ConfigError(f"the schema has the column {quote(name)} twice")
            names.add(name)
            if self.peek() == ":":
                self.at += 1
            fields.append(pa.field(name, self.type(depth)))
            self._pass_constraints()
            if self.peek() != ",":
                if end is not None and self.peek() != end:
                    raise ConfigError(
                        f"the schema is not valid DDL: {quote(end)} is missing before {quote(self.peek())}"
                    )
                return fields
            self.at += 1

    def _pass_constraints(self) -> None:
        if self.next_word() == "not" and self.peek(1).lower() == "null":
            self.at += 2
        if self.next_word() == "comment" and self.peek(1).startswith("'"):
            self.at += 1
            while self.peek().startswith("'"):
                self.at += 1

    def type(self, depth: int) -> pa.DataType:
        """Parse one type."""
        if depth > _MAX_DEPTH:
            raise ConfigError(f"the schema is nested more than {_MAX_DEPTH} levels deep")
        word = self.take().lower()
        match word:
            case "array":
                self.take("<")
                kind = pa.list_(self.type(depth + 1))
                self.take(">")
                return kind
            case "struct":
                self.take("<")
                fields = self.fields(depth + 1, ">")
                self.take(">")
                return pa.struct(fields)
            case "decimal" | "numeric" | "dec":
                return self._decimal()
            case "varchar" | "char":
                self._numbers()
                return pa.string()
            case _ if word in _TYPES:
                return _TYPES[word]
            case _:
                raise ConfigError(
                    f"the schema has the type {quote(word)}; there are {', '.join(_TYPES)}, decimal, array and struct"
                )

    def _decimal(self) -> pa.DataType:
        numbers = self._numbers() or [10]
        precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if not (0 < precision <= _MOST_DIGITS and scale <= precision):
            raise ConfigError(f"the schema has the invalid type decimal({precision}, {scale})")
        return pa.decimal128(precision, scale)

    def _numbers(self) -> list[int]:
        if self.peek() != "(":
            return []
        self.at += 1
        numbers: list[int] = []
        while self.peek() != ")":
            word = self.take()
            if word.isdecimal() and len(word) < 10:
                numbers.append(int(word))
            elif word != ",":
                raise ConfigError(f"the schema is not valid DDL: {quote(word)} is not a number")
        self.at += 1
        return numbers
