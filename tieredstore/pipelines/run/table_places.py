"""How engines of tables name the files of an output, and what they need to know of its store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.config import Settings


@dataclass(frozen=True, slots=True)
class TablePlace:
    """What keys of the store lie under, and the properties of pyiceberg's files for it, secrets too."""

    base: str
    properties: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def path(self, key: str) -> str:
        """The name of an object; ConfigError for one that engines would read as another."""
        if "#" in self.base + key or "?" in self.base + key:
            raise ConfigError(f"{self.base}{key} cannot be in a table: names with # or ? are read as others there")
        return f"{self.base}{key}"


def place_of(output: Settings) -> TablePlace:
    """That of a folder or a bucket of S3."""
    if output.s3 is None:
        root = output.storage_root
        if root is None:
            raise ConfigError("table=iceberg needs an output in a folder or on S3: other stores are not known to it")
        return TablePlace(f"file://{root.absolute()}/")
    s3 = output.s3
    properties = {"s3.region": s3.region}
    if s3.endpoint_url is not None:
        properties["s3.endpoint"] = s3.endpoint_url
    is_in_path = s3.path_style_access if s3.path_style_access is not None else s3.compatibility != "aws"
    properties["s3.force-virtual-addressing"] = str(not is_in_path and s3.endpoint_url is None).lower()
    for name, secret in (
        ("s3.access-key-id", s3.credentials.access_key_id),
        ("s3.secret-access-key", s3.credentials.secret_access_key),
        ("s3.session-token", s3.credentials.session_token),
    ):
        if secret is not None:
            properties[name] = secret.get_secret_value()
    return TablePlace(f"s3://{s3.bucket_name}/", properties)
