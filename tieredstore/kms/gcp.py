"""Google Cloud KMS, through its own client. Credentials come from the SDK's own chain.

This module uses REST instead of gRPC, because gRPC's threads do not survive the forks of Spark's workers.
"""

from __future__ import annotations

import re
from typing import Any, Final, Protocol, Self, cast
from urllib.parse import urlsplit

import crc32c
import google.auth
import requests
from google.api_core import exceptions
from google.auth import exceptions as auth_exceptions
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import Request
from google.cloud.kms_v1.services.key_management_service import KeyManagementServiceClient
from google.cloud.kms_v1.services.key_management_service.transports import KeyManagementServiceRestTransport
from google.cloud.kms_v1.types import DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse

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

_NAME: Final = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")
_SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)
_ERRORS: Final = (exceptions.GoogleAPICallError, auth_exceptions.GoogleAuthError, requests.RequestException, ValueError)
_LATER: Final = (
    exceptions.TooManyRequests,
    exceptions.ServerError,
    auth_exceptions.TransportError,
    requests.RequestException,
)
_DENIED: Final = (exceptions.Forbidden, exceptions.Unauthorized, auth_exceptions.GoogleAuthError)


class _Client(Protocol):
    """The part of ``KeyManagementServiceClient`` that this module uses. The client's own types are incomplete."""

    def encrypt(self, *, request: EncryptRequest, retry: None, timeout: float) -> EncryptResponse: ...

    def decrypt(self, *, request: DecryptRequest, retry: None, timeout: float) -> DecryptResponse: ...


class GcpKeySource(KeySource):
    """A symmetric key, by its resource name ``projects/…/locations/…/keyRings/…/cryptoKeys/…``."""

    def __init__(self, key: str, client: _Client) -> None:
        self._key = key
        self._client = client

    @classmethod
    def from_settings(cls, key: str, endpoint_url: str | None) -> Self:
        """Make the key from its settings. Send no credentials to an endpoint without TLS, such as an emulator."""
        if not _NAME.fullmatch(key):
            raise ConfigError(
                f"{excerpt(key)!r} is not the name of a key of Google Cloud KMS: expected "
                "projects/P/locations/L/keyRings/R/cryptoKeys/K"
            )
        endpoint = urlsplit(endpoint_url or "https://cloudkms.googleapis.com")
        login = _refuse_redirects(requests.Session())
        try:
            transport = KeyManagementServiceRestTransport(
                host=endpoint.netloc, url_scheme=endpoint.scheme, credentials=_credentials(endpoint.scheme, login)
            )
        except auth_exceptions.GoogleAuthError as error:
            raise KeyServiceDeniedError(
                f"the key {key} of Google Cloud KMS cannot be used, because no login was found: "
                f"{excerpt(redact(error))}"
            ) from error
        # The attributes ``_session`` and ``_auth_request`` are not public; they exist in google-cloud-kms 3 and
        # google-auth 2.
        session = _refuse_redirects(getattr(transport, "_session"))  # noqa: B009
        session._auth_request = Request(login)
        session.hooks["response"].append(_refuse_redirection)
        return cls(key, cast("_Client", KeyManagementServiceClient(transport=transport)))

    def seal(self, secret: bytes) -> bytes:
        """Seal the secret by one ``encrypt`` call, with checksums of request and answer."""
        request = EncryptRequest(name=self._key, plaintext=secret, plaintext_crc32c=crc32c.crc32c(secret))
        try:
            response = self._client.encrypt(request=request, retry=None, timeout=READ_TIMEOUT_S)
        except _ERRORS as error:
            raise _translate(error, self._key) from error
        if not response.verified_plaintext_crc32c or crc32c.crc32c(response.ciphertext) != response.ciphertext_crc32c:
            raise KeyServiceUnavailableError("bytes changed on the way to Google Cloud KMS or back")
        return response.ciphertext

    def open(self, sealed: bytes) -> bytes:
        """Open the sealed data by one ``decrypt`` call, with checksums of request and answer."""
        request = DecryptRequest(name=self._key, ciphertext=sealed, ciphertext_crc32c=crc32c.crc32c(sealed))
        try:
            response = self._client.decrypt(request=request, retry=None, timeout=READ_TIMEOUT_S)
        except _ERRORS as error:
            raise _translate(error, self._key) from error
        if crc32c.crc32c(response.plaintext) != response.plaintext_crc32c:
            raise KeyServiceUnavailableError("bytes changed on the way back from Google Cloud KMS")
        return response.plaintext


def _credentials(scheme: str, login: requests.Session) -> Any:
    if scheme == "http":
        return AnonymousCredentials()
    untyped: Any = google.auth
    credentials, _ = untyped.default(scopes=_SCOPES, request=Request(login))
    return credentials


def _refuse_redirects(session: Any) -> Any:
    """Return the session with redirections refused, because a redirection would send the secret or a token to another
    server.
    """
    session.get_redirect_target = _nowhere
    return session


def _nowhere(_: requests.Response) -> None:
    return None


def _refuse_redirection(response: requests.Response, **_: object) -> None:
    """Raise an error for a redirection. The client would parse its body as an answer of the service."""
    if 300 <= response.status_code < 400:
        response.close()
        untyped: Any = exceptions
        raise untyped.from_http_status(response.status_code, f"status {response.status_code}, a redirection")


def _translate(error: Exception, key: str) -> TieredStoreError:
    why = excerpt(redact(error))
    if isinstance(error, _LATER):
        return KeyServiceUnavailableError(f"Google Cloud KMS cannot use {key} now: {why}")
    if isinstance(error, _DENIED):
        return KeyServiceDeniedError(f"Google Cloud KMS does not allow the use of {key}: {why}")
    # Google returns these errors if another key made the ciphertext.
    if isinstance(error, exceptions.InvalidArgument | exceptions.BadRequest):
        return KeyRingError(f"it was sealed by another key than {key}, or it is damaged ({why})")
    return KeyServiceError(f"Google Cloud KMS refuses to use {key}: {why}")
