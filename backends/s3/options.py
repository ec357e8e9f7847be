"""How an S3 store is reached: everything that the client is made of, as one frozen, picklable value."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tieredstore.backends.http.proxies import SocksProxy
from tieredstore.backends.s3.listing import ListingOrder
from tieredstore.errors import ConfigError
from tieredstore.process.deadline import CALL_TIMEOUT_S, seconds

if TYPE_CHECKING:
    from pydantic import SecretStr

    from tieredstore.config import Settings
    from tieredstore.config.storage import AwsCredentials

MIN_PART_SIZE: Final = 5 << 20
"""The smallest part that S3 takes, but for the last of an upload."""


class Compatibility(enum.Enum):
    """What the server at the other end is.

    ``AWS``: every part is sent with a CRC-32C that the server checks, and Amazon's own rules choose host names.
    ``S3_COMPATIBLE``: no checksum headers, which many other servers refuse; the bucket stands in the path. Bodies are
    still covered by the SHA-256 of the request's signature.
    """

    AWS = "aws"
    S3_COMPATIBLE = "s3-compatible"


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """Keys that sign requests; the token belongs to temporary ones."""

    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class S3Options:
    """The connection to one bucket.

    ``credentials``: keys, a properties file that is read again when it changes, or None for the SDK's own chain
    (environment, profile, container, instance). ``concurrency`` is how many requests the store's users run at once:
    the size of the connection pool. One ``put`` holds at most ``upload_parallelism + 1`` parts in memory.

    Of the time-outs ``call_timeout_s`` bounds one request with all its retries, ``attempt_timeout_s`` one try of it
    (no limit of its own if None), ``upload_timeout_s`` a whole ``put``; ``connect_timeout_s`` and ``read_timeout_s``
    bound each wait for the network, and so by how much the other three can be overrun.
    """

    bucket: str
    region: str | None = None
    endpoint_url: str | None = None
    path_style: bool | None = None
    compatibility: Compatibility = Compatibility.AWS
    listing_order: ListingOrder = ListingOrder.AUTO
    credentials: AccessKeys | Path | None = None
    credentials_reread_s: float = 10.0
    part_size: int = 26214400
    storage_class: str = "STANDARD"
    concurrency: int = 16
    upload_parallelism: int = 4
    attempts: int = 5
    call_timeout_s: float = CALL_TIMEOUT_S
    attempt_timeout_s: float | None = None
    upload_timeout_s: float = 7200.0
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    certificate_check: bool = True
    checksum_check: bool = False
    legacy_md5: bool = False
    proxy: SocksProxy | None = None

    def __post_init__(self) -> None:
        if not self.bucket:
            raise ConfigError("the bucket's name is empty")
        if self.part_size < MIN_PART_SIZE:
            raise ConfigError(f"a part of {self.part_size} bytes is too small: S3 takes {MIN_PART_SIZE} or more")
        if self.concurrency < 1 or self.upload_parallelism < 1:
            raise ConfigError("concurrency and upload_parallelism must be at least 1")
        if self.endpoint_url is not None and "@" in urlsplit(self.endpoint_url).netloc:
            raise ConfigError("the S3 endpoint's URL must not hold credentials; set them by themselves")

    @property
    def identity(self) -> str:
        """Where the bucket is, as a URL."""
        if self.endpoint_url is None:
            return f"s3://{self.bucket}"
        return f"{self.endpoint_url.rstrip('/')}/{self.bucket}"

    @classmethod
    def from_settings(cls, settings: Settings) -> S3Options:
        """The options that ``storage.s3.*``, ``storage.aws.*`` and ``storage.proxy.*`` give."""
        if settings.s3 is None:
            raise ConfigError("storage.s3.bucket.name is missing: the settings do not select the S3 store")
        s3 = settings.s3
        return cls(
            bucket=s3.bucket_name,
            region=s3.region,
            endpoint_url=s3.endpoint_url,
            path_style=s3.path_style_access,
            compatibility=Compatibility(s3.compatibility),
            listing_order=ListingOrder(s3.listing_order),
            credentials=_credentials(s3.credentials),
            part_size=s3.part_size,
            concurrency=settings.requests_at_once,
            upload_parallelism=s3.part_parallelism,
            storage_class=s3.storage_class,
            call_timeout_s=seconds(s3.api_call_timeout_ms) or CALL_TIMEOUT_S,
            attempt_timeout_s=seconds(s3.api_call_attempt_timeout_ms),
            certificate_check=s3.certificate_check,
            checksum_check=s3.checksum_check,
            legacy_md5=s3.legacy_md5,
            proxy=SocksProxy.from_settings(settings.proxy),
        )


def _credentials(given: AwsCredentials) -> AccessKeys | Path | None:
    if given.access_key_id is None or given.secret_access_key is None:
        return given.credentials_file
    return AccessKeys(
        given.access_key_id.get_secret_value(), given.secret_access_key.get_secret_value(), _secret(given.session_token)
    )


def _secret(given: SecretStr | None) -> str | None:
    return None if given is None else given.get_secret_value()
