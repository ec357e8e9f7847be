"""Settings of cloud stores: ``storage.s3.*``, ``storage.gcs.*``, ``storage.azure.*``.

This module is separate from ``storage``, so that a program whose store is a folder does not build these groups.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, SecretStr, model_validator

from tieredstore.config.fields import SettingsGroup, broken_rule
from tieredstore.config.storage import require_both
from tieredstore.config.values import BOOLEAN, NAME, PATH, SECRET, URL, choice, integer, long, multiple
from tieredstore.limits import MAX_INT32


def _time_limit(name: str, of_what: str) -> Any:
    own = "" if name.startswith("s3.") else " The plugin lacks this property."
    return Field(default=None, alias=f"storage.{name}", description=f"Timeout in ms of one {of_what}.{own}")


class AwsCredentials(SettingsGroup):
    """Credentials for requests to S3. If none is set, the SDK's own chain finds credentials."""

    access_key_id: Annotated[SecretStr | None, SECRET] = Field(
        default=None,
        alias="storage.aws.access.key.id",
        description="Access key id. If you set it, also set storage.aws.secret.access.key.",
    )
    secret_access_key: Annotated[SecretStr | None, SECRET] = Field(
        default=None,
        alias="storage.aws.secret.access.key",
        description="Secret access key. If you set it, also set storage.aws.access.key.id.",
    )
    session_token: Annotated[SecretStr | None, SECRET] = Field(
        default=None, alias="storage.aws.session.token", description="Session token. Temporary access keys need it."
    )
    credentials_file: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="storage.aws.credentials.file",
        description=(
            "Properties file with the previous three properties, to set instead of them. The file is read again when "
            "it changes."
        ),
    )

    @model_validator(mode="after")
    def _one_identity(self) -> AwsCredentials:
        require_both(("aws.access.key.id", self.access_key_id), ("aws.secret.access.key", self.secret_access_key))
        if self.session_token is not None and self.access_key_id is None:
            raise broken_rule(
                "storage.aws.session.token",
                "is set without storage.aws.access.key.id: set the access key that belongs to the token",
            )
        if self.credentials_file is not None and self.access_key_id is not None:
            raise broken_rule(
                "storage.aws.credentials.file",
                "cannot be set together with storage.aws.access.key.id: set only one of the two",
            )
        return self


class S3Settings(SettingsGroup):
    """Amazon S3 and compatible stores."""

    bucket_name: Annotated[str, NAME] = Field(
        alias="storage.s3.bucket.name", description="Bucket that holds the objects."
    )
    region: Annotated[str, NAME] = Field(alias="storage.s3.region", description="Region of the bucket.")
    endpoint_url: Annotated[str | None, URL] = Field(
        default=None, alias="storage.s3.endpoint.url", description="URL of the S3 server, if it is not Amazon's."
    )
    path_style: Annotated[bool | None, BOOLEAN] = Field(
        default=None,
        alias="storage.s3.path.style.access.enabled",
        description=(
            "true: put the bucket's name in the URL's path. false: put it in the host name. If unset, the SDK decides."
        ),
    )
    # The limits are the smallest part that S3 accepts, and the longest array of a JVM.
    part_size: Annotated[int, integer(5242880, 2147483639)] = Field(
        default=26214400,
        alias="storage.s3.multipart.upload.part.size",
        description="Size in bytes of a part in multipart uploads. Smaller objects are sent in one request.",
    )
    upload_parallelism: Annotated[int, integer(1, 64)] = Field(
        default=4,
        alias="storage.s3.multipart.upload.parallelism",
        description=(
            "Parts of one upload to send in parallel. One more part is kept in memory. The plugin lacks this property."
        ),
    )
    compatibility: Annotated[str, choice("aws", "s3-compatible")] = Field(
        default="aws",
        alias="storage.s3.compatibility",
        description=(
            "s3-compatible: send no checksum headers, because many servers refuse them, and put the bucket in the "
            "path unless storage.s3.path.style.access.enabled says otherwise. The plugin lacks this property."
        ),
    )
    listing_order: Annotated[str, choice("auto", "by-key", "by-folder")] = Field(
        default="auto",
        alias="storage.s3.listing.order",
        description=(
            "Order in which the server lists keys. by-folder: like SeaweedFS. auto: decide by the server's name. "
            "The plugin lacks this property."
        ),
    )
    storage_class: Annotated[
        str,
        choice(
            *("STANDARD", "REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER"),
            *("DEEP_ARCHIVE", "OUTPOSTS", "GLACIER_IR", "SNOW", "EXPRESS_ONEZONE", "FSX_OPENZFS", "FSX_ONTAP"),
        ),
    ] = Field(
        default="STANDARD",
        alias="storage.s3.storage.class",
        description="Storage class of new objects. Objects in archive classes cannot be read.",
    )
    api_call_timeout_ms: Annotated[int | None, long(1)] = _time_limit("s3.api.call.timeout", "call with its retries")
    api_call_attempt_timeout_ms: Annotated[int | None, long(1)] = _time_limit(
        "s3.api.call.attempt.timeout", "attempt of a call"
    )
    legacy_md5: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="storage.s3.legacy.md5.plugin.enabled",
        description="Send the header Content-MD5, not the newer checksums, for servers that do not support these.",
    )
    certificate_check: Annotated[bool, BOOLEAN] = Field(
        default=True,
        alias="storage.aws.certificate.check.enabled",
        description="true: check the server's certificate. false: trust every server.",
    )
    checksum_check: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="storage.aws.checksum.check.enabled",
        description="Check downloads against the checksums that the server sends.",
    )
    credentials: AwsCredentials = AwsCredentials()


