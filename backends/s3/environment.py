"""What the AWS SDK's own environment says about where a bucket is."""

from __future__ import annotations

import os

import botocore.session
from botocore.exceptions import ConfigParseError, ProfileNotFound

from tieredstore.errors import ConfigError


def environment_region() -> str | None:
    """The region of ``AWS_REGION``, ``AWS_DEFAULT_REGION`` or the SDK's profile; ConfigError if there is no profile.

    The first of these is what other SDKs of Amazon read; botocore does not.
    """
    if named := os.environ.get("AWS_REGION"):
        return named
    try:
        region = botocore.session.get_session().get_config_variable("region")
    except (ConfigParseError, ProfileNotFound) as error:
        raise ConfigError(f"the AWS profile cannot be read: {error}") from error
    return region if isinstance(region, str) and region else None


def environment_endpoint() -> str | None:
    """The endpoint of ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``, unless the environment says to ignore them."""
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
