"""What ``s3://bucket/prefix`` says, and what the AWS SDK's environment adds where a settings file does not."""

from __future__ import annotations

from urllib.parse import SplitResult

from tieredstore.backends.contract.urls import bucket_of, prefix_of
from tieredstore.errors import ConfigError
from tieredstore.installation import install_command
from tieredstore.model import Properties


def properties_of(parts: SplitResult, of_file: Properties) -> dict[str, str]:
    """The properties of a bucket, its region and its endpoint."""
    place = {"storage.backend.class": "s3", "storage.s3.bucket.name": bucket_of(parts), **prefix_of(parts)}
    if "storage.s3.region" in of_file and "storage.s3.endpoint.url" in of_file:
        return place
    return {**_of_environment(parts, of_file), **place}


def _of_environment(parts: SplitResult, of_file: Properties) -> dict[str, str]:
    try:
        # Needs the SDK.
        from tieredstore.backends.s3.environment import environment_endpoint, environment_region  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{parts.scheme}:// needs the package {error.name}: {install_command('s3')}") from error
    region = of_file.get("storage.s3.region") or environment_region()
    if region is None:
        raise ConfigError(
            f"nothing says the region of s3://{parts.netloc}: set storage.s3.region in a settings file, "
            "AWS_REGION, or the region of the AWS profile"
        )
    endpoint = of_file.get("storage.s3.endpoint.url") or environment_endpoint()
    return {"storage.s3.region": region} | ({"storage.s3.endpoint.url": endpoint} if endpoint else {})
