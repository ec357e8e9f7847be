"""The compiled JSON reader accepts only input that the standard library accepts, and returns the same values."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import pytest
import zstandard

from tieredstore.errors import ManifestCorruptError
from tieredstore.format.chunk_index import FixedChunkIndex, VariableChunkIndex, encode_chunk_sizes
from tieredstore.format.json_object import JsonObject
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest, WrappedDataKey
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid

_CHUNK = 65_536
_SEGMENT = RemoteLogSegmentId(TopicIdPartition(Uuid(b"partition of one"), "orders", 7), Uuid(b"a segment of it!"))
_NUMBERS = (b"-1", b"-2", b"00", b"", b"2147483648", b"9223372036854775807", b"9223372036854775808", b"9" * 40, b"1e3")
_SIZES = re.compile(rb'(?<="transformedChunks":")[^"]*')


def damaged_manifests(seed: int, count: int) -> Iterator[bytes]:
    """Yield ``count`` texts of manifests, of which few are intact. The same seed gives the same texts."""
    chance = random.Random(seed)
    for _ in range(count):
        sizes = [chance.randrange(29, _CHUNK) for _ in range(chance.choice((1, 2, 7, 300)))]
        whole = _manifest(chance, sizes).to_bytes()
        yield _with_damaged_sizes(chance, whole, sizes) if chance.random() < 0.4 else damaged_text(chance, whole)


def damaged_text(chance: random.Random, whole: bytes) -> bytes:
    """Return ``whole`` with a bit flipped, bytes removed, repeated or inserted, or one number changed."""
    text, place = bytearray(whole), chance.randrange(len(whole))
    match chance.randrange(8):
        case 0:
            del text[place:]
        case 1:
            del text[place : place + chance.randrange(1, 4)]
        case 2:
            text[place:place] = text[place : place + chance.randrange(1, 300)]
        case 3:
            text[place:place] = chance.randbytes(1)
        case 4:
            number = chance.choice(list(re.finditer(rb"\d+", whole)))
            text[number.start() : number.end()] = chance.choice(_NUMBERS)
        case _:
            text[place] ^= 1 << chance.randrange(8)
    return bytes(text)


def _with_damaged_sizes(chance: random.Random, whole: bytes, sizes: list[int]) -> bytes:
    """Return valid text whose packed list of sizes is damaged."""
    binary = bytearray(encode_chunk_sizes(sizes))
    for _ in range(chance.randrange(3)):
        # Damage the front more often, because counts and widths are there.
        binary[chance.randrange(chance.choice((min(9, len(binary)), len(binary))))] = chance.randrange(256)
    if chance.random() < 0.3:
        del binary[chance.randrange(len(binary)) :]
    packed = zstandard.ZstdCompressor(write_content_size=chance.random() < 0.9).compress(bytes(binary))
    text = base64.b64encode(packed[: chance.choice((len(packed), chance.randrange(len(packed))))])
    return _SIZES.sub(lambda _: text, whole)


def _manifest(chance: random.Random, sizes: list[int]) -> SegmentManifest:
    file_size = len(sizes) * _CHUNK
    end, entries = 0, list[IndexEntry]()
    for _ in range(5):
        entries.append(IndexEntry(end, chance.randrange(29, 300)))
        end += entries[-1].size
    epochs = tuple((epoch, 23 + epoch) for epoch in range(chance.choice((0, 1, 3, 64, 65))))
    metadata = RemoteLogSegmentMetadata(_SEGMENT, 23, 2000, file_size, 1_700_000_000_123, 3, -1, epochs, True)
    is_variable = chance.random() < 0.8
    return SegmentManifest(
        VariableChunkIndex.from_sizes(_CHUNK, file_size, sizes)
        if is_variable
        else FixedChunkIndex(_CHUNK, file_size, _CHUNK, _CHUNK),
        SegmentIndexes(entries[0], entries[1], entries[2], entries[3], chance.choice((entries[4], None))),
        compression=is_variable,
        encryption=None
        if not is_variable or chance.random() < 0.5
        else WrappedDataKey("k1", chance.randbytes(40), chance.randbytes(32)),
        metadata=chance.choice((None, metadata)),
    )


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
