"""Client of one bucket of Google Cloud Storage.

The client sends requests through an HTTP session with this package's timeouts, pool and proxy. It uses only the
identity from the settings, and logs it. This module is separate from the store, its only user, because one file for
both would exceed 600 lines.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar, cast
from urllib.parse import quote, urlsplit

import requests
from crc32c import crc32c
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.transport.requests import AuthorizedSession, Request

from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.cloud.answers import parse_ms, require_size, require_text
from tieredstore.backends.cloud.watched_file import WatchedFile
from tieredstore.backends.gcs.errors import raise_first, raise_for, translate_errors
from tieredstore.backends.gcs.options import Anonymous, CredentialsFile, CredentialsJson, GcsOptions
from tieredstore.backends.http.body import HttpAnswer
from tieredstore.backends.http.ranges import answered_size, is_whole, range_header
from tieredstore.backends.http.session import BoundedAdapter, HttpLimits, StoreAdapter, configure
from tieredstore.errors import ConfigError, StoreError, StoreUnavailableError, redact

_logger: Final = logging.getLogger(__name__)

Result = TypeVar("Result")

SCOPES: Final = ("https://www.googleapis.com/auth/devstorage.read_write",)
"""OAuth scopes of tokens: read, write and delete objects."""

_AWS_TOKEN: Final = "urn:ietf:params:aws:token-type:aws4_request"  # noqa: S105  the name of a kind of token


def choose_credentials(options: GcsOptions, request: Request) -> Credentials:
    """Choose the credentials for ``options`` and log the choice, without any secret.

    To find default credentials, the SDK makes requests through ``request`` (Google's transport). Raise ConfigError if
    the configured text or file has no credentials. Errors of the SDK's search pass through.
    """
    chosen = options.credentials
    if isinstance(chosen, Anonymous):
        _logger.info("%s: requests are made without an identity (storage.gcs.credentials.default=false)", options.url)
        return AnonymousCredentials()
    if isinstance(chosen, CredentialsFile):
        file = WatchedFile(chosen.path, parse_credentials, interval_s=chosen.reread_s)
        _logger.info("%s: requests are made with the credentials in %s", options.url, chosen.path)
        return WatchedCredentials(file)
    if isinstance(chosen, CredentialsJson):
        source, credentials = "the credentials of the settings", parse_credentials(chosen.text.encode())
    else:
        source = "application default credentials"
        credentials = import_module("google.auth").default(scopes=SCOPES, request=request)[0]
    _logger.info("%s: requests are made with %s: %s", options.url, source, describe_credentials(credentials))
    return credentials


def describe_credentials(credentials: Credentials) -> str:
    """Describe the kind of credentials and, if known, their owner."""
    kind = f"{type(credentials).__module__.rpartition('.')[2]}.{type(credentials).__name__}"
    whose = getattr(credentials, "service_account_email", None)
    return f"{kind} of {whose}" if whose else kind


def parse_credentials(raw: bytes) -> Credentials:
    """Parse credentials: Google's JSON for an account, or a JSON object with only ``access_token``.

    Raise ConfigError for any other content. The error must not quote the content.
    """
    try:
        content: object = json.loads(raw)
    except ValueError:
        # Do not chain the JSON parser's error, which contains the whole text.
        raise ConfigError("the Google credentials are not JSON") from None
    if not isinstance(content, dict):
        raise ConfigError("the Google credentials are not a JSON object")
    info = cast("dict[str, object]", content)
    kind = info.get("type")
    if kind is None and isinstance(info.get("access_token"), str):
        credentials: Credentials = import_module("google.oauth2.credentials").Credentials(info["access_token"])
        return credentials
    if not isinstance(kind, str) or kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise ConfigError(f"the Google credentials have neither a known type ({known}) nor an access_token")
    module, factory = _KINDS[kind]
    if kind == "external_account" and info.get("subject_token_type") == _AWS_TOKEN:
        module = "google.auth.aws"
    try:
        credentials = getattr(import_module(module).Credentials, factory)(info, scopes=SCOPES)
    except (ValueError, TypeError, KeyError, AttributeError):
        # Do not chain the SDK's error, which may quote the credentials.
        raise ConfigError(f"the Google credentials of type {kind} are incomplete or malformed") from None
    return credentials


# Accept only these types, because the SDK's generic loader would also accept types that make it run a program.
_KINDS: Final = {
    "service_account": ("google.oauth2.service_account", "from_service_account_info"),
    "authorized_user": ("google.oauth2.credentials", "from_authorized_user_info"),
    "external_account": ("google.auth.identity_pool", "from_info"),
    "impersonated_service_account": ("google.auth.impersonated_credentials", "from_impersonated_service_account_info"),
}
"""The module and the constructor of each type of credentials."""


class WatchedCredentials(Credentials):
    """Credentials that are read for each request from a file watched for changes."""

    def __init__(self, file: WatchedFile[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not covered by untyped_calls_exclude
        self._file = file
        file.get()

    @property
    def valid(self) -> bool:
        """True if the credentials in the file need no refresh."""
        return bool(self._file.get().valid)

    def refresh(self, request: object) -> None:
        """Fetch a new token for the credentials in the file."""
        self._file.get().refresh(request)

    def before_request(self, request: object, method: str, url: str, headers: Mapping[str, str]) -> None:
        """Sign a request with the file's current credentials; raise ConfigError if the file cannot be read."""
        self._file.get().before_request(request, method, url, headers)


def crc32c_text(value: int) -> str:
    """Return a CRC-32C as Google writes it: big-endian, in base64."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


CONTENT_TYPE: Final = "application/octet-stream"
_LISTED: Final = "kind,items(name,size,generation,updated),nextPageToken"
_GOOGLES: Final = ".googleapis.com"
_LISTING: Final = "storage#objects"

# The SDK's retries are off, because the store retries. The SDK's timeouts have no effect, because the session's adapter
# sets ours.


class Blob(Protocol):
    """The part of ``google.cloud.storage.Blob`` that is used, because the SDK has no type annotations."""

    name: str
    size: int | None
    generation: int | None
    crc32c: str | None
    metadata: dict[str, str] | None
    updated: datetime | None

    def reload(self, *, retry: None) -> None:
        """Fetch the object's metadata."""
        ...

    def create_resumable_upload_session(
        self, *, content_type: str, if_generation_match: int | None, checksum: None, retry: None
    ) -> str:
        """Begin a resumable upload; return the URL for its chunks."""
        ...


@dataclass(frozen=True, slots=True)
class GcsClient:
    """One process's client of one bucket. Thread-safe. ``session`` signs its requests."""

    bucket_name: str
    session: requests.Session
    endpoint: str
    is_custom_endpoint: bool
    credentials: Credentials
    """The credentials that sign requests. Any request may refresh these credentials."""
    _client: Any
    _login: requests.Session

    def blob(self, key: str) -> Blob:
        """Return the SDK's object for a key; send no request."""
        blob: Blob = self._client.bucket(self.bucket_name).blob(key)
        return blob

    def download_url(self, key: str) -> str:
        """Return the URL that reads an object's bytes."""
        return f"{self.endpoint}/download/storage/v1/{self._path}/{quote(key, safe='')}?alt=media"

    def deletion_url(self, key: str, if_generation_match: int | None = None) -> str:
        """Return the URL that deletes an object."""
        condition = "" if if_generation_match is None else f"?ifGenerationMatch={if_generation_match}"
        return f"{self.endpoint}/storage/v1/{self._path}/{quote(key, safe='')}{condition}"

    def single_upload_url(self, if_generation_match: int | None) -> str:
        """Return the URL that writes an object and its metadata with one request."""
        condition = "" if if_generation_match is None else f"&ifGenerationMatch={if_generation_match}"
        return f"{self.endpoint}/upload/storage/v1/{self._path}?uploadType=multipart{condition}"

    def copy_url(self, source: str, target: str, token: str | None) -> str:
        """Return the URL that makes the server copy an object to a free key. ``token`` continues a copy, and comes from
        the previous answer."""
        onward = "" if token is None else f"&rewriteToken={quote(token, safe='')}"
        names = f"{quote(source, safe='')}/rewriteTo/{self._path}/{quote(target, safe='')}"
        return f"{self.endpoint}/storage/v1/{self._path}/{names}?ifGenerationMatch=0{onward}"

    @property
    def _path(self) -> str:
        return f"b/{quote(self.bucket_name, safe='')}/o"

    def session_url(self, url: str) -> str:
        """Return the URL of an upload session, with the configured endpoint (if any) in place of the server's host.

        Raise ValueError (see ``understood``) if the server's URL has an unexpected host, because that host would
        receive the data and the token.
        """
        ours, theirs = urlsplit(self.endpoint), urlsplit(url)
        if self.is_custom_endpoint:
            return theirs._replace(scheme=ours.scheme, netloc=ours.netloc).geturl()
        host = theirs.hostname or ""
        if theirs.scheme != "https" or not (host == ours.hostname or host.endswith(_GOOGLES)):
            raise ValueError(f"the upload session's URL is {redact(url)!r:.200}, which is not Google's")
        return url

    def page(
        self, *, prefix: str, start: str | None, token: str | None, size: int
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        """Return one page of a listing from ``start`` on, and the token of the next page."""
        pages = self._client.list_blobs(
            self.bucket_name,
            prefix=prefix or None,
            start_offset=start or None,
            page_token=token,
            page_size=size,
            fields=_LISTED,
            retry=None,
        )
        answer = next(pages.pages)
        raw: Mapping[str, object] = answer.raw_page
        # Check ``kind``, because an empty listing has no items, so only its kind distinguishes it from other JSON.
        if raw["kind"] != _LISTING or not isinstance(raw.get("items", []), list):
            raise ValueError(
                f"a listing has the kind {_LISTING} and a list of items; this answer has {str(raw)[:200]!r}"
            )
        following = raw.get("nextPageToken")
        token = require_text("the next page's token", following) if following else None
        return [info_of(blob) for blob in answer], token

    def read(self, key: str, start: int, stop: int | None, take: Callable[[HttpAnswer], Result], what: str) -> Result:
        """Request ``start:stop``; return the result of ``take``."""
        headers = {"Accept-Encoding": "identity", **range_header(start, stop)}
        with self.session.get(self.download_url(key), headers=headers, stream=True) as response:
            raise_for(response)
            # Require a generation, because a page of a web server or proxy, sent in place of the object, has none.
            require_size(int(response.headers["X-Goog-Generation"]))
            size = answered_size(what, start, stop, response.headers)
            return take(HttpAnswer(size, response.raw, what, partial(_check_crc, response, what)))

    def head(self, key: str) -> ObjectInfo:
        """Return one object's metadata."""
        blob = self.blob(key)
        blob.reload(retry=None)
        return info_of(blob)

    def check_bucket(self) -> None:
        """List one object, because only Google's answers about an object say if its bucket is absent, but not those of
        other servers.
        """
        self.page(prefix="", start=None, token=None, size=1)

    def date(self) -> str | None:
        """Return the ``Date`` header of the answer to a listing of at most one object."""
        with self.session.get(f"{self.endpoint}/storage/v1/{self._path}?maxResults=1&fields=kind") as response:
            raise_for(response)
            if response.json()["kind"] != _LISTING:
                raise ValueError(f"the answer's kind is not {_LISTING}")
            return response.headers.get("Date")

    def bucket_properties(self, fields: str) -> Mapping[str, object]:
        """Return the requested properties of the bucket. The result omits properties that the bucket lacks."""
        with self.session.get(f"{self._bucket_url}?fields={quote(fields, safe='')}") as response:
            raise_for(response)
            properties: object = response.json()
        if not isinstance(properties, dict):
            raise ValueError("the bucket's properties are not a JSON object")  # noqa: TRY004  the answer is invalid
        return cast("dict[str, object]", properties)

    def set_lifecycle(self, lifecycle: Mapping[str, Any], if_metageneration_match: str) -> None:
        """Replace the lifecycle rules if the bucket's metadata has not changed."""
        url = (
            f"{self._bucket_url}?ifMetagenerationMatch={quote(if_metageneration_match, safe='')}&fields=metageneration"
        )
        with self.session.patch(url, json={"lifecycle": lifecycle}) as response:
            raise_for(response)

    @property
    def _bucket_url(self) -> str:
        return f"{self.endpoint}/storage/v1/{self._path.removesuffix('/o')}"

    def close(self) -> None:
        """Close all connections."""
        self.session.close()
        self._login.close()


def _check_crc(response: requests.Response, what: str, data: bytes | memoryview) -> None:
    """Raise StoreUnavailableError if ``data`` is a whole object whose checksum differs from the server's."""
    hashes = response.headers.get("X-Goog-Hash", "")
    if not is_whole(response.headers) or "crc32c=" not in hashes:
        return
    if f"crc32c={crc32c_text(crc32c(data))}" not in hashes.replace(" ", "").split(","):
        raise StoreUnavailableError(f"{what}: the object was damaged on its way from the server")


def info_of(blob: Blob) -> ObjectInfo:
    """Convert the SDK's object; the etag is the generation."""
    size, generation = require_size(blob.size), require_size(blob.generation)
    return ObjectInfo(require_text("the name", blob.name), size, str(generation), parse_ms(blob.updated))


def open_client(options: GcsOptions) -> GcsClient:
    """Open a new client; raise AccessDeniedError or ConfigError if its credentials are not available."""
    connections = options.concurrency + options.delete_parallelism
    limits = HttpLimits(connections, options.connect_timeout_s, options.read_timeout_s)
    # Use a separate session for token requests. This session keeps the original errors of ``requests``, because they
    # tell the SDK to try its next source of credentials.
    login = configure(requests.Session(), BoundedAdapter(limits), options.proxy)
    request = Request(login)
    with translate_errors(f"opening {options.url}"):
        try:
            credentials = choose_credentials(options, request)
            signing = AuthorizedSession(credentials, auth_request=request)
            session = configure(signing, StoreAdapter(limits), options.proxy)
            session.hooks["response"].append(raise_first)
            client = _sdk_client(options, credentials, session)
        except ConfigError:
            raise
        except ValueError as error:
            raise StoreError(f"the SDK refused the options: {redact(error)}") from error
    return GcsClient(
        options.bucket,
        session,
        client.api_endpoint.rstrip("/"),
        options.endpoint_url is not None,
        credentials,
        client,
        login,
    )


def _sdk_client(options: GcsOptions, credentials: object, session: requests.Session) -> Any:
    sdk = import_module("google.cloud.storage")
    endpoint = {"api_endpoint": options.endpoint_url.rstrip("/")} if options.endpoint_url else None
    client = sdk.Client("<none>", credentials=credentials, _http=session, client_options=endpoint)
    # Remove the SDK's cache of bucket metadata. With the cache, the first call would start a thread that requests the
    # bucket's location, which only traces use.
    client._bucket_metadata_cache = None
    return client
