"""The one text of a manifest that key rotation replaces, ``encryption.dataKey``, and nothing else of its bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from tieredstore.errors import ManifestCorruptError
from tieredstore.format.json_object import json_bytes, json_value_at
from tieredstore.format.manifest import SegmentManifest, WrappedDataKey
from tieredstore.format.manifest_rules import DEFAULT_RULES, ManifestRules

_ANY: Final = "any"
"""A key pair's id, to compare what stands around it."""


def with_data_key(raw: bytes, key_id: str, wrapped: bytes, rules: ManifestRules = DEFAULT_RULES) -> bytes:
    """The manifest ``raw`` with its data key wrapped anew, byte for byte the same otherwise.

    Unknown fields, their order, spaces and what stands behind the object stay. What is returned reads as a manifest
    that differs in the data key alone, or ManifestCorruptError is raised; so it is for one without encryption.
    """
    manifest = SegmentManifest.from_bytes(raw, None, rules)
    if manifest.encryption is None:
        raise ManifestCorruptError("the manifest has no encryption, and so no data key that could be wrapped anew")
    rewrapped = WrappedDataKey(key_id, wrapped, manifest.encryption.aad)
    # Bytes that are no UTF-8 can only stand behind the object; they travel through the text as they are.
    text = raw.decode("utf-8", "surrogateescape")
    encryption, _ = _value_of(text, len(text) - len(text.lstrip(" \t\r\n")), "encryption")
    start, stop = _value_of(text, encryption, "dataKey")
    new_text = json_bytes(rewrapped.text).decode("utf-8")
    changed = (text[:start] + new_text + text[stop:]).encode("utf-8", "surrogateescape")
    if SegmentManifest.from_bytes(changed, None, rules) != dataclasses.replace(manifest, encryption=rewrapped):
        raise ManifestCorruptError("the manifest cannot be changed in its data key alone; copy the segment anew")
    return changed


def same_but_for_data_key(raw: bytes, other: bytes) -> bool:
    """Whether two manifests are byte for byte the same but for how their data key is wrapped, as a rotation leaves
    them; texts that are none are not."""
    try:
        return raw == other or with_data_key(raw, _ANY, b"any") == with_data_key(other, _ANY, b"any")
    except ManifestCorruptError:
        return False


def _value_of(text: str, start: int, name: str) -> tuple[int, int]:
    """Where the value of a field begins and ends, of the object at ``start``; of equal names the last one counts."""
    spans = [span for member, span in _members(text, start) if member == name]
    if not spans:
        raise ManifestCorruptError(f"the manifest has no field {name!r} that could be changed")
    return spans[-1]


def _members(text: str, start: int) -> Iterator[tuple[object, tuple[int, int]]]:
    """The fields of the object at ``start``: each name, and where its value begins and ends. It is known to parse."""
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
