"""Settings of cloud stores: ``storage.s3.*``, ``storage.gcs.*``, ``storage.azure.*``.

Separate from ``storage``, so that a program whose store is a folder does not build these groups.
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
    own = "" if name.startswith("s3.") else " Not of the plugin."
    return Field(default=None, alias=f"storage.{name}", description=f"Timeout in ms of one {of_what}.{own}")


class AwsCredentials(SettingsGroup):
    """Credentials for requests to S3. If none is set, the SDK's own chain finds credentials."""

    access_key_id: Annotated[SecretStr | None, SECRET] = Field(
        default=None, alias="storage.aws.access.key.id", description="Access key; needs the secret access key."
    )
    secret_access_key: Annotated[SecretStr | None, SECRET] = Field(
        default=None, alias="storage.aws.secret.access.key", description="Secret access key; needs the access key id."
    )
    session_token: Annotated[SecretStr | None, SECRET] = Field(
        default=None, alias="storage.aws.session.token", description="Session token of temporary access keys."
    )
    credentials_file: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="storage.aws.credentials.file",
        description="Properties file with these three values instead; read again when it changes.",
    )

    @model_validator(mode="after")
    def _one_identity(self) -> AwsCredentials:
        require_both(("aws.access.key.id", self.access_key_id), ("aws.secret.access.key", self.secret_access_key))
        if self.session_token is not None and self.access_key_id is None:
            raise broken_rule("storage.aws.session.token", "is set without the access key that it belongs to")
        if self.credentials_file is not None and self.access_key_id is not None:
            raise broken_rule("storage.aws.credentials.file", "excludes storage.aws.access.key.id: set one of them")
        return self


class S3Settings(SettingsGroup):
    """Amazon S3 and compatible stores."""

    bucket_name: Annotated[str, NAME] = Field(
        alias="storage.s3.bucket.name", description="Bucket that holds the objects."
    )
    region: Annotated[str, NAME] = Field(alias="storage.s3.region", description="Region of the bucket.")
    endpoint_url: Annotated[str | None, URL] = Field(
        default=None, alias="storage.s3.endpoint.url", description="Endpoint of a server other than Amazon's."
    )
    path_style: Annotated[bool | None, BOOLEAN] = Field(
        default=None,
        alias="storage.s3.path.style.access.enabled",
        description="Bucket in the path (true) or in the host name (false); unset: the SDK decides.",
    )
    # The limits are the smallest part that S3 accepts, and the longest array of a JVM.
    part_size: Annotated[int, integer(5242880, 2147483639)] = Field(
        default=26214400,
        alias="storage.s3.multipart.upload.part.size",
        description="Part size of multipart uploads; smaller objects take one request.",
    )
    upload_parallelism: Annotated[int, integer(1, 64)] = Field(
        default=4,
        alias="storage.s3.multipart.upload.parallelism",
        description="Parallel parts of one upload; one more is in memory. Not of the plugin.",
    )
    compatibility: Annotated[str, choice("aws", "s3-compatible")] = Field(
        default="aws",
        alias="storage.s3.compatibility",
        description=(
            "s3-compatible: send no checksum headers, which many servers refuse; by default put the bucket in the "
            "path. Not of the plugin."
        ),
    )
    listing_order: Annotated[str, choice("auto", "by-key", "by-folder")] = Field(
        default="auto",
        alias="storage.s3.listing.order",
        description=(
            "Order in which the server lists keys; by-folder: like SeaweedFS; auto: recognize the server by its "
            "name. Not of the plugin."
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
        description="Storage class of new objects; reads from archive classes fail.",
    )
    api_call_timeout_ms: Annotated[int | None, long(1)] = _time_limit("s3.api.call.timeout", "call with its retries")
    api_call_attempt_timeout_ms: Annotated[int | None, long(1)] = _time_limit(
        "s3.api.call.attempt.timeout", "attempt of a call"
    )
    legacy_md5: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="storage.s3.legacy.md5.plugin.enabled",
        description="Send Content-MD5 instead of newer checksums, for stores that do not know these.",
    )
    certificate_check: Annotated[bool, BOOLEAN] = Field(
        default=True,
        alias="storage.aws.certificate.check.enabled",
        description="Check the server's certificate; false trusts every server.",
    )
    checksum_check: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="storage.aws.checksum.check.enabled",
        description="Check the store's checksums on download.",
    )
    credentials: AwsCredentials = AwsCredentials()


