"""Client of one Azure container.

The client sends requests through an HTTP session with this package's timeouts, pool and proxy. It uses only the
identity from the settings. This module is separate from the store, its only user, because one file for both would
exceed 600 lines.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import requests
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import BlobClient, ContainerClient

from tieredstore.backends.azure.errors import translate_errors
from tieredstore.backends.azure.options import AccountKey, AzureOptions, ConnectionString, Credentials, SasToken
from tieredstore.backends.http.ranges import check_lengths
from tieredstore.backends.http.session import (
    BoundedAdapter,
    HttpLimits,
    StoreAdapter,
    certificates,
    configure,
)
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from azure.core.pipeline.transport import HttpRequest, HttpResponse, HttpTransport

    Transport: TypeAlias = HttpTransport[HttpRequest, HttpResponse]


def describe_credentials(credentials: Credentials) -> str:
    """Describe the credentials that requests use, without any secret."""
    match credentials:
        case ConnectionString():
            return "the connection string of the settings"
        case AccountKey(account=account):
            return f"the shared key of the account {account}"
        case SasToken():
            return "the shared access signature of the settings"
        case _:
            return "Azure's default credentials (azure.identity logs which of them gives a token)"


def sdk_credential(
    credentials: Credentials, login: Transport
) -> AzureNamedKeyCredential | AzureSasCredential | TokenCredential:
    """Return the credential object for the SDK. Do not call this function for a connection string, because the SDK
    parses connection strings itself.
    """
    if isinstance(credentials, AccountKey):
        return AzureNamedKeyCredential(credentials.account, credentials.key)
    if isinstance(credentials, SasToken):
        return AzureSasCredential(credentials.token.lstrip("?"))
    # azure.identity is slow to import, and not needed with a key or a token.
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415

    return DefaultAzureCredential(transport=login)


_logger: Final = logging.getLogger(__name__)

_ANY_SIZE: Final = 1 << 50
"""Size limit for downloading a blob with one request. No blob reaches this limit, so the SDK never splits a download
into several sequential requests.
"""


@dataclass(frozen=True, slots=True)
class AzureClient:
    """One process's client of one container. Thread-safe."""

    container: ContainerClient
    _transports: tuple[Transport, ...]

    def blob(self, key: str) -> BlobClient:
        """Return the SDK's client of one blob; send no request."""
        return self.container.get_blob_client(key)

    def close(self) -> None:
        """Close all connections."""
        for transport in self._transports:
            transport.close()


def container_url(options: AzureOptions) -> str:
    """Return the container's URL without credentials; raise ConfigError for an invalid connection string."""
    if options.account_url is not None:
        return f"{options.account_url.rstrip('/')}/{options.container}"
    return _of_connection_string(options, None).url.partition("?")[0]


def open_client(options: AzureOptions) -> AzureClient:
    """Open a new client; raise AccessDeniedError or ConfigError if its credentials are not available."""
    connections = options.concurrency + options.upload_parallelism
    limits = HttpLimits(connections, options.connect_timeout_s, options.read_timeout_s)
    transport = _transport(StoreAdapter(limits), options)
    # Use a separate session for token requests. This session keeps the original errors of ``requests``, because they
    # tell the SDK to try its next source of credentials.
    login = _transport(BoundedAdapter(limits), options)
    with translate_errors(f"opening the container {options.container}"):
        container = _container(options, transport, login)
    _logger.info("%s: requests are made with %s", container_url(options), describe_credentials(options.credentials))
    return AzureClient(container, (transport, login))


def _transport(adapter: BoundedAdapter, options: AzureOptions) -> Transport:
    session = configure(requests.Session(), adapter, options.proxy)
    if isinstance(adapter, StoreAdapter):
        session.hooks["response"].append(_close_unless_understood)
    # Configure the check of certificates in the transport too, because the SDK passes ``connection_verify`` with every
    # request, and this argument overrides the session's own setting.
    verify = certificates() if options.proxy else True
    transport: Transport = RequestsTransport(session=session, connection_verify=verify)
    return transport


def _close_unless_understood(response: requests.Response, **_: object) -> None:
    """Close an answer with invalid length headers, because the SDK would fail on them and leave the connection open."""
    if response.status_code < HTTPStatus.MULTIPLE_CHOICES:
        try:
            check_lengths(response.headers)
        except ValueError:
            response.close()
            raise


def _container(options: AzureOptions, transport: Transport, login: Transport) -> ContainerClient:
    if isinstance(options.credentials, ConnectionString):
        return _of_connection_string(options, transport)
    try:
        credential = sdk_credential(options.credentials, login)
        return ContainerClient(options.account_url or "", options.container, credential, **_client_options(transport))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"the account's URL or credentials cannot be used: {error}") from error


def _of_connection_string(options: AzureOptions, transport: Transport | None) -> ContainerClient:
    text = options.credentials.text if isinstance(options.credentials, ConnectionString) else ""
    try:
        return ContainerClient.from_connection_string(text, options.container, **_client_options(transport))
    except (ValueError, KeyError):
        # Suppress the cause, because its message may quote the connection string.
        raise ConfigError("storage.azure.connection.string is malformed: copy it again from the account") from None


def _client_options(transport: Transport | None) -> dict[str, Any]:
    # The SDK must not retry, because the store retries each call. It must not follow redirections, because body and
    # signature would go to another server.
    return {
        "transport": transport,
        "retry_total": 0,
        "permit_redirects": False,
        "max_single_get_size": _ANY_SIZE,
        "max_single_put_size": _ANY_SIZE,
    }
