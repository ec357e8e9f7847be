"""A JSON object. The reader is as lenient as the plugin's reader (Jackson), and no more lenient.

It accepts:

- fields in any order; if a name occurs twice, the last field counts
- whole numbers as text, or with a fraction (which is cut off)
- ``null`` as 0 or false, where the caller allows it
- true and false as text, or as 1 and 0
- anything after the object
- unknown fields, unless the name looks like a damaged name of a known field
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NoReturn, TypeAlias

from pydantic_core import from_json

from tieredstore.errors import ManifestCorruptError, quote
from tieredstore.limits import MAX_INT32

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""A JSON value."""

_MAX_DIGITS: Final = 1000  # no known field has more than 19; a number of many more digits would take long to parse
_LONG_NUMBER: Final = b"0" * (_MAX_DIGITS + 1)
_DIGITS_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
# Maximum number of JSON values, to protect memory: 5 million empty lists would take 400 MiB. A manifest has fifty
# values, and one for each leader epoch.
_MAX_VALUES: Final = 100_000
# Maximum size in bytes of a manifest with a character outside of ASCII. A single such character makes Python use more
# bytes for every character of the text. Real long texts in a manifest are base64, which is ASCII.
_MAX_WIDE: Final = 1 << 20
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-f]{4}|.)")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_TRUTH: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class JsonObject:
    """A JSON object and its path in the document. Every reading method raises ManifestCorruptError with the field's
    name.
    """

    __slots__ = ("_values", "_where")

    def __init__(self, values: dict[str, Json], where: str) -> None:
        self._values = values
        self._where = where

    @classmethod
    def parse(cls, raw: bytes | bytearray | memoryview) -> JsonObject:
        """Parse the object at the start of ``raw``. Raise ManifestCorruptError if ``raw`` does not begin with a JSON
        object in UTF-8.
        """
        _check_cost(raw := bytes(raw))
        document = _decode(raw)
        if not isinstance(document, dict):
            raise ManifestCorruptError(f"the manifest is not a JSON object but {quote(document)}")
        return cls(document, "")

    def refuse_damaged_names(self, known: AbstractSet[str]) -> None:
        """Refuse an unknown field if its name differs in only one character from the name of a missing known field.

        Unknown fields are accepted, so without this check one flipped bit could hide an optional field.
        """
        if self._values.keys() <= known:
            return
        # Compare only names of equal length, because a flipped bit does not change the length. A name of another length
        # may be a field of a later version.
        absent = known - self._values.keys()
        for name in self._values.keys() - known:
            for meant in absent:
                if len(name) == len(meant) and sum(a != b for a, b in zip(name, meant, strict=True)) == 1:
                    raise ManifestCorruptError(
                        f"the manifest's field {self._name(name)} looks like a damaged {meant!r}"
                    )

    def optional(self, name: str) -> Json:
        """Return the field's value, of any type; None if it is absent or null."""
        return self._values.get(name)

    def raw(self, name: str) -> Json:
        """Return the field's value, of any type. The field must be present, but may be null."""
        if name not in self._values:
            raise ManifestCorruptError(f"the manifest has no field {self._name(name)}")
        return self._values[name]

    def child(self, name: str) -> JsonObject:
        """Return the object in a field."""
        value = self.raw(name)
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return JsonObject(value, f"{self._where}{name}.")

    def text(self, name: str) -> str:
        """Return the text in a field."""
        value = self.raw(name)
        if not isinstance(value, str) or has_lone_surrogates(value):
            raise self._wrong(name, value, "text")
        return value

    def integer(self, name: str, *, null_is_zero: bool = False) -> int:
        """Return the number in a field, within 0..2^31-1. A fraction is cut off."""
        value = self._values.get(name)
        if type(value) is int and 0 <= value <= MAX_INT32:  # the usual case
            return value
        value = self.raw(name)
        if value is None and null_is_zero:
            return 0
        # Jackson converts texts to numbers, so the plugin accepts such a manifest.
        if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
            value = int(value)
        # bool is an int in Python. The lower bound is -1 (exclusive), because Java's cast truncates a number such as
        # -0.5 to 0.
        if isinstance(value, bool) or not isinstance(value, int | float) or not -1 < value <= MAX_INT32:
            raise self._wrong(name, value, f"a number within 0..{MAX_INT32}")
        return int(value)

    def boolean(self, name: str) -> bool:
        """Return the boolean in a field; null is false."""
        value = self.raw(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        if isinstance(value, str) and value.strip() in _TRUTH:
            return _TRUTH[value.strip()]
        if isinstance(value, int) and value in {0, 1}:
            return bool(value)
        raise self._wrong(name, value, "true or false")

    def _name(self, name: str) -> str:
        return quote(self._where + name)

    def _wrong(self, name: str, value: object, expected: str) -> ManifestCorruptError:
        return ManifestCorruptError(f"the manifest's field {self._name(name)} is {quote(value)}, not {expected}")


def has_lone_surrogates(text: str) -> bool:
    """Return True if ``text`` cannot be encoded in UTF-8, because a JSON escape stands for half of a surrogate pair."""
    return not text.isascii() and _SURROGATE.search(text) is not None


def json_value_at(text: str, place: int) -> tuple[Json, int]:
    """Return the JSON value that begins at ``place``, and its end. Raise ValueError if no value begins there."""
    value: tuple[Json, int] = _DECODER.raw_decode(text, place)
    return value


def json_bytes(document: Mapping[str, object] | str) -> bytes:
    """Return compact JSON in UTF-8, character for character as the plugin writes it."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Write hexadecimal digits of control characters in upper case, as Jackson does.
    return _ESCAPE.sub(_upper_hex, text).encode("utf-8")


def _decode(raw: bytes) -> Json:
    """Return the value that ``raw`` starts with."""
    # Try pydantic's reader first, because it is five times as fast as the standard library's. It refuses some valid
    # manifests (bytes after the object, lone surrogates, deep nesting), so let the standard library's reader try these
    # again. It accepts numbers that are too long, so do not use it for texts with such numbers.
    if _LONG_NUMBER not in raw.translate(_DIGITS_AS_ZEROS):
        try:
            quickly: Json = from_json(raw, allow_inf_nan=False, cache_strings="keys")
        except ValueError:
            pass
        else:
            return quickly
    # Only the JSON object must be UTF-8, not the bytes after it. Until the object's end is known, bytes that are not
    # UTF-8 become lone surrogates.
    text = raw.decode("utf-8", "surrogateescape").lstrip(" \t\r\n")
    try:
        document, stop = json_value_at(text, 0)
        text[:stop].encode("utf-8")
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number too long, or nested too deeply
        raise ManifestCorruptError(f"the manifest is not JSON: {_reason(error)}") from error
    return document


def _check_cost(raw: bytes) -> None:
    """Before parsing, refuse a text that would take many times its own size in memory."""
    if len(raw) <= _MAX_VALUES:
        return
    # One of these characters comes before each value. The count also includes these characters in texts and after the
    # object. That does no harm, because no real manifest comes near the limit.
    values = sum(raw.count(mark) for mark in (b",", b"[", b"{"))
    if values > _MAX_VALUES:
        raise ManifestCorruptError(
            f"the manifest holds about {values} values, but no writer writes more than {_MAX_VALUES}"
        )
    if len(raw) > _MAX_WIDE and not raw.isascii():
        raise ManifestCorruptError(
            f"the manifest has {len(raw)} bytes and is not plain ASCII; only a smaller manifest may hold other "
            "characters"
        )


def _upper_hex(escape: re.Match[str]) -> str:
    sequence = escape[0]
    return "\\u" + sequence[2:].upper() if sequence[1] == "u" else sequence


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "it is not UTF-8" if isinstance(error, UnicodeError) else str(error)


def _whole_number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number in it has {len(digits)} digits")
    return int(digits)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_whole_number)


_QUANTUM: Final = 4  # characters that make three bytes


def decode_base64(text: str, field: str, *, padded: bool) -> bytes:
    """Decode standard base64. Raise ManifestCorruptError, which names ``field``, for anything else.

    The URL-safe alphabet, line breaks and other characters are refused. Without ``padded``, the text may also leave out
    all ``=`` signs at its end.
    """
    if not padded and "=" not in text:
        text += "=" * (-len(text) % _QUANTUM)
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:  # binascii.Error, or a character outside ASCII
        raise ManifestCorruptError(f"{field} is not standard base64: {error}") from error