class GcsSettings(SettingsGroup):
    """Google Cloud Storage. Exactly one of the three kinds of credentials is set."""

    bucket_name: Annotated[str, NAME] = Field(
        alias="storage.gcs.bucket.name", description="Bucket that holds the objects."
    )
    endpoint_url: Annotated[str | None, URL] = Field(
        default=None, alias="storage.gcs.endpoint.url", description="Endpoint of a server other than Google's."
    )
    # Google accepts requests of a resumable upload only in multiples of 256 KiB.
    part_size: Annotated[int, multiple(262144)] = Field(
        default=26214400,
        alias="storage.gcs.resumable.upload.chunk.size",
        description="Bytes per request of a resumable upload.",
    )
    credentials_default: Annotated[bool | None, BOOLEAN] = Field(
        default=None,
        alias="storage.gcs.credentials.default",
        description="true: application default credentials; false: anonymous.",
    )
    credentials_json: Annotated[SecretStr | None, SECRET] = Field(
        default=None,
        alias="storage.gcs.credentials.json",
        description="Credentials as JSON; access_token alone is enough.",
    )
    credentials_path: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="storage.gcs.credentials.path",
        description="File with the credentials as JSON; read again when it changes.",
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
                "storage.gcs.credentials.default", "or .json or .path: exactly one of these three must be set"
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
        description="Endpoint and credentials in one text; excludes the next four.",
    )
    account_name: Annotated[str | None, NAME] = Field(
        default=None,
        alias="storage.azure.account.name",
        description="Storage account; its host name is the endpoint unless one is set.",
    )
    account_key: Annotated[SecretStr | None, SECRET] = Field(
        default=None,
        alias="storage.azure.account.key",
        description="Shared key of the account; takes precedence over a SAS token.",
    )
    sas_token: Annotated[SecretStr | None, SECRET] = Field(
        default=None,
        alias="storage.azure.sas.token",
        description="Shared access signature; without key and token: Azure's default credentials.",
    )
    endpoint_url: Annotated[str | None, URL] = Field(
        default=None, alias="storage.azure.endpoint.url", description="Endpoint of a server other than Azure's."
    )
    part_size: Annotated[int, integer(102400, MAX_INT32)] = Field(
        default=26214400, alias="storage.azure.upload.block.size", description="Block size of uploads."
    )
    upload_parallelism: Annotated[int, integer(1, 64)] = Field(
        default=4,
        alias="storage.azure.upload.parallelism",
        description="Parallel blocks of one upload; one more is in memory. Not of the plugin.",
    )
    send_md5: Annotated[bool, BOOLEAN] = Field(
        default=True,
        alias="storage.azure.upload.md5.enabled",
        description="Send an MD5 of each body, for the service to check. Not of the plugin.",
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
                "storage.azure.account.name", "is missing: set it, storage.azure.sas.token or .connection.string"
            )
        elif self.account_name is None and self.account_key is not None:
            raise broken_rule("storage.azure.account.key", "is set without storage.azure.account.name")
        elif self.account_name is None and self.endpoint_url is None:
            raise broken_rule(
                "storage.azure.sas.token", "needs storage.azure.account.name or storage.azure.endpoint.url beside it"
            )
        return self

    def _only_connection_string(self) -> None:
        for name in ("account_name", "account_key", "sas_token", "endpoint_url"):
            if getattr(self, name) is not None:
                excluded = f"storage.azure.{name.replace('_', '.')}"
                raise broken_rule(excluded, "is excluded by storage.azure.connection.string: set one of them")


CLOUD_GROUPS: Final[tuple[type[SettingsGroup], ...]] = (S3Settings, AwsCredentials, GcsSettings, AzureSettings)
"""All settings groups of cloud stores."""
