"""AWS Key Management Service, through boto3. Credentials and region come from the SDK's own chain."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Self

import boto3
from botocore.awsrequest import AWSPreparedRequest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError
from botocore.exceptions import ConnectionError as ConnectingFailed

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
    from types_boto3_kms import KMSClient

_REGION: Final = re.compile(r"arn:aws[a-z-]*:kms:([a-z0-9-]+):")
_LATER: Final = re.compile(
    r"Throttl|LimitExceeded|TooManyRequests|DependencyTimeout|KMSInternal|KeyUnavailable|InternalFailure|"
    r"ServiceUnavailable|RequestTimeout"
)
_DENIED: Final = re.compile(r"AccessDenied|UnrecognizedClient|InvalidClientTokenId|Expired|Signature|NotAuthorized")
_NOT_OURS: Final = ("InvalidCiphertextException", "IncorrectKeyException")


class AwsKeySource(KeySource):
    """A symmetric key, by its ARN, its id, or an alias (``alias/…``)."""

    def __init__(self, key: str, client: KMSClient) -> None:
        self._key = key
        self._client = client

    @classmethod
    def from_settings(cls, key: str, endpoint_url: str | None) -> Self:
        """If the key is an ARN, use the ARN's region. For an id or an alias, use the region in the SDK's own
        settings."""
        region = _REGION.match(key)
        # The caller retries, so turn off the SDK's retries.
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries={"total_max_attempts": 1}
        )
        # Leave the session untyped, because otherwise the type checker loads the types of all AWS clients.
        session: Any = boto3.session.Session()
        try:
            client: KMSClient = session.client(
                "kms", region_name=region[1] if region else None, endpoint_url=endpoint_url, config=config
            )
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(
                f"the client of AWS KMS for the key {excerpt(key)!r} cannot be made: {excerpt(redact(error))}"
            ) from error
        client.meta.events.register("before-send.kms", _decode_headers)
        return cls(key, client)

    def seal(self, secret: bytes) -> bytes:
        """Seal the secret by one ``Encrypt`` call."""
        try:
            return self._client.encrypt(KeyId=self._key, Plaintext=secret)["CiphertextBlob"]
        except (BotoCoreError, ClientError) as error:
            raise _translate(error, self._key) from error

    def open(self, sealed: bytes) -> bytes:
        """Open the sealed data by one ``Decrypt`` call, which accepts only this key."""
        try:
            return self._client.decrypt(KeyId=self._key, CiphertextBlob=sealed)["Plaintext"]
        except (BotoCoreError, ClientError) as error:
            raise _translate(error, self._key) from error


def _decode_headers(request: AWSPreparedRequest, **_: object) -> None:
    """Convert header values from bytes to text. For an answer with status 303, urllib3 rewrites the headers; it fails
    on bytes, and leaves the connection open.
    """
    headers: Any = request.headers  # botocore's stubs say that all values are text
    for name, value in list(headers.items()):
        if isinstance(value, bytes):
            headers[name] = value.decode("latin-1")


def _translate(error: Exception, key: str) -> TieredStoreError:
    shown, why = excerpt(key), excerpt(redact(error))
    if isinstance(error, HTTPClientError | ConnectingFailed):
        return KeyServiceUnavailableError(f"AWS KMS cannot be reached: {why}")
    if isinstance(error, NoCredentialsError):
        return KeyServiceDeniedError(
            f"the key {shown} of AWS KMS was not used, because the AWS SDK found no credentials: set them, for "
            "example by environment variables"
        )
    if not isinstance(error, ClientError):
        return KeyServiceError(f"AWS KMS gave no usable answer for {shown}: {why}")
    response = error.response
    code = str(response.get("Error", {}).get("Code"))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _NOT_OURS:
        return KeyRingError(f"it was sealed by another key than {shown}, or it is damaged")
    if _LATER.search(code) or status == 429 or status >= 500:
        return KeyServiceUnavailableError(f"AWS KMS cannot use {shown} now: {why}")
    if _DENIED.search(code) or status in {401, 403}:
        return KeyServiceDeniedError(f"AWS KMS does not allow the use of {shown}: {why}")
    return KeyServiceError(f"AWS KMS refuses to use {shown}: {why}")
