"""Options of the connection to a bucket of Google Cloud Storage: frozen, picklable, and sufficient to make the
client."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore.backends.cloud.options import CloudOptions, require_name
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.config.clouds import GcsSettings


@dataclass(frozen=True, slots=True)
class Anonymous:
    """No identity, for public buckets and emulators."""


@dataclass(frozen=True, slots=True)
class ApplicationDefault:
    """Google's default credentials: ``GOOGLE_APPLICATION_CREDENTIALS``, gcloud's file, or the machine's account."""


@dataclass(frozen=True, slots=True)
class CredentialsJson:
    """Credentials as JSON text."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CredentialsFile:
    """A file with credentials as JSON; requests check it for changes every ``reread_s`` seconds."""

    path: Path
    reread_s: float = 10.0


Credentials = Anonymous | ApplicationDefault | CredentialsJson | CredentialsFile


@dataclass(frozen=True, slots=True)
class GcsOptions(CloudOptions):
    """Options of the connection to one bucket; see ``CloudOptions`` for limits and timeouts.

    A ``put`` of a stream holds at most two parts (chunks of a resumable upload) in memory.
    """

    bucket: str
    credentials: Credentials = ApplicationDefault()
    endpoint_url: str | None = None
    delete_parallelism: int = 8

    @property
    def url(self) -> str:
        """The bucket's URL without credentials."""
        if self.endpoint_url is None:
            return f"gs://{self.bucket}"
        return f"{self.endpoint_url.rstrip('/')}/{self.bucket}"

    @classmethod
    def from_settings(cls, settings: Settings) -> GcsOptions:
        """Make the options from ``storage.gcs.*`` and ``storage.proxy.*``."""
        if settings.gcs is None:
            raise ConfigError("storage.gcs.bucket.name is missing: the settings do not select Google Cloud Storage")
        gcs = settings.gcs
        bucket = require_name("the bucket's name", gcs.bucket_name)
        return cls.of_group(settings, gcs, bucket=bucket, credentials=_credentials(gcs))


def _credentials(gcs: GcsSettings) -> Credentials:
    if gcs.credentials_json is not None:
        return CredentialsJson(gcs.credentials_json.get_secret_value())
    if gcs.credentials_path is not None:
        return CredentialsFile(gcs.credentials_path)
    return ApplicationDefault() if gcs.credentials_default else Anonymous()
