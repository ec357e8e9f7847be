"""The boto3 client of a store: credentials, timeouts, pool, checksums, and a check of each XML document.

Requests are signed with fixed keys, with keys from a file that may be rotated, or with credentials of the SDK's chain.
If the configured source fails, no other source is used.

The SDK accepts any XML document as an answer. So this module checks each document before the SDK parses it.

This module is separate from the store, its only user, because one file for both would exceed 600 lines.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import boto3
import javaproperties
from botocore.config import Config
from botocore.credentials import CredentialProvider, CredentialResolver, Credentials, ReadOnlyCredentials

from tieredstore.backends.cloud.answers import breaks_off, show_body
from tieredstore.backends.cloud.errors import MalformedAnswerError
from tieredstore.backends.cloud.watched_file import WatchedFile
from tieredstore.backends.s3.connections import BoundedSession, bound_chain
from tieredstore.backends.s3.errors import translate_errors
from tieredstore.backends.s3.options import AccessKeys, Compatibility, S3Options
from tieredstore.config.properties import join_lines
from tieredstore.errors import AccessDeniedError, ConfigError

if TYPE_CHECKING:
    from botocore.model import OperationModel
    from botocore.response import StreamingBody
    from botocore.session import Session
    from types_boto3_s3 import S3Client

_logger: Final = logging.getLogger(__name__)

_NAMES: Final = ("aws.access.key.id", "aws.secret.access.key", "aws.session.token")
_PREFIXES: Final = ("", "rsm.config.storage.", "storage.")


def parse_credentials(raw: bytes) -> AccessKeys:
    """Parse a properties file with ``aws.access.key.id``, ``aws.secret.access.key``, ``aws.session.token``.

    The names may be bare or begin with ``rsm.config.storage.`` or ``storage.``. Raise ConfigError if the key id or the
    secret key is missing; the error quotes no value.
    """
    try:
        properties = javaproperties.loads(join_lines(raw.decode("latin-1")))
    except ValueError as error:
        raise ConfigError("it is not a properties file") from error
    key_id, secret, token = (_value(properties, name) for name in _NAMES)
    if not key_id or not secret:
        raise ConfigError(f"it must have both {_NAMES[0]} and {_NAMES[1]}")
    return AccessKeys(key_id, secret, token or None)


def _value(properties: Mapping[str, str], name: str) -> str:
    return next((properties[p + name].strip() for p in _PREFIXES if p + name in properties), "")


class FileCredentials(Credentials):
    """Credentials that are read for each signature from a file watched for changes."""

    def __init__(self, file: WatchedFile[AccessKeys]) -> None:
        self._file = file
        keys = file.get()
        super().__init__(keys.key_id, keys.secret, keys.token, method="tieredstore-file")

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return the file's current keys. If the file cannot be read, raise ConfigError instead of returning older
        keys.
        """
        keys = self._file.get()
        return ReadOnlyCredentials(keys.key_id, keys.secret, keys.token)


def choose_credentials(options: S3Options, session: Session) -> Credentials:
    """Choose the credentials for ``options`` and log the choice, without any secret.

    Raise AccessDeniedError if the SDK's chain finds no credentials: requests are never sent unsigned.
    """
    chosen = options.credentials
    if isinstance(chosen, AccessKeys):
        _logger.info("%s: requests are signed with the access key of the settings", options.url)
        return Credentials(chosen.key_id, chosen.secret, chosen.token, method="tieredstore-static")
    if isinstance(chosen, Path):
        _logger.info("%s: requests are signed with the access key in %s", options.url, chosen)
        return FileCredentials(WatchedFile(chosen, parse_credentials, interval_s=options.credentials_reread_s))
    return _of_chain(options, session)


_SOURCES: Final = {
    "env": "the environment (AWS_ACCESS_KEY_ID)",
    "shared-credentials-file": "the profile {profile} in {credentials_file}",
    "config-file": "the profile {profile} in {config_file}",
    "assume-role": "the role of the profile {profile}",
    "iam-role": "the instance's role",
    "container-role": "the container's role",
}
"""Texts for messages: the description of each credential source, by botocore's name of the source."""


def describe_credentials(options: S3Options) -> str:
    """Describe the source of the access key, with the last characters of the key's id. This may request a token."""
    session = BoundedSession()
    credentials = choose_credentials(options, session)
    match options.credentials:
        case AccessKeys():
            source = "the settings"
        case Path() as path:
            source = str(path)
        case _:
            known = _SOURCES.get(credentials.method, "the SDK's chain ({method})")
            files = {name: session.get_config_variable(name) for name in ("credentials_file", "config_file")}
            source = known.format(method=credentials.method, profile=session.profile or "default", **files)
    key_id = credentials.get_frozen_credentials().access_key or ""
    return f"access key …{key_id[-4:]} of {source}"


def _of_chain(options: S3Options, session: Session) -> Credentials:
    bound_chain(session)
    credentials = session.get_credentials()
    if credentials is None:
        raise AccessDeniedError(
            f"no credentials for {options.url}: the AWS SDK's chain (environment, profile, container, instance) "
            "found none; set storage.aws.access.key.id and .secret.access.key, or storage.aws.credentials.file"
        )
    _logger.info("%s: requests are signed with credentials of the AWS SDK's chain: %s", options.url, credentials.method)
    return credentials


class _Chosen(CredentialProvider):
    """Credential provider that returns the chosen credentials to the SDK."""

    METHOD = "tieredstore"
    CANONICAL_NAME = "tieredstore"

    def __init__(self, credentials: Credentials) -> None:
        super().__init__()
        self._credentials = credentials

    def load(self) -> Credentials:
        """Return the chosen credentials."""
        return self._credentials


