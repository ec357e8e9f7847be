"""How a bucket of Google Cloud Storage is reached: everything that the client is made of, frozen and picklable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tieredstore.backends.http.proxies import SocksProxy
from tieredstore.errors import ConfigError
from tieredstore.process.deadline import CALL_TIMEOUT_S, seconds

if TYPE_CHECKING:
    from tieredstore.config import GcsSettings, Settings

CHUNK_UNIT: Final = 256 * 1024
"""Chunks of a resumable upload, but for the last, are multiples of this."""


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Requests without an identity: public buckets and emulators."""


@dataclass(frozen=True, slots=True)
class ApplicationDefault:
    """Google's application default credentials: ``GOOGLE_APPLICATION_CREDENTIALS``, gcloud's file, the machine's."""


@dataclass(frozen=True, slots=True)
class CredentialsJson:
    """Credentials as JSON text."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CredentialsFile:
    """A file of credentials as JSON, looked at again every ``reread_s`` seconds while requests are made."""

    path: Path
    reread_s: float = 10.0


Identity = Anonymous | ApplicationDefault | CredentialsJson | CredentialsFile


@dataclass(frozen=True, slots=True)
class GcsOptions:
    """The connection to one bucket.

    ``concurrency`` is how many requests the store's users run at once: the size of the connection pool. A ``put`` of
    a stream holds at most two chunks in memory. Of the time-outs ``call_timeout_s`` bounds one request with all its
    retries, ``attempt_timeout_s`` one try of it (no limit of its own if None), ``upload_timeout_s`` a whole ``put``;
    ``connect_timeout_s`` and ``read_timeout_s`` bound each wait for the network.
    """

    bucket: str
    identity: Identity = ApplicationDefault()
    endpoint_url: str | None = None
    chunk_size: int = 26214400
    concurrency: int = 16
    delete_parallelism: int = 8
    attempts: int = 5
    call_timeout_s: float = CALL_TIMEOUT_S
    attempt_timeout_s: float | None = None
    upload_timeout_s: float = 7200.0
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    proxy: SocksProxy | None = None

    def __post_init__(self) -> None:
        if not self.bucket:
            raise ConfigError("the bucket's name is empty")
        if self.chunk_size < CHUNK_UNIT or self.chunk_size % CHUNK_UNIT:
            raise ConfigError(f"an upload chunk of {self.chunk_size} bytes is not a multiple of {CHUNK_UNIT}")
        if self.concurrency < 1 or self.delete_parallelism < 1:
            raise ConfigError("concurrency and delete_parallelism must be at least 1")
        if self.endpoint_url is not None and "@" in urlsplit(self.endpoint_url).netloc:
            raise ConfigError("the endpoint's URL must not hold credentials; set them by themselves")

    @property
    def url(self) -> str:
        """Where the bucket is, without credentials."""
        if self.endpoint_url is None:
            return f"gs://{self.bucket}"
        return f"{self.endpoint_url.rstrip('/')}/{self.bucket}"

    @classmethod
    def from_settings(cls, settings: Settings) -> GcsOptions:
        """The options that ``storage.gcs.*`` and ``storage.proxy.*`` give."""
        if settings.gcs is None:
            raise ConfigError("storage.gcs.bucket.name is missing: the settings do not select Google Cloud Storage")
        gcs = settings.gcs
        return cls(
            bucket=gcs.bucket_name,
            identity=_identity(gcs),
            endpoint_url=gcs.endpoint_url,
            chunk_size=gcs.resumable_chunk_size,
            concurrency=settings.requests_at_once,
            call_timeout_s=seconds(gcs.api_call_timeout_ms) or CALL_TIMEOUT_S,
            attempt_timeout_s=seconds(gcs.api_call_attempt_timeout_ms),
            proxy=SocksProxy.from_settings(settings.proxy),
        )


def _identity(gcs: GcsSettings) -> Identity:
    if gcs.credentials_json is not None:
        return CredentialsJson(gcs.credentials_json.get_secret_value())
    if gcs.credentials_path is not None:
        return CredentialsFile(gcs.credentials_path)
    return ApplicationDefault() if gcs.credentials_default else Anonymous()
