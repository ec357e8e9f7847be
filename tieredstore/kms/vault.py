"""HashiCorp Vault's transit engine, through hvac.

Address and credentials come from the same variables as for Vault's own tools: ``VAULT_ADDR``, ``VAULT_TOKEN`` (or the
file ``~/.vault-token``), ``VAULT_NAMESPACE``, ``VAULT_CACERT``.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from typing import Final, Protocol, Self, cast

import hvac
import requests
from hvac import exceptions

from tieredstore.errors import (
    ConfigError,
    KeyRingError,
    KeyServiceDeniedError,
    KeyServiceError,
    KeyServiceUnavailableError,
    TieredStoreError,
    excerpt,
    redact,
)
from tieredstore.kms.base import READ_TIMEOUT_S, KeySource

_WORD: Final = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_KEY: Final = re.compile(rf"(?:({_WORD}(?:/{_WORD})*)/)?({_WORD})")
_ECHO: Final = re.compile(r"[\w+/=.-]{40,}")
_ERRORS: Final = (exceptions.VaultError, requests.RequestException, KeyError, TypeError, binascii.Error)
_LATER: Final = (
    exceptions.RateLimitExceeded,
    exceptions.InternalServerError,
    exceptions.BadGateway,
    exceptions.VaultDown,
    requests.RequestException,
)


class _Transit(Protocol):
    """The part of ``hvac.Client.secrets.transit`` that this module uses. The SDK itself has no types."""

    def encrypt_data(self, name: str, plaintext: str, *, mount_point: str) -> Mapping[str, Mapping[str, str]]: ...

    def decrypt_data(self, name: str, ciphertext: str, *, mount_point: str) -> Mapping[str, Mapping[str, str]]: ...


class VaultKeySource(KeySource):
    """A key of the transit engine: ``KEY``, or ``MOUNT/KEY`` if the engine is not mounted at ``transit``."""

    def __init__(self, key: str, transit: _Transit) -> None:
        parts = _KEY.fullmatch(key)
        if parts is None:
            raise ConfigError(f"{excerpt(key)!r} is not a key of Vault's transit engine: expected KEY or MOUNT/KEY")
        self._mount, self._key = parts[1] or "transit", parts[2]
        self._transit = transit

    @classmethod
    def from_settings(cls, key: str, endpoint_url: str | None) -> Self:
        """Make the key; raise ConfigError if Vault's address is not set."""
        address = endpoint_url or os.environ.get("VAULT_ADDR")
        if not address:
            raise ConfigError("the address of Vault is not set: set VAULT_ADDR or private.key.kms.endpoint.url")
        # A redirection would send the token to another server, so do not follow redirections.
        client = hvac.Client(
            url=address,
            namespace=os.environ.get("VAULT_NAMESPACE"),
            timeout=int(READ_TIMEOUT_S),
            allow_redirects=False,
        )
        client.session.hooks["response"].append(_refuse_redirection)
        return cls(key, cast("_Transit", client.secrets.transit))

    def seal(self, secret: bytes) -> bytes:
        """Seal the secret by one ``encrypt`` request. Return the sealed text, which contains the key's version."""
        plaintext = base64.b64encode(secret).decode()
        try:
            answer = self._transit.encrypt_data(self._key, plaintext, mount_point=self._mount)
            return str(answer["data"]["ciphertext"]).encode()
        except _ERRORS as error:
            raise self._translate(error) from error

    def open(self, sealed: bytes) -> bytes:
        """Open the sealed text by one ``decrypt`` request."""
        ciphertext = sealed.decode("ascii", "replace")
        try:
            answer = self._transit.decrypt_data(self._key, ciphertext, mount_point=self._mount)
            return base64.b64decode(answer["data"]["plaintext"], validate=True)
        except _ERRORS as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> TieredStoreError:
        # The answer of a server or proxy may repeat the request, which contains the token or a key in base64. So remove
        # long words from the error message.
        key, why = f"{self._mount}/{self._key}", excerpt(_ECHO.sub("…", redact(error)))
        if isinstance(error, _LATER):
            return KeyServiceUnavailableError(f"Vault cannot use {key} now: {why}")
        if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized):
            return KeyServiceDeniedError(f"Vault does not allow the use of {key}: {why}")
        if isinstance(error, exceptions.InvalidRequest):
            return KeyRingError(f"it was sealed by another key than {key}, or it is damaged ({why})")
        if isinstance(error, exceptions.VaultError):
            return KeyServiceError(f"Vault refuses to use {key}: {why}")
        return KeyServiceError(f"Vault gave no usable answer for {key}: {why}")


def _refuse_redirection(response: requests.Response, **_: object) -> None:
    """Raise an error for a redirection. The client would return it as an answer of the service."""
    if 300 <= response.status_code < 400:
        response.close()
        raise exceptions.VaultError(f"status {response.status_code}, a redirection")
