"""Finds the fields of a JSON object for which a schema has no column, so that a pipeline can keep them as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pydantic import JsonValue

_decoder: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\n\r]*")


class UnmappedFields:
    """Finds the fields of objects for which a schema has no column."""

    def __init__(self, schema: pa.Schema) -> None:
        self._fields: Mapping[str, pa.DataType] = {field.name: field.type for field in schema}

    def of(self, text: str) -> str | None:
        """Return a JSON object of the fields without a column, each as written in ``text``; None if all fields have a
        column.

        Raise ValueError if the text is not an object, or if it has a field twice, because a column holds only one
        value.
        """
        start = _after_space(text, 0)
        try:
            if text[start] != "{":
                raise ValueError("it is not an object")
            rest, end = _beyond(text, start, self._fields)
            if _after_space(text, end) != len(text):
                raise ValueError("more follows the object")
        except (IndexError, StopIteration, RecursionError):
            raise ValueError("it is not JSON") from None
        return rest


def _beyond(text: str, at: int, fields: Mapping[str, pa.DataType]) -> tuple[str | None, int]:
    """Find the fields of the JSON object at position ``at`` that are not in ``fields``. Return them as the text of an
    object (None if there are none), and the position after the object.
    """
    rest: list[str] = []
    names: set[str] = set()
    at = _after_space(text, at + 1)
    while text[at] != "}":
        name, colon = _name(text, at)
        if name in names:
            raise ValueError("it has a field twice")
        names.add(name)
        start = _after_space(text, _after_space(text, colon) + 1)
        more, end = _of_field(text, start, fields.get(name))
        if more is not None:
            rest.append(f"{text[at:colon]}:{more}")
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return "{" + ",".join(rest) + "}" if rest else None, at + 1


def _name(text: str, at: int) -> tuple[str, int]:
    if text[at] != '"':
        raise ValueError("it is not JSON")
    name, end = _decoder.raw_decode(text, at)
    return str(name), end


def _of_field(text: str, start: int, kind: pa.DataType | None) -> tuple[str | None, int]:
    """Return the part of a field's value that its type ``kind`` does not include, and the position after the value.
    Without a type, that part is the whole value.
    """
    if kind is not None and pa.types.is_struct(kind) and text[start] == "{":
        return _beyond(text, start, {field.name: field.type for field in kind})
    value, end = _decoder.raw_decode(text, start)
    return (text[start:end] if kind is None or _has_more(value, kind) else None), end


def _has_more(content: JsonValue, kind: pa.DataType) -> bool:
    """Return True if an object in ``content`` has a field that its type in ``kind`` lacks."""
    if isinstance(content, list) and pa.types.is_list(kind):
        return any(_has_more(item, kind.value_type) for item in content)
    if isinstance(content, dict) and pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return any(name not in fields or _has_more(item, fields[name]) for name, item in content.items())
    return False


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