class GcsSettings(SettingsGroup):
    """Google Cloud Storage. Exactly one of the three kinds of credentials is set."""

    bucket_name: Annotated[str, NAME] = Field(
        alias="storage.gcs.bucket.name", description="Bucket that holds the objects."
    )
    endpoint_url: Annotated[str | None, URL] = Field(
        default=None, alias="storage.gcs.endpoint.url", description="URL of the server, if it is not Google's."
    )
    # Google accepts requests of a resumable upload only in multiples of 256 KiB.
    part_size: Annotated[int, multiple(262144)] = Field(
        default=26214400,
        alias="storage.gcs.resumable.upload.chunk.size",
        description="Bytes to send in each request of a resumable upload.",
    )
    credentials_default: Annotated[bool | None, BOOLEAN] = Field(
        default=None,
        alias="storage.gcs.credentials.default",
        description="true: use Google's application default credentials. false: send requests without credentials.",
    )
    credentials_json: Annotated[SecretStr | None, SECRET] = Field(
        default=None,
        alias="storage.gcs.credentials.json",
        description="Credentials as JSON. An object with only access_token is accepted.",
    )
    credentials_path: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="storage.gcs.credentials.path",
        description="File that contains the credentials as JSON. It is read again when it changes.",
    )
    api_call_timeout_ms: Annotated[int | None, long(1)] = _time_limit("gcs.api.call.timeout", "call with its retries")
    api_call_attempt_timeout_ms: Annotated[int | None, long(1)] = _time_limit(
        "gcs.api.call.attempt.timeout", "attempt of a call"
    )

    @model_validator(mode="after")
    def _one_identity(self) -> GcsSettings:
        credentials = (self.credentials_default, self.credentials_json, self.credentials_path)
        if sum(kind is not None for kind in credentials) != 1:
            raise broken_rule(
                "storage.gcs.credentials.default",
                (
                    "or storage.gcs.credentials.json or storage.gcs.credentials.path must be set: "
                    "set exactly one of the three"
                ),
            )
        return self


class AzureSettings(SettingsGroup):
    """Azure Blob Storage: a connection string, or an account with a key, a SAS token or the default credentials."""

    container_name: Annotated[str, NAME] = Field(
        alias="storage.azure.container.name", description="Container that holds the objects."
    )
    connection_string: Annotated[SecretStr | None, SECRET] = Field(
        default=None,
        alias="storage.azure.connection.string",
        description=(
            "Connection string, which contains the endpoint and the credentials. If you set it, set none of the "
            "next four properties."
        ),
    )
    account_name: Annotated[str | None, NAME] = Field(
        default=None,
        alias="storage.azure.account.name",
        description=(
            "Name of the storage account. If no endpoint URL is set, the endpoint is the account's host name at Azure."
        ),
    )
    account_key: Annotated[SecretStr | None, SECRET] = Field(
        default=None,
        alias="storage.azure.account.key",
        description="Shared key of the account. If a SAS token is also set, the shared key is used.",
    )
    sas_token: Annotated[SecretStr | None, SECRET] = Field(
        default=None,
        alias="storage.azure.sas.token",
        description=(
            "Shared access signature (SAS). If neither this nor the account key is set, Azure's default "
            "credentials are used."
        ),
    )
    endpoint_url: Annotated[str | None, URL] = Field(
        default=None, alias="storage.azure.endpoint.url", description="URL of the server, if it is not Azure's."
    )
    part_size: Annotated[int, integer(102400, MAX_INT32)] = Field(
        default=26214400, alias="storage.azure.upload.block.size", description="Size in bytes of a block in uploads."
    )
    upload_parallelism: Annotated[int, integer(1, 64)] = Field(
        default=4,
        alias="storage.azure.upload.parallelism",
        description=(
            "Blocks of one upload to send in parallel. One more block is kept in memory. "
            "The plugin lacks this property."
        ),
    )
    send_md5: Annotated[bool, BOOLEAN] = Field(
        default=True,
        alias="storage.azure.upload.md5.enabled",
        description=(
            "Send an MD5 checksum with each body, so that the server can check the body. "
            "The plugin lacks this property."
        ),
    )
    api_call_timeout_ms: Annotated[int | None, long(1)] = _time_limit("azure.api.call.timeout", "call with its retries")
    api_call_attempt_timeout_ms: Annotated[int | None, long(1)] = _time_limit(
        "azure.api.call.attempt.timeout", "attempt of a call"
    )

    @model_validator(mode="after")
    def _one_identity(self) -> AzureSettings:
        if self.connection_string is not None:
            self._only_connection_string()
        elif self.account_name is None and self.sas_token is None:
            raise broken_rule(
                "storage.azure.account.name",
                "is missing: set this property, or storage.azure.sas.token, or storage.azure.connection.string",
            )
        elif self.account_name is None and self.account_key is not None:
            raise broken_rule(
                "storage.azure.account.key", "is set without storage.azure.account.name: also set the account's name"
            )
        elif self.account_name is None and self.endpoint_url is None:
            raise broken_rule(
                "storage.azure.sas.token",
                "is set without storage.azure.account.name or storage.azure.endpoint.url: also set one of these",
            )
        return self

    def _only_connection_string(self) -> None:
        for name in ("account_name", "account_key", "sas_token", "endpoint_url"):
            if getattr(self, name) is not None:
                excluded = f"storage.azure.{name.replace('_', '.')}"
                raise broken_rule(
                    excluded, "cannot be set together with storage.azure.connection.string: remove one of the two"
                )


CLOUD_GROUPS: Final[tuple[type[SettingsGroup], ...]] = (S3Settings, AwsCredentials, GcsSettings, AzureSettings)
"""All settings groups of cloud stores."""