def open_client(options: S3Options) -> S3Client:
    """Open a new client; raise AccessDeniedError or ConfigError if its credentials are not available."""
    with translate_errors(f"opening {options.url}"):
        session = BoundedSession()
        credentials = choose_credentials(options, session)
        session.register_component("credential_provider", CredentialResolver([_Chosen(credentials)]))
        # Leave the session untyped. The installed type stubs cover only S3, and leave out ``Session.client``, because
        # that method would need an overload for each service.
        factory: Any = boto3.Session(botocore_session=session, region_name=options.region)
        verify = None if options.certificate_check else False
        client: S3Client = factory.client(
            "s3", endpoint_url=options.endpoint_url, verify=verify, config=client_config(options)
        )
    if not options.certificate_check:
        _logger.warning("%s: the server's certificate is not checked", options.url)
    # Register this handler for all services, so that it runs before the SDK's own handler for S3. The SDK's handler
    # would take a web page for an error of the server.
    client.meta.events.register_first("before-parse.*.*", check_document)
    if options.legacy_md5:
        client.meta.events.register("before-call.s3.DeleteObjects", _md5_instead)
    if options.proxy is not None:
        # Import this module only if a proxy is configured, because only users of a proxy have PySocks.
        from tieredstore.backends.s3.socks import send_through  # noqa: PLC0415

        send_through(client, options, options.proxy)
    return client


def client_config(options: S3Options) -> Config:
    """Return the SDK's configuration. The SDK does not retry, because the store does, within its deadlines.

    The SDK adds a checksum only if S3 requires one, because the store itself adds a CRC-32C of each body. The CRC-32C
    takes about a tenth of the time of the SDK's CRC-32. If no checksum is sent, the signature covers the body's
    SHA-256, over TLS too.
    """
    compatible = options.compatibility is Compatibility.S3_COMPATIBLE
    path_style = True if compatible and options.path_style is None else options.path_style
    attempt = options.attempt_timeout_s or options.call_timeout_s
    return Config(
        connect_timeout=min(options.connect_timeout_s, attempt),
        read_timeout=min(options.read_timeout_s, attempt),
        max_pool_connections=options.concurrency + options.upload_parallelism,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_supported" if options.checksum_check else "when_required",
        s3={
            "addressing_style": "auto" if path_style is None else "path" if path_style else "virtual",
            # Sign the payload over plain HTTP as well, as the SDK does by default.
            "payload_signing_enabled": compatible or (options.endpoint_url or "").lower().startswith("http://"),
        },
    )


class RawRequest(TypedDict):
    """A request in the form that the SDK passes to a handler, which may change the request."""

    body: bytes
    headers: dict[str, str]
    context: dict[str, dict[str, object]]


class RawAnswer(TypedDict):
    """An answer in the form that the SDK passes to a handler before the SDK parses the body."""

    status_code: int
    headers: Mapping[str, str]
    body: bytes | StreamingBody


def _md5_instead(params: RawRequest, **_: object) -> None:
    """Send Content-MD5 in place of the SDK's CRC-32, as S3 required before 2024."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode("ascii")
    chosen = params["context"].get("checksum", {})
    for name in ("request_algorithm", "request_algorithm_header"):
        chosen.pop(name, None)


_ROOTS: Final = {
    "ListObjectsV2": "ListBucketResult",
    "ListObjectVersions": "ListVersionsResult",
    "ListMultipartUploads": "ListMultipartUploadsResult",
    "ListParts": "ListPartsResult",
    "DeleteObjects": "DeleteResult",
    "CreateMultipartUpload": "InitiateMultipartUploadResult",
    "CompleteMultipartUpload": "CompleteMultipartUploadResult",
    "GetBucketVersioning": "VersioningConfiguration",
    "GetObjectLockConfiguration": "ObjectLockConfiguration",
}
"""The root element of each operation's XML answer."""

_WITHOUT: Final = frozenset({"PutObject", "UploadPart", "DeleteObject"})
"""Operations whose answers have no XML document."""

_TRUNCATED: Final = re.compile(rb"<(?:\w+:)?IsTruncated>(?!\s*(?:true|false)\s*<)")
_ROOT: Final = re.compile(rb"\s*(?:<\?xml[^>]*>)?\s*(?:<!--.*?-->\s*)*<(?:\w+:)?(\w+)[\s/>]", re.DOTALL)


def check_document(operation_model: OperationModel, response_dict: RawAnswer, **_: object) -> None:
    """Raise MalformedAnswerError if a successful answer lacks the XML document that the operation returns. botocore
    calls this function before it parses the answer.

    An error document in an answer of status 200 passes, because the SDK detects it.
    """
    name, status, body = operation_model.name, response_dict["status_code"], response_dict["body"]
    length = response_dict["headers"].get("Content-Length", "0")
    if not isinstance(body, bytes) and status < 300 and not (length.isascii() and length.isdigit()):
        # Close the body, because the SDK would fail on the answer and leave its connection open.
        body.close()
        raise MalformedAnswerError(f"{name}: the store answered with a Content-Length of {length!r:.80}")
    if status >= 300 or (name not in _ROOTS and name not in _WITHOUT) or not isinstance(body, bytes):
        return
    match = _ROOT.match(body[:4096])
    root = "" if match is None else match[1].decode()
    expected = _ROOTS.get(name, "")
    if (
        (expected and breaks_off(body))
        or root == "Error"
        or (root == expected and bool(expected) == bool(body) and _TRUNCATED.search(body) is None)
    ):
        return
    raise MalformedAnswerError(
        f"{name}: the store answered with status {status} and {show_body(body)}, "
        + (f"which is no {expected}" if expected else "though such an answer has no body")
    )
