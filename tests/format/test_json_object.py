"""The compiled JSON reader accepts only input that the standard library accepts, and returns the same values."""

from __future__ import annotations

import json
import random
from typing import Any, Final, NoReturn

import pytest

from tests.support.damage.manifest_mutations import damaged_manifests
from tieredstore.errors import ManifestCorruptError
from tieredstore.format.json_object import JsonObject

_CRUMBS: Final = (
    *(b"{", b"}", b"[", b"]", b":", b",", b" ", b"\n", b'"', b"\\", b"\x00", b"\x1f", b"\x80", b"\xc3\xa9"),
    *(
        b"0",
        b"01",
        b"-",
        b"-0",
        b"1e3",
        b"1E400",
        b"-1.5",
        b"9223372036854775808",
        b"true",
        b"nul",
        b"NaN",
        b"-Infinity",
    ),
    *(b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\u0000"', b'"\\x"', b'"version":1,'),
)
_VALUES: Final = {
    "a long number": "9" * 1000,
    "a number that is too long": "9" * 1001,
    "a number that the compiled reader takes": "9" * 4000,
    "a number that no reader takes": "9" * 5000,
    "a long fraction": "1." + "3" * 2000,
    "a text of digits": '"' + "9" * 2000 + '"',
    "a number beyond all": "1e999",
    "a number below all": "1e-400",
    "a negative zero": "-0",
    "not a number": "NaN",
    "no bounds": "-Infinity",
    "half of a character": '"\\ud83d"',
    "halves in the wrong order": '"\\ude00\\ud83d"',
    "a whole one": '"\\ud83d\\ude00"',
    "nested": "[" * 150 + "]" * 150,
    "nested more": '{"a":' * 300 + "1" + "}" * 300,
    "nested too deeply": "[" * 90_000 + "]" * 90_000,
    "a leading zero": "01",
    "no digits before the point": ".5",
    "no digits behind it": "5.",
    "a number that is too long, hidden": "9" * 1001 + ',"x":1',
    "not a number, hidden": 'NaN,"x":1',
}
_REFUSED: Final = {
    *("a number that is too long", "a number that the compiled reader takes", "a number that no reader takes"),
    *("not a number", "no bounds", "nested too deeply", "a leading zero", "no digits before the point"),
    *("no digits behind it", "a number that is too long, hidden", "not a number, hidden"),
}


def read_plainly(raw: bytes) -> dict[str, Any] | None:
    """Parse with the standard library, without its extensions of JSON; return None if the value is not an object."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(name)

    def whole(digits: str) -> int:
        return refuse(digits) if len(digits) > 1000 else int(digits)

    text = raw.decode("utf-8", "surrogateescape").lstrip(" \t\r\n")
    try:
        value, stop = json.JSONDecoder(parse_constant=refuse, parse_int=whole).raw_decode(text)
        text[:stop].encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def check(raw: bytes) -> bool:
    """Compare both readers; return True if they read an object."""
    expected = read_plainly(raw)
    if expected is None:
        with pytest.raises(ManifestCorruptError):
            JsonObject.parse(raw)
        return False
    read = JsonObject.parse(raw)
    # Compare the values as text: 1, 1.0 and True are equal, but mean different things.
    assert repr({name: read.raw(name) for name in expected}) == repr(expected)
    return True


@pytest.mark.slow
def test_texts_with_damage_are_read_as_the_standard_library_reads_them() -> None:
    chance, read = random.Random(3), 0
    for raw in damaged_manifests(7, 1_500):
        text = bytearray(raw)
        for _ in range(chance.choice((0, 1, 1, 2))):
            place, taken = chance.randrange(len(text) + 1), chance.choice((0, 0, 1, 3))
            text[place : place + taken] = chance.choice(_CRUMBS)
        read += check(bytes(text))
    assert 300 < read < 1200


@pytest.mark.parametrize(("name", "value"), _VALUES.items(), ids=_VALUES.keys())
@pytest.mark.parametrize("behind", ["", "\n", " }", "\udcff"], ids=["alone", "newline", "more", "no UTF-8"])
def test_a_value_that_no_manifest_has_is_read_or_refused_the_same(name: str, value: str, behind: str) -> None:
    raw = f' {{"x":{value},"y":1,"y":"é"}}{behind}'.encode("utf-8", "surrogateescape")
    assert check(raw) is (name not in _REFUSED)
