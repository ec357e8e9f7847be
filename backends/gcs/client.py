"""Google's client of one bucket, on a session of ours: its time-outs, pool, proxy and credentials."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol, cast
from urllib.parse import quote, urlsplit

import requests
from google.auth.credentials import Credentials
from google.auth.transport.requests import AuthorizedSession, Request

from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.cloud.answers import stated, stated_ms, stated_size
from tieredstore.backends.gcs.credentials import chosen_credentials
from tieredstore.backends.gcs.errors import raise_first, raise_for, translated
from tieredstore.backends.gcs.options import GcsOptions
from tieredstore.backends.http.session import BoundedAdapter, HttpLimits, StoreAdapter, configured
from tieredstore.errors import StoreError
from tieredstore.redaction import redacted

CONTENT_TYPE: Final = "application/octet-stream"
_LISTED: Final = "kind,items(name,size,generation,updated),nextPageToken"
_GOOGLES: Final = ".googleapis.com"
_LISTING: Final = "storage#objects"

# The SDK has no types: these are the parts of it that are used. Its retries are off everywhere, ours are around it;
# its time-outs do not matter, since the session's adapter sets ours.


class Blob(Protocol):
    """``google.cloud.storage.Blob``."""

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
        """Begin an upload; the URL that its chunks go to."""
        ...


class _Page(Protocol):
    raw_page: object

    def __iter__(self) -> Iterator[Blob]: ...


class _Pages(Protocol):
    pages: Iterator[_Page]
    next_page_token: str | None


class _Client(Protocol):
    api_endpoint: str

    def bucket(self, bucket_name: str) -> _Bucket: ...

    def list_blobs(
        self,
        bucket_or_name: str,
        *,
        prefix: str | None,
        start_offset: str | None,
        page_token: str | None,
        page_size: int,
        fields: str,
        retry: None,
    ) -> _Pages: ...


class _Bucket(Protocol):
    def blob(self, blob_name: str) -> Blob: ...


@dataclass(frozen=True, slots=True)
class GcsClient:
    """One process's client of one bucket. Thread-safe. ``session`` signs what it sends."""

    bucket_name: str
    session: requests.Session
    endpoint: str
    is_custom_endpoint: bool
    credentials: Credentials
    """What signs; it may be refreshed at any request."""
    _client: _Client
    _login: requests.Session

    def blob(self, key: str) -> Blob:
        """The SDK's handle of an object; no request is made."""
        return self._client.bucket(self.bucket_name).blob(key)

    def download_url(self, key: str) -> str:
        """Where an object's bytes are read."""
        return f"{self.endpoint}/download/storage/v1/{self._path}/{quote(key, safe='')}?alt=media"

    def deletion_url(self, key: str, if_generation_match: int | None = None) -> str:
        """Where an object is deleted."""
        condition = "" if if_generation_match is None else f"?ifGenerationMatch={if_generation_match}"
        return f"{self.endpoint}/storage/v1/{self._path}/{quote(key, safe='')}{condition}"

    def single_upload_url(self, if_generation_match: int | None) -> str:
        """Where an object is written by one request, with its metadata."""
        condition = "" if if_generation_match is None else f"&ifGenerationMatch={if_generation_match}"
        return f"{self.endpoint}/upload/storage/v1/{self._path}?uploadType=multipart{condition}"

    def copy_url(self, source: str, target: str, token: str | None) -> str:
        """Where the server is asked to copy an object to a key that is free; ``token`` is that of the last answer."""
        onward = "" if token is None else f"&rewriteToken={quote(token, safe='')}"
        names = f"{quote(source, safe='')}/rewriteTo/{self._path}/{quote(target, safe='')}"
        return f"{self.endpoint}/storage/v1/{self._path}/{names}?ifGenerationMatch=0{onward}"

    @property
    def _path(self) -> str:
        return f"b/{quote(self.bucket_name, safe='')}/o"

    def session_url(self, url: str) -> str:
        """The URL of an upload session as the server told it, but at the endpoint that was set, where one was.

        A ValueError, for ``understood``, if it lies elsewhere: data and a token would be sent there.
        """
        ours, theirs = urlsplit(self.endpoint), urlsplit(url)
        if self.is_custom_endpoint:
            return theirs._replace(scheme=ours.scheme, netloc=ours.netloc).geturl()
        host = theirs.hostname or ""
        if theirs.scheme != "https" or not (host == ours.hostname or host.endswith(_GOOGLES)):
            raise ValueError(f"the upload's place is {redacted(url)!r:.200}, and not of Google's")
        return url

    def page(
        self, *, prefix: str, start: str | None, token: str | None, size: int
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        """One page of a listing from ``start`` on, and the token of the next one."""
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
        raw: Any = answer.raw_page
        # An empty bucket has no items: only the kind tells its listing from any other object of JSON.
        if raw["kind"] != _LISTING or not isinstance(raw.get("items", []), list):
            raise ValueError(f"a listing has the kind {_LISTING} and a list of items; this has {str(raw)[:200]!r}")
        following = raw.get("nextPageToken")
        return [info_of(blob) for blob in answer], following and stated("the next page's token", following)

    def listing_date(self) -> str | None:
        """The ``Date`` of a listing of one object."""
        with self.session.get(f"{self.endpoint}/storage/v1/{self._path}?maxResults=1&fields=kind") as response:
            raise_for(response)
            if response.json()["kind"] != _LISTING:
                raise ValueError(f"a listing has the kind {_LISTING}")
            return response.headers.get("Date")

    def bucket_properties(self, fields: str) -> Mapping[str, Any]:
        """These properties of the bucket, those of them that it has."""
        with self.session.get(f"{self._bucket_url}?fields={quote(fields, safe='')}") as response:
            raise_for(response)
            properties: object = response.json()
        if not isinstance(properties, dict):
            raise ValueError("the bucket's properties are no object of JSON")  # noqa: TRY004  an answer's fault
        return cast("dict[str, Any]", properties)

    def set_lifecycle(self, lifecycle: Mapping[str, Any], if_metageneration_match: str) -> None:
        """Replace the bucket's lifecycle if nothing of the bucket's properties has changed."""
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


def info_of(blob: Blob) -> ObjectInfo:
    """What the SDK knows of an object; its etag is the generation."""
    size, generation = stated_size(blob.size), stated_size(blob.generation)
    return ObjectInfo(stated("the name", blob.name), size, str(generation), stated_ms(blob.updated))


def open_client(options: GcsOptions) -> GcsClient:
    """A new client; AccessDenied or ConfigError if its credentials cannot be had."""
    connections = options.concurrency + options.delete_parallelism
    limits = HttpLimits(connections, options.connect_timeout_s, options.read_timeout_s)
    # A session of its own for tokens: here a failed request makes the SDK look elsewhere.
    login = configured(requests.Session(), BoundedAdapter(limits), options.proxy)
    make_request: Any = Request
    make_session: Any = AuthorizedSession
    request = make_request(login)
    with translated(f"opening {options.url}"), _usable():
        credentials = chosen_credentials(options, request)
        signing = cast("requests.Session", make_session(credentials, auth_request=request))
        session = configured(signing, StoreAdapter(limits), options.proxy)
        session.hooks["response"].append(raise_first)
        client = _sdk_client(options, credentials, session)
    return GcsClient(
        options.bucket,
        session,
        client.api_endpoint.rstrip("/"),
        options.endpoint_url is not None,
        credentials,
        client,
        login,
    )


@contextmanager
def _usable() -> Generator[None]:
    """StoreError for what the SDK does not take."""
    try:
        yield
    except ValueError as error:
        raise StoreError(f"the SDK refused the options: {redacted(error)}") from error


def _sdk_client(options: GcsOptions, credentials: object, session: requests.Session) -> _Client:
    make: Any = partial(importlib.import_module("google.cloud.storage").Client, "<none>")
    endpoint = {"api_endpoint": options.endpoint_url.rstrip("/")} if options.endpoint_url else None
    client = make(credentials=credentials, _http=session, client_options=endpoint)
    # Otherwise the first call starts a thread that asks for the bucket's location, for traces that nobody collects.
    client._bucket_metadata_cache = None
    return cast("_Client", client)
