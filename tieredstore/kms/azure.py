"""Azure Key Vault, through its own SDK. Credentials come from the SDK's own chain."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Self

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.keyvault.keys.crypto import CryptographyClient, KeyWrapAlgorithm

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
from tieredstore.kms.base import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, KeySource

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

_KEY: Final = re.compile(r"(https://[^/?#@\s]+/keys/[A-Za-z0-9-]+)(?:/([A-Za-z0-9]+))?/?")
_VERSION: Final = re.compile(r"[A-Za-z0-9]{1,64}")
_ALGORITHM: Final = KeyWrapAlgorithm.rsa_oaep_256


class AzureKeySource(KeySource):
    """An RSA key, by its URL ``https://VAULT/keys/NAME``. If the URL ends with ``/VERSION``, this version seals new
    secrets.

    Each sealed secret begins with the key version that sealed it, because the key may be rotated before the secret is
    opened.
    """

    def __init__(self, key: str, credential: TokenCredential, **options: object) -> None:
        url = _KEY.fullmatch(key)
        if url is None:
            raise ConfigError(f"{excerpt(redact(key))!r} is not a key of a vault: expected https://VAULT/keys/NAME")
        self._url, self._version = url[1], url[2]
        self._credential = credential
        # The caller retries, so turn off the SDK's retries. A redirection would send the token to another server, so
        # turn redirections off too.
        self._options = {
            "connection_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S, "retry_total": 0,
            "permit_redirects": False, **options,
        }  # fmt: skip

    @classmethod
    def from_settings(cls, key: str, endpoint_url: str | None) -> Self:
        """Use the URL in ``key``; raise ConfigError if ``endpoint_url`` is given."""
        if endpoint_url is not None:
            raise ConfigError("private.key.kms.endpoint.url has no meaning for azure: the key's URL names the vault")
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415  slow to import

        return cls(key, DefaultAzureCredential())

    def seal(self, secret: bytes) -> bytes:
        """Wrap by RSA-OAEP with SHA-256; return ``version:wrapped``."""
        try:
            with self._client(self._version) as client:
                result = client.wrap_key(_ALGORITHM, secret)
        except (AzureError, ValueError) as error:
            raise _translate(error, self._url) from error
        version = str(result.key_id).removeprefix(f"{self._url}/")
        if not _VERSION.fullmatch(version):
            # The SDK learns the key's version only with the permission keys/get. So the error message names this
            # permission.
            raise KeyServiceDeniedError(
                f"Azure Key Vault does not say which version of {self._url} it has used for sealing: allow keys/get, "
                "or put the version at the end of the URL"
            )
        return version.encode() + b":" + result.encrypted_key

    def open(self, sealed: bytes) -> bytes:
        """Open the sealed data by one ``unwrapKey`` call with the recorded key version."""
        version, _, wrapped = sealed.partition(b":")
        shown = version.decode("ascii", "replace")
        if not _VERSION.fullmatch(shown) or not wrapped:
            raise KeyRingError("it does not name the key version that sealed it")
        try:
            with self._client(shown) as client:
                return client.unwrap_key(_ALGORITHM, wrapped).key
        except (AzureError, ValueError) as error:
            raise _translate(error, self._url) from error

    def _client(self, version: str | None) -> CryptographyClient:
        key = self._url if version is None else f"{self._url}/{version}"
        return CryptographyClient(key, self._credential, **self._options)


def _translate(error: Exception, key: str) -> TieredStoreError:
    why = excerpt(redact(error))
    status = error.status_code or 0 if isinstance(error, HttpResponseError) else 0
    if isinstance(error, ServiceRequestError | ServiceResponseError) or status in {408, 429} or status >= 500:
        return KeyServiceUnavailableError(f"Azure Key Vault cannot use {key} now: {why}")
    if isinstance(error, ClientAuthenticationError) or status in {401, 403}:
        return KeyServiceDeniedError(f"Azure Key Vault does not allow the use of {key}: {why}")
    if status == 400 and not isinstance(error, ResourceNotFoundError):
        return KeyRingError(f"it was sealed by another key than {key}, or it is damaged ({why})")
    return KeyServiceError(f"Azure Key Vault refuses to use {key}: {why}")
