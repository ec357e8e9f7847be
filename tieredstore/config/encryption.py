"""Settings of the key ring: ``encryption.*``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, model_validator

from tieredstore.config.fields import SettingsGroup, broken_rule
from tieredstore.config.values import BOOLEAN, PATH, string, words
from tieredstore.errors import excerpt

if TYPE_CHECKING:
    from tieredstore.config.source import SettingsReader

PAIRS: Final = "encryption.key.pairs"
# Greedy in the middle: ids may hold dots.
_PAIR_FILE: Final = re.compile(rf"{re.escape(PAIRS)}\.(.+)\.(?:public|private)\.key\.file")


def _key_id(text: str) -> str:
    # The manifest joins key id and wrapped key by a colon.
    if not text.strip() or ":" in text:
        raise ValueError
    return text


class EncryptionProperties(SettingsGroup):
    """The properties of the key ring that do not name a key pair."""

    enabled: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="encryption.enabled",
        description="Encrypt what is written; reading encrypted segments needs it too, for their keys.",
    )
    key_pair_id: Annotated[str | None, string("an id without ':'", _key_id)] = Field(
        default=None,
        alias="encryption.key.pair.id",
        description="The active pair, which wraps the data keys of new segments; required with encryption.",
    )
    ids: Annotated[tuple[str, ...], words("ids without ':', separated by commas", _key_id)] = Field(
        default=(),
        alias=PAIRS,
        description="All key pairs that reading may need, the active one among them; required with encryption.",
    )

    required: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="encryption.required",
        description="Refuse segments that are stored in plain: once all of a bucket are encrypted, one that is not was "
        "put there by somebody else. Needs encryption.enabled. Not of the plugin.",
    )

    @model_validator(mode="after")
    def _complete(self) -> EncryptionProperties:
        if self.required and not self.enabled:
            raise broken_rule("encryption.required", "is true; it needs encryption.enabled")
        if not self.enabled:
            return self
        if self.key_pair_id is None:
            raise broken_rule(
                "encryption.key.pair.id", "is missing; encryption.enabled needs the id of the active pair"
            )
        if not self.ids:
            raise broken_rule(PAIRS, "is missing; encryption.enabled needs the list of key pair ids")
        if self.key_pair_id not in self.ids:
            raise broken_rule("encryption.key.pair.id", f"is {excerpt(self.key_pair_id)!r}, which is not in {PAIRS}")
        return self


class KeyPairFiles(SettingsGroup):
    """The files of one key pair; the properties' names start with ``encryption.key.pairs.<id>.``."""

    id: str
    public_key_file: Annotated[Path, PATH] = Field(
        alias="public.key.file", description="PEM file of the public key (X.509); required for every listed id."
    )
    private_key_file: Annotated[Path, PATH] = Field(
        alias="private.key.file",
        description="PEM file of the private key (PKCS#8, not encrypted); required for every listed id.",
    )


class EncryptionSettings(SettingsGroup):
    """The key ring: all its pairs, the id of the one that wraps new data keys, whether all segments need one."""

    key_pair_id: str
    key_pairs: tuple[KeyPairFiles, ...]
    required: bool = False


def pair_id(name: str) -> str | None:
    """The key pair that a property ``encryption.key.pairs.<id>.public|private.key.file`` is about, or None."""
    match = _PAIR_FILE.fullmatch(name)
    return match[1] if match else None


def read_encryption(reader: SettingsReader) -> EncryptionSettings | None:
    """The key ring, or None without encryption or after noting what is wrong."""
    ring = reader.read(EncryptionProperties)
    if ring is None or not ring.enabled or ring.key_pair_id is None:
        return None
    # An id that was forgotten in the list, most likely; otherwise it would show only when a segment of it is read.
    for name in reader.values:
        if (key_id := pair_id(name)) is not None and key_id not in ring.ids:
            reader.note(name, f"belongs to a key pair that {PAIRS} does not list")
    pairs = [
        reader.read(KeyPairFiles, under=f"{PAIRS}.{listed_id}.", fields={"id": listed_id}) for listed_id in ring.ids
    ]
    return EncryptionSettings(
        key_pair_id=ring.key_pair_id, key_pairs=tuple(pair for pair in pairs if pair), required=ring.required
    )
