"""Replacement of a manifest's ``encryption.dataKey``, the only text that key rotation changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from tieredstore.errors import ManifestCorruptError
from tieredstore.format.json_object import json_bytes, json_value_at
from tieredstore.format.manifest import DEFAULT_RULES, ManifestRules, SegmentManifest, WrappedDataKey

_ANY: Final = "any"
"""Text in place of the key pair's id, so that two manifests compare equal although their key pairs differ."""


def with_data_key(raw: bytes, key_id: str, wrapped: bytes, rules: ManifestRules = DEFAULT_RULES) -> bytes:
    """Return the manifest ``raw`` with a re-wrapped data key. All other bytes stay the same."""
    manifest = SegmentManifest.from_bytes(raw, None, rules)
    if manifest.encryption is None:
        raise ManifestCorruptError(
            "the manifest says that the segment is not encrypted, so it has no data key to re-wrap"
        )
    rewrapped = WrappedDataKey(key_id, wrapped, manifest.encryption.aad)
    # Bytes that are not UTF-8 can only follow the JSON object. ``surrogateescape`` keeps them unchanged.
    text = raw.decode("utf-8", "surrogateescape")
    encryption, _ = _value_of(text, len(text) - len(text.lstrip(" \t\r\n")), "encryption")
    start, stop = _value_of(text, encryption, "dataKey")
    new_text = json_bytes(rewrapped.text).decode("utf-8")
    changed = (text[:start] + new_text + text[stop:]).encode("utf-8", "surrogateescape")
    if SegmentManifest.from_bytes(changed, None, rules) != dataclasses.replace(manifest, encryption=rewrapped):
        raise ManifestCorruptError(
            "the data key in the manifest cannot be replaced without other changes; copy the segment again"
        )
    return changed


def same_but_for_data_key(raw: bytes, other: bytes) -> bool:
    """Return True if two manifests are equal except for the wrapped data key, which a key rotation changes.

    Return False if the texts differ and one of them is not a valid manifest.
    """
    try:
        return raw == other or _without_data_key(raw) == _without_data_key(other)
    except ManifestCorruptError:
        return False


def _without_data_key(raw: bytes) -> bytes:
    # Accept chunks of any size, because the settings of a bucket may allow smaller ones than the default rules.
    return with_data_key(raw, _ANY, b"any", ManifestRules(min_chunk_size=1))


def _value_of(text: str, start: int, name: str) -> tuple[int, int]:
    """Return the bounds of a field's value in the object at ``start``. If the name occurs twice, the last field
    counts."""
    spans = [span for member, span in _members(text, start) if member == name]
    if not spans:
        raise ManifestCorruptError(f"the manifest has no field {name!r} that could be changed")
    return spans[-1]


def _members(text: str, start: int) -> Iterator[tuple[object, tuple[int, int]]]:
    """Yield each field of the object at ``start``: its name, and the bounds of its value. The text must be valid
    JSON."""
    place = _past_blanks(text, start + 1)
    while text[place] != "}":
        name, place = json_value_at(text, place)
        place = _past_blanks(text, _past_blanks(text, place) + 1)  # the colon
        _, stop = json_value_at(text, place)
        yield name, (place, stop)
        place = _past_blanks(text, stop)
        if text[place] == ",":
            place = _past_blanks(text, place + 1)


def _past_blanks(text: str, place: int) -> int:
    while text[place] in " \t\r\n":
        place += 1
    return place
