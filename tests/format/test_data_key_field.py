"""A new data key in a manifest: one text is replaced, and every other byte stays."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.paths import GOLDEN
from tieredstore.errors import ManifestCorruptError
from tieredstore.format.data_key_field import same_but_for_data_key, with_data_key
from tieredstore.format.manifest import ManifestRules, SegmentManifest, WrappedDataKey

MANIFESTS = sorted(GOLDEN.rglob("*.rsm-manifest"))
ENCRYPTED = [path for path in MANIFESTS if SegmentManifest.from_bytes(path.read_bytes()).encryption is not None]
DOCUMENT: dict[str, Any] = json.loads(ENCRYPTED[0].read_bytes())
BLANKS = st.text(" \t\r\n", max_size=3)


@pytest.mark.parametrize("path", ENCRYPTED, ids=lambda path: path.name)
def test_of_the_plugins_manifests_one_text_changes(path: Path) -> None:
    raw = path.read_bytes()
    old = SegmentManifest.from_bytes(raw).encryption
    assert old is not None
    changed = with_data_key(raw, "key-7", b"\x00\x01new")
    assert changed == raw.replace(json.dumps(old.text).encode(), b'"key-7:AAFuZXc="')
    assert SegmentManifest.from_bytes(changed).to_bytes() == changed


def test_a_manifest_without_encryption_has_nothing_to_change() -> None:
    plain = next(path for path in MANIFESTS if path not in ENCRYPTED)
    with pytest.raises(ManifestCorruptError, match="not encrypted"):
        with_data_key(plain.read_bytes(), "key1", b"x")


def test_manifests_with_the_smallest_chunks_are_compared_too() -> None:
    """The settings of a bucket may allow smaller chunks than the default rules."""
    document = json.loads(next(raw for raw in map(Path.read_bytes, ENCRYPTED) if b'"fixed"' in raw))
    size = 100_000
    document["chunkIndex"] |= {
        "originalChunkSize": 1, "originalFileSize": size, "transformedChunkSize": 29, "finalTransformedChunkSize": 29,
    }  # fmt: skip
    del document["remoteLogSegmentMetadata"]
    raw = json.dumps(document).encode()
    rules = ManifestRules(min_chunk_size=1)
    assert same_but_for_data_key(raw, with_data_key(raw, "key-7", b"new", rules))
    document["chunkIndex"]["originalFileSize"] = size + 1
    assert not same_but_for_data_key(raw, json.dumps(document).encode())


def spelled(name: str, escaped: frozenset[int]) -> str:
    """Return a name as a JSON string, with some letters as Unicode escapes."""
    letters = (f"\\u{ord(letter):04x}" if place in escaped else letter for place, letter in enumerate(name))
    return f'"{"".join(letters)}"'


numbers = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
).map(json.dumps)
key_ids = st.text(st.characters(codec="utf-8", exclude_characters=":"), min_size=1).filter(str.strip)


@st.composite
def manifest_texts(draw: st.DrawFn) -> tuple[bytes, str, str]:
    """Draw a manifest that no plugin writes but every reader accepts. Return it, the part of it before the data key's
    text, and that text.
    """

    def members(fields: list[tuple[str, str]]) -> str:
        blanks = [draw(BLANKS) for _ in range(4)]
        pieces = (f"{blanks[0]}{name}{blanks[1]}:{blanks[2]}{value}{blanks[3]}" for name, value in fields)
        return f"{{{','.join(pieces)}}}"

    marker = "the data key's text"
    inner = [(spelled("dataKey", draw(st.frozensets(st.integers(0, 6)))), marker), ('"aad"', '"AAAA"')]
    if draw(st.booleans()):
        inner.insert(0, ('"dataKey"', '"other:b3RoZXI="'))
    if draw(st.booleans()):
        inner.append(('"a field of a later version"', draw(json_values)))
    fields = [(json.dumps(name), json.dumps(value)) for name, value in DOCUMENT.items() if name != "encryption"]
    fields += draw(st.lists(st.tuples(st.text(min_size=25).map(json.dumps), json_values), max_size=3))
    if draw(st.booleans()):
        fields.append(('"encryption"', '{"dataKey":"first:Zmlyc3Q=","aad":"AAAA"}'))
    fields.append((spelled("encryption", draw(st.frozensets(st.integers(0, 9)))), members(inner)))
    old_text = json.dumps(f"{draw(key_ids)}:b2xk", ensure_ascii=draw(st.booleans()))
    head, tail = f"{draw(BLANKS)}{members(fields)}".split(marker)
    behind = draw(st.sampled_from([b"", b"\n", b"\xff\xfe garbage }", b'{"encryption":1}']))
    return (head + old_text + tail).encode() + behind, head, old_text


@given(manifest=manifest_texts(), key_id=key_ids, wrapped=st.binary(min_size=1, max_size=40))
@settings(max_examples=examples(200))
def test_any_manifest_that_is_accepted_changes_in_that_text_alone(
    manifest: tuple[bytes, str, str], key_id: str, wrapped: bytes
) -> None:
    raw, head, old_text = manifest
    before = SegmentManifest.from_bytes(raw)
    changed = with_data_key(raw, key_id, wrapped)
    assert before.encryption is not None
    after = SegmentManifest.from_bytes(changed)
    assert after == dataclasses.replace(before, encryption=WrappedDataKey(key_id, wrapped, before.encryption.aad))
    start = len(head.encode())
    rest = raw[start + len(old_text.encode()) :]
    assert changed[:start] == raw[:start]
    assert changed[len(changed) - len(rest) :] == rest
