"""Client of one Azure container.

The client sends requests through an HTTP session with this package's timeouts, pool and proxy. It uses only the
identity from the settings. This module is separate from the store, its only user, because one file for both would
exceed 600 lines.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import requests
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.pipeline import PipelineResponse
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import BlobClient, BlobProperties, ContainerClient

from tieredstore.backends.azure.errors import translate_errors
from tieredstore.backends.azure.options import AccountKey, AzureOptions, ConnectionString, Credentials, SasToken
from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.cloud.answers import breaks_off, parse_ms, require_size, require_text, show_body
from tieredstore.backends.cloud.errors import MalformedAnswerError
from tieredstore.backends.http.body import HttpAnswer
from tieredstore.backends.http.ranges import answered_size, check_lengths, is_whole
from tieredstore.backends.http.session import (
    BoundedAdapter,
    HttpLimits,
    StoreAdapter,
    certificates,
    configure,
)
from tieredstore.errors import ConfigError, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from azure.core.pipeline.transport import HttpRequest, HttpResponse, HttpTransport

    Transport: TypeAlias = HttpTransport[HttpRequest, HttpResponse]

Result = TypeVar("Result")


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
    credentials: Credentials
    _transports: tuple[Transport, ...]

    def blob(self, key: str) -> BlobClient:
        """Return the SDK's client of one blob; send no request."""
        return self.container.get_blob_client(key)

    def read(self, key: str, start: int, stop: int | None, take: Callable[[HttpAnswer], Result], what: str) -> Result:
        """Request ``start:stop``; return the result of ``take``."""
        taken: list[Result] = []

        def read(response: PipelineResponse[HttpRequest, HttpResponse]) -> None:
            answer = response.http_response
            # Ignore an error status, because the SDK raises its error after this hook. For an empty blob the hook runs
            # twice: the service refuses any range, then the SDK repeats the request without a range.
            if answer.status_code not in {200, 206}:
                return
            headers = answer.headers
            try:
                # Require an etag, because a page of a web server or proxy, sent in place of the blob, has none.
                require_text("the etag", headers.get("ETag"))
                size, check = answered_size(what, start, stop, headers), partial(_check_md5, what, headers)
                taken.append(take(HttpAnswer(size, answer.internal_response.raw, what, check)))
            except BaseException:
                answer.internal_response.close()
                raise

        if start == 0 and stop is None:
            self.blob(key).download_blob(raw_response_hook=read)
        else:
            self.blob(key).download_blob(start, None if stop is None else stop - start, raw_response_hook=read)
        if not taken:
            raise StoreError(f"{what}: the store sent no bytes")
        return taken[-1]

    def head(self, key: str) -> ObjectInfo:
        """Return one object's metadata."""
        info = object_info(self.blob(key).get_blob_properties(), key)
        if info.modified_ms is None:
            raise ValueError("the time of the last write is missing")
        return info

    def check_bucket(self) -> None:
        """Do nothing, because the service's answers about a blob say if its container is absent."""

    def date(self) -> str | None:
        """Return the ``Date`` header of a listing of one key."""
        dates: list[str | None] = []

        def note(response: PipelineResponse[HttpRequest, HttpResponse]) -> None:
            check_document(response)
            dates.append(response.http_response.headers.get("Date"))

        next(self.container.list_blobs(results_per_page=1, raw_response_hook=note).by_page())
        return dates[-1]

    def close(self) -> None:
        """Close all connections."""
        for transport in self._transports:
            transport.close()


_ROOT: Final = re.compile(rb"\s*(?:\xef\xbb\xbf)?(?:<\?xml[^>]*>)?\s*<EnumerationResults[\s>]")
_MARKER: Final = re.compile(rb"<NextMarker\s*/?>")


def check_document(response: PipelineResponse[HttpRequest, HttpResponse]) -> None:
    """Raise MalformedAnswerError if a successful answer is no page of a listing, because the SDK reads any XML as an
    empty page.
    """
    answer = response.http_response
    body = answer.body()
    if answer.status_code >= 300 or breaks_off(body):
        return
    if _ROOT.match(body[:4096]) is None or (b"</EnumerationResults>" in body and _MARKER.search(body) is None):
        raise MalformedAnswerError(
            f"the store answered to a listing with status {answer.status_code} and {show_body(body)}, which is not a "
            "page of a listing"
        )


def object_info(blob: BlobProperties, key: str) -> ObjectInfo:
    """Convert a listing's entry, or the answer to a HEAD, to an ``ObjectInfo``."""
    modified_ms = parse_ms(blob.last_modified)
    return ObjectInfo(key, require_size(blob.size), plain_etag(blob.etag or "") or None, modified_ms)


def plain_etag(etag: str) -> str:
    """Remove the quotes around an etag, because answers to requests for a blob have them, listings do not."""
    return etag.strip('"')


def md5_text(data: bytes | memoryview) -> str:
    """Return the MD5 of ``data`` in base64, as Azure writes it."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _check_md5(what: str, headers: Mapping[str, str], data: bytes | memoryview) -> None:
    """Raise StoreUnavailableError if ``data`` is a whole blob whose MD5 differs from the MD5 that the service keeps."""
    expected = headers.get("x-ms-blob-content-md5") or headers.get("Content-MD5")
    if expected is None or not is_whole(headers):
        return
    if md5_text(data) != expected:
        raise StoreUnavailableError(f"{what}: the blob was damaged on its way from the store")


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
    return AzureClient(container, options.credentials, (transport, login))


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
