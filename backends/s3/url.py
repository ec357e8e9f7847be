"""Settings from ``s3://bucket/prefix`` and, unless the settings file has them, from the AWS SDK's environment."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import SplitResult

from tieredstore.backends.contract.urls import bucket_of, prefix_of
from tieredstore.errors import ConfigError
from tieredstore.installation import Extra
from tieredstore.model import Properties

_ANYWHERE: Final = "aws-global"
"""The SDK's name for an unknown region. The SDK then learns the bucket's region from the server's answer."""


def properties_of(parts: SplitResult, of_file: Properties) -> dict[str, str]:
    """Return the settings for a bucket, its region and its endpoint."""
    place = {"storage.backend.class": "s3", "storage.s3.bucket.name": bucket_of(parts), **prefix_of(parts)}
    if "storage.s3.region" in of_file and "storage.s3.endpoint.url" in of_file:
        return place
    return {**_of_environment(parts, of_file), **place}


def _of_environment(parts: SplitResult, of_file: Properties) -> dict[str, str]:
    # Read AWS_REGION here, because botocore ignores it, although Amazon's other SDKs read it.
    region = of_file.get("storage.s3.region") or os.environ.get("AWS_REGION") or _region_of_profile(parts.scheme)
    endpoint = of_file.get("storage.s3.endpoint.url")
    if not endpoint and os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return {"storage.s3.region": region or _ANYWHERE} | ({"storage.s3.endpoint.url": endpoint} if endpoint else {})


def _region_of_profile(scheme: str) -> str | None:
    """Return the region from ``AWS_DEFAULT_REGION`` or the SDK's profile; raise ConfigError without profile or SDK."""
    with Extra(f"{scheme}://", "s3"):
        import botocore.session  # noqa: PLC0415  other stores do not need it
        from botocore.exceptions import ConfigParseError, ProfileNotFound  # noqa: PLC0415
    try:
        region = botocore.session.get_session().get_config_variable("region")
    except (ConfigParseError, ProfileNotFound) as error:
        raise ConfigError(f"the AWS profile cannot be read: {error}") from error
    return region if isinstance(region, str) and region else None
