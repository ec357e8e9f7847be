"""Custom metadata: vectors of the plugin, and one wrong value for each part."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.segments import segments
from tests.support.paths import GOLDEN
from tieredstore.errors import CorruptDataError
from tieredstore.format.custom_metadata import CustomMetadata, CustomMetadataField

MAIN_PATH = "topic1-lZ6vvmajTWKDBUTV6SQAtQ/7/00000000000000000023-adh9f8BMS4anaUnD8KWfWg"

VECTORS = [
    (CustomMetadata(), "00"),
    (CustomMetadata(100, None, "foo"), "02 00 02 c801 02 04 04 666f6f"),
    (CustomMetadata(object_prefix=""), "01 01 01 01"),
    (CustomMetadata(0), "01 00 01 00"),
    (CustomMetadata(-1), "01 00 01 01"),
    (CustomMetadata(64), "01 00 02 80 01"),
    (CustomMetadata(object_prefix="p" * 200), "01 01 ca01 c901" + "70" * 200),
    (
        CustomMetadata(123456789, "prefix/", MAIN_PATH),
        "03 00 04 aab4de75 01 08 08 7072656669782f 02 4c 4c" + MAIN_PATH.encode().hex(),
    ),
    (CustomMetadata(2**63 - 1), "01 00 0a feffffffffffffffff01"),
    (CustomMetadata(-(2**63)), "01 00 0a ffffffffffffffffff01"),
    (CustomMetadata(1, unknown=((3, b""), (300, b"ab"))), "03 00 01 02 03 00 ac02 02 6162"),
]

texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
unknown_fields = st.dictionaries(st.integers(3, 2**31 - 1), st.binary(max_size=20), max_size=4)
metadata = st.builds(
    CustomMetadata,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    texts,
    texts,
    unknown_fields.map(lambda fields: tuple(sorted(fields.items()))),
)


@pytest.mark.parametrize(("value", "raw"), VECTORS, ids=lambda vector: str(vector)[:40])
def test_the_bytes_are_the_plugins(value: CustomMetadata, raw: str) -> None:
    assert value.to_bytes() == bytes.fromhex(raw)
    assert CustomMetadata.from_bytes(bytes.fromhex(raw)) == value
    assert CustomMetadata.from_bytes(memoryview(bytes.fromhex(raw))) == value


def test_no_bytes_are_no_fields() -> None:
    assert CustomMetadata.from_bytes(b"") == CustomMetadata()


@given(metadata)
def test_any_fields_come_back(value: CustomMetadata) -> None:
    assert CustomMetadata.from_bytes(value.to_bytes()) == value


def test_metadata_that_a_broker_stored_are_read_and_written_back_alike() -> None:
    case = "10-prefix-masked-custommeta"
    paths = {segment.main_path: segment for segment in segments(case)}
    accepted = 0
    for line in (GOLDEN / case / "rlmm.jsonl").read_text().splitlines():
        record = base64.b64decode(json.loads(line)["value"])
        start = record.find(b"\x03\x00")
        if b"my/pre fix/p-" not in record:
            continue
        raw = record[start : start + record[start - 1] - 1] if record[start - 1] else record[start:]
        value = CustomMetadata.from_bytes(raw)
        assert value.object_prefix == "my/pre fix/p-"
        segment = paths[f"{value.object_prefix}{value.object_key}"]
        stored = [segment.stored(suffix).stat().st_size for suffix in ("log", "indexes", "rsm-manifest")]
        assert value.remote_size == sum(stored)
        assert value.to_bytes() == raw
        accepted += 1
    assert accepted == len(paths)


WRONG = [
    # bytes, their description, the expected reason
    ("01", "a field announced and none there", "next field has 1 bytes"),
    ("02 00 01 00", "two fields announced and one there", "next field has 1 bytes"),
    ("00 00", "a byte after no fields", "1 bytes after its last field"),
    ("01 00 01 00 00", "a byte after the last field", "1 bytes after its last field"),
    ("ffffffff07", "2^31-1 fields announced", "next field has 1 bytes"),
    ("ffffffff08", "more fields than int32", "above 2147483647"),
    ("ffffffffff01", "a count of six bytes", "a number of more than 5 bytes"),
    ("8080808080", "a count that does not end", "a number of more than 5 bytes"),
    ("80", "a count cut off", "next field has 1 bytes"),
    ("01 ffffffffff01 00", "a tag of six bytes", "a number of more than 5 bytes"),
    ("01 ffffffff0f 00", "a tag over int32", "above 2147483647"),
    ("02 00 01 00 00 01 02", "the same tag twice", "two fields with the tag 0"),
    ("02 09 00 09 00", "the same unknown tag twice", "two fields with the tag 9"),
    ("01 00 02 00", "a size beyond the end", "next field has 2 bytes"),
    ("01 09 ffffffff07", "a size of 2^31-1", "next field has 2147483647 bytes"),
    ("01 09 ffffffff0f", "a size over int32", "above 2147483647"),
    ("01 00 00", "REMOTE_SIZE without a byte", "next field has 1 bytes"),
    ("01 00 02 00 00", "REMOTE_SIZE with a byte too many", "1 bytes after its last field"),
    ("01 00 01 80", "REMOTE_SIZE cut off", "next field has 1 bytes"),
    ("01 00 0b 8080808080808080808001", "REMOTE_SIZE of eleven bytes", "a number of more than 10 bytes"),
    ("01 00 0a ffffffffffffffffff02", "REMOTE_SIZE over 64 bits", "above 18446744073709551615"),
    ("01 01 00", "OBJECT_PREFIX without a length", "next field has 1 bytes"),
    ("01 01 01 00", "OBJECT_PREFIX null", "null where text is needed"),
    ("01 01 01 02", "OBJECT_PREFIX longer than its field", "next field has 1 bytes"),
    ("01 01 02 01 61", "OBJECT_PREFIX shorter than its field", "1 bytes after its last field"),
    ("01 01 02 02 ff", "OBJECT_PREFIX not UTF-8", "not UTF-8"),
    ("01 02 01 00", "OBJECT_KEY null", "null where text is needed"),
    ("01 02 02 03 61", "OBJECT_KEY longer than its field", "next field has 2 bytes"),
    ("01 02 03 02 61 61", "OBJECT_KEY shorter than its field", "1 bytes after its last field"),
    ("01 02 04 04 eda080", "OBJECT_KEY with half a character", "not UTF-8"),
]


@pytest.mark.parametrize(("raw", "what", "reason"), WRONG, ids=[what for _, what, _ in WRONG])
def test_wrong_bytes_are_corrupt(raw: str, what: str, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        CustomMetadata.from_bytes(bytes.fromhex(raw))


TOLERATED = [
    ("02 02 02 02 61 00 01 02", "tags out of order", CustomMetadata(1, None, "a")),
    ("01 00 02 82 00", "a number in more bytes than it needs", CustomMetadata(1)),
    ("8000", "a count in more bytes than it needs", CustomMetadata()),
    ("01 07 02 abcd", "an unknown tag", CustomMetadata(unknown=((7, b"\xab\xcd"),))),
]


@pytest.mark.parametrize(("raw", "what", "value"), TOLERATED, ids=[what for _, what, _ in TOLERATED])
def test_unusual_bytes_are_read(raw: str, what: str, value: CustomMetadata) -> None:
    assert CustomMetadata.from_bytes(bytes.fromhex(raw)) == value


@given(st.binary(max_size=60) | metadata.map(CustomMetadata.to_bytes), st.data())
def test_any_bytes_are_fields_or_corrupt(raw: bytes, data: st.DataObject) -> None:
    damaged = bytearray(raw)
    if raw:
        damaged[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        value = CustomMetadata.from_bytes(damaged)
    except CorruptDataError:
        return
    assert CustomMetadata.from_bytes(value.to_bytes()) == value


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ([], CustomMetadata()),
        (["REMOTE_SIZE"], CustomMetadata(1)),
        (["OBJECT_PREFIX", "OBJECT_KEY"], CustomMetadata(None, "p", "k")),
        (["REMOTE_SIZE", "OBJECT_PREFIX", "OBJECT_KEY"], CustomMetadata(1, "p", "k")),
    ],
)
def test_only_the_configured_fields_stay(names: list[str], left: CustomMetadata) -> None:
    whole = CustomMetadata(1, "p", "k", ((9, b"x"),))
    assert whole.only([CustomMetadataField[name] for name in names]) == left
