"""Settings of the key ring: ``encryption.*``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tieredstore.config.fields import SettingsGroup, broken_rule
from tieredstore.config.values import BOOLEAN, PATH, URL, integer, string, words
from tieredstore.errors import excerpt

if TYPE_CHECKING:
    from tieredstore.config.source import SettingsReader

PAIRS: Final = "encryption.key.pairs"
# The group for the key pair's id matches greedily, because an id may contain dots.
_OF_PAIR: Final = re.compile(
    rf"{re.escape(PAIRS)}\.(.+)\.(?:public\.key\.file|private\.key\."
    r"(?:file|env|fd|passphrase\.(?:env|file)|kms|kms\.key|kms\.endpoint\.url))"
)


def _key_id(text: str) -> str:
    # Refuse a colon in a key id, because in the manifest a colon separates the id from the wrapped key.
    if not text.strip() or ":" in text:
        raise ValueError
    return text


def _some_name(text: str) -> str:
    if not text.strip() or "\0" in text or "\n" in text:
        raise ValueError
    return text.strip()


class EncryptionProperties(SettingsGroup):
    """The properties of the whole key ring."""

    enabled: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="encryption.enabled",
        description="Encrypt new segments. Must also be true to read encrypted segments.",
    )
    key_pair_id: Annotated[str | None, string("an id without ':'", _key_id)] = Field(
        default=None,
        alias="encryption.key.pair.id",
        description=(
            "Id of the key pair that encrypts the data keys of new segments. Required if encryption.enabled is true."
        ),
    )
    ids: Annotated[tuple[str, ...], words("ids without ':', separated by commas", _key_id)] = Field(
        default=(),
        alias=PAIRS,
        description=(
            "Ids of all key pairs that readers may need, including the one in encryption.key.pair.id. Required if "
            "encryption.enabled is true."
        ),
    )

    required: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="encryption.required",
        description=(
            "Refuse to read segments that are not encrypted. If a bucket holds only encrypted segments, an "
            "unencrypted segment is forged. Needs encryption.enabled. The plugin lacks this property."
        ),
    )

    @model_validator(mode="after")
    def _complete(self) -> EncryptionProperties:
        if self.required and not self.enabled:
            raise broken_rule("encryption.required", "is true, but encryption.enabled is not: set both to true")
        if not self.enabled:
            return self
        if self.key_pair_id is None:
            raise broken_rule(
                "encryption.key.pair.id",
                "is missing: encryption.enabled is true, so set the id of the key pair for new segments",
            )
        if not self.ids:
            raise broken_rule(PAIRS, "is missing: encryption.enabled is true, so list the ids of the key pairs")
        if self.key_pair_id not in self.ids:
            raise broken_rule(
                "encryption.key.pair.id",
                f"is {excerpt(self.key_pair_id)!r}, which {PAIRS} does not list: add the id to the list",
            )
        return self


class KeyPairSettings(SettingsGroup):
    """The files and settings of one key pair. The property names begin with ``encryption.key.pairs.<id>.``.

    The private key comes from exactly one of file, variable and descriptor. The group contains the name of that source,
    never a key.
    """

    id: str
    public_key_file: Annotated[Path, PATH] = Field(
        alias="public.key.file", description="File that contains the public key (PEM, X.509)."
    )
    private_key_file: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="private.key.file",
        description=(
            "File that contains the private key (PEM, PKCS#8). Required, unless one of the next two properties is set."
        ),
    )
    private_key_env: Annotated[str | None, string("the name of an environment variable", _some_name)] = Field(
        default=None,
        alias="private.key.env",
        description=(
            "Name of the environment variable that contains the private key as PEM. The plugin lacks this property."
        ),
    )
    private_key_fd: Annotated[int | None, integer(0)] = Field(
        default=None,
        alias="private.key.fd",
        description=(
            "Number of an open file descriptor from which the private key is read as PEM. "
            "The plugin lacks this property."
        ),
    )
    passphrase_env: Annotated[str | None, string("the name of an environment variable", _some_name)] = Field(
        default=None,
        alias="private.key.passphrase.env",
        description=(
            "Name of the environment variable that contains the private key's passphrase. "
            "The plugin lacks this property."
        ),
    )
    passphrase_file: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="private.key.passphrase.file",
        description="File whose first line is the private key's passphrase. The plugin lacks this property.",
    )
    kms: Annotated[str | None, string("aws, gcp, azure, vault, or an installed service", _some_name)] = Field(
        default=None,
        alias="private.key.kms",
        description=(
            "Key management service that decrypts the private key. `tieredstore keys seal` encrypts it. "
            "The plugin lacks this property."
        ),
    )
    kms_key: Annotated[str | None, string("the key's name at the service", _some_name)] = Field(
        default=None,
        alias="private.key.kms.key",
        description=(
            "Name of the key at the service: an ARN, a resource name, a key's URL, or Vault's `mount/key`. "
            "The plugin lacks this property."
        ),
    )
    kms_endpoint_url: Annotated[str | None, URL] = Field(
        default=None,
        alias="private.key.kms.endpoint.url",
        description="URL of the service. If unset, the service's usual URL is used. The plugin lacks this property.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> KeyPairSettings:
        given = [
            name
            for name, value in (
                ("private.key.file", self.private_key_file),
                ("private.key.env", self.private_key_env),
                ("private.key.fd", self.private_key_fd),
            )
            if value is not None
        ]
        if not given:
            raise self._make_error("private.key.file", "is missing: set it to the path of the private key")
        if len(given) > 1:
            raise self._make_error(
                given[1], f"cannot be set together with {given[0]}: set only one source of the private key"
            )
        if self.passphrase_env is not None and self.passphrase_file is not None:
            raise self._make_error(
                "private.key.passphrase.file",
                "cannot be set together with private.key.passphrase.env: set only one of the two",
            )
        return self

    @model_validator(mode="after")
    def _whole_service(self) -> KeyPairSettings:
        if self.kms is None:
            for name, value in (("key", self.kms_key), ("endpoint.url", self.kms_endpoint_url)):
                if value is not None:
                    raise self._make_error(
                        f"private.key.kms.{name}", "is set without private.key.kms: also set the service's name"
                    )
            return self
        if self.kms_key is None:
            raise self._make_error(
                "private.key.kms.key", "is missing: private.key.kms is set, so set the name of the service's key"
            )
        if self.passphrase_env is not None or self.passphrase_file is not None:
            raise self._make_error(
                "private.key.kms",
                "cannot be set together with a passphrase: a key that a service encrypted has no passphrase",
            )
        return self

    def _make_error(self, name: str, why: str) -> PydanticCustomError:
        return broken_rule(f"{PAIRS}.{self.id}.{name}", why)


class EncryptionSettings(SettingsGroup):
    """The settings of all key pairs. The pair ``key_pair_id`` wraps new data keys. With ``required``, unencrypted
    segments are refused."""

    key_pair_id: str
    key_pairs: tuple[KeyPairSettings, ...]
    required: bool = False


def pair_id(name: str) -> str | None:
    """Return the ``<id>`` of a name like ``encryption.key.pairs.<id>.public.key.file``; None for other names."""
    match = _OF_PAIR.fullmatch(name)
    return match[1] if match else None


def read_encryption(reader: SettingsReader) -> EncryptionSettings | None:
    """Return the key ring's settings; None without encryption, or if the reader has recorded problems."""
    ring = reader.read(EncryptionProperties)
    if ring is None or not ring.enabled or ring.key_pair_id is None:
        return None
    # Report a key with an id that is not in the list. The user probably forgot the id in the list. Without this error,
    # the mistake would only show when a read of the pair's segments fails.
    for name in reader.values:
        if (key_id := pair_id(name)) is not None and key_id not in ring.ids:
            reader.note(
                name,
                f"belongs to a key pair that {PAIRS} does not list: add the id to the list or remove this property",
            )
    pairs = [
        reader.read(KeyPairSettings, under=f"{PAIRS}.{listed_id}.", fields={"id": listed_id}) for listed_id in ring.ids
    ]
    return EncryptionSettings(
        key_pair_id=ring.key_pair_id, key_pairs=tuple(pair for pair in pairs if pair), required=ring.required
    )
