"""Options of the connection to an S3 store: frozen, picklable, and sufficient to make the client."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore.backends.cloud.options import CloudOptions, require_name, secret_text
from tieredstore.errors import ConfigError
from tieredstore.installation import Extra

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.config.clouds import AwsCredentials


class ListingOrder(enum.Enum):
    """Order of a server's listings. ``AUTO`` means by key, but by folder if the ``Server`` header names a server that
    is known to list by folder.
    """

    AUTO = "auto"
    BY_KEY = "by-key"
    BY_FOLDER = "by-folder"


class Compatibility(enum.Enum):
    """Kind of server.

    ``AWS``: each part has a CRC-32C that the server checks, and Amazon's rules choose the host name. ``S3_COMPATIBLE``:
    the bucket is in the path. No checksum headers are sent, because many other servers refuse them. The SHA-256 in the
    request's signature still covers bodies.
    """

    AWS = "aws"
    S3_COMPATIBLE = "s3-compatible"


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """Access key and secret key that sign requests. Temporary keys also have a token."""

    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class S3Options(CloudOptions):
    """Options of the connection to one bucket; see ``CloudOptions`` for limits and timeouts.

    ``credentials`` are keys, a properties file that is read again when it changes, or None for the SDK's own chain
    (environment, profile, container, instance). One ``put`` holds at most ``upload_parallelism + 1`` parts in memory.
    """

    bucket: str
    region: str | None = None
    endpoint_url: str | None = None
    path_style: bool | None = None
    compatibility: Compatibility = Compatibility.AWS
    listing_order: ListingOrder = ListingOrder.AUTO
    credentials: AccessKeys | Path | None = None
    credentials_reread_s: float = 10.0
    storage_class: str = "STANDARD"
    upload_parallelism: int = 4
    certificate_check: bool = True
    checksum_check: bool = False
    legacy_md5: bool = False

    @property
    def url(self) -> str:
        """The bucket's URL without credentials."""
        if self.endpoint_url is None:
            return f"s3://{self.bucket}"
        return f"{self.endpoint_url.rstrip('/')}/{self.bucket}"

    @classmethod
    def from_settings(cls, settings: Settings) -> S3Options:
        """Make the options from ``storage.s3.*``, ``storage.aws.*`` and ``storage.proxy.*``."""
        if settings.s3 is None:
            raise ConfigError("storage.s3.bucket.name is missing: the settings do not select the S3 store")
        s3 = settings.s3
        return cls.of_group(
            settings,
            s3,
            bucket=require_name("the bucket's name", s3.bucket_name),
            compatibility=Compatibility(s3.compatibility),
            listing_order=ListingOrder(s3.listing_order),
            credentials=_credentials(s3.credentials),
        )


def _credentials(aws: AwsCredentials) -> AccessKeys | Path | None:
    key_id, secret = secret_text(aws.access_key_id), secret_text(aws.secret_access_key)
    if key_id is None or secret is None:
        return aws.credentials_file
    return AccessKeys(key_id, secret, secret_text(aws.session_token))


def region_of_profile(scheme: str) -> str | None:
    """Return the region from ``AWS_DEFAULT_REGION`` or the SDK's profile; raise ConfigError without profile or SDK."""
    with Extra(f"{scheme}://", "s3"):
        import botocore.session  # noqa: PLC0415  other stores do not need it
        from botocore.exceptions import ConfigParseError, ProfileNotFound  # noqa: PLC0415
    try:
        region = botocore.session.get_session().get_config_variable("region")
    except (ConfigParseError, ProfileNotFound) as error:
        raise ConfigError(f"the AWS profile cannot be read: {error}") from error
    return region if isinstance(region, str) and region else None
