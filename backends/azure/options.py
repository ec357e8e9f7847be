"""Options of the connection to a container of Azure Blob Storage: frozen, picklable, and sufficient to make the
client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tieredstore.backends.cloud.options import CloudOptions, require_name, secret_text
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.config.clouds import AzureSettings


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """Endpoint and credentials in one connection string."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AccountKey:
    """The shared key of an account."""

    account: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SasToken:
    """A shared access signature."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AzureDefault:
    """Azure's default credentials: environment, workload identity, managed identity, or Azure's command line."""


Credentials = ConnectionString | AccountKey | SasToken | AzureDefault


@dataclass(frozen=True, slots=True)
class AzureOptions(CloudOptions):
    """Options of the connection to one container; see ``CloudOptions`` for limits and timeouts.

    ``account_url`` is required unless a connection string contains it. One ``put`` holds at most ``upload_parallelism +
    1`` parts (blocks) in memory. The service returns listing pages of up to 5,000 blobs.

    With ``send_md5``, each body is sent with an MD5 that the service checks. The MD5 costs about 1.5 ms of a core per
    MB.
    """

    container: str
    credentials: Credentials = AzureDefault()
    account_url: str | None = None
    upload_parallelism: int = 4
    page_size: int = field(default=5000, kw_only=True)
    send_md5: bool = True

    @classmethod
    def from_settings(cls, settings: Settings) -> AzureOptions:
        """Make the options from ``storage.azure.*`` and ``storage.proxy.*``."""
        if settings.azure is None:
            raise ConfigError("storage.azure.container.name is missing: the settings do not select Azure Blob Storage")
        azure = settings.azure
        return cls.of_group(
            settings,
            azure,
            container=require_name("the container's name", azure.container_name),
            credentials=_credentials(azure),
            account_url=_account_url(azure),
        )


def _credentials(azure: AzureSettings) -> Credentials:
    """Choose credentials in the plugin's order: the account key, then the token, then the default credentials."""
    if azure.connection_string is not None:
        return ConnectionString(azure.connection_string.get_secret_value())
    key, token = secret_text(azure.account_key), secret_text(azure.sas_token)
    if azure.account_name and key:
        return AccountKey(azure.account_name, key)
    return SasToken(token) if token else AzureDefault()


def _account_url(azure: AzureSettings) -> str | None:
    if azure.connection_string is not None:
        return None
    if azure.endpoint_url is not None:
        return azure.endpoint_url
    account = require_name("the account's name", azure.account_name or "")
    return f"https://{account}.blob.core.windows.net"
