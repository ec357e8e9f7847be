"""How a container of Azure Blob Storage is reached: everything that the client is made of, frozen and picklable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tieredstore.backends.http.proxies import SocksProxy
from tieredstore.errors import ConfigError
from tieredstore.process.deadline import CALL_TIMEOUT_S, seconds

if TYPE_CHECKING:
    from pydantic import SecretStr

    from tieredstore.config import AzureSettings, Settings


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """Endpoint and credentials in one text."""

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
    """Azure's default credentials: environment, workload identity, the machine's identity, the command line's."""


Identity = ConnectionString | AccountKey | SasToken | AzureDefault


@dataclass(frozen=True, slots=True)
class AzureOptions:
    """The connection to one container.

    ``account_url`` is needed unless there is a connection string, which holds it. ``concurrency`` is how many requests
    the store's users run at once: the size of the connection pool. One ``put`` holds at most ``upload_parallelism + 1``
    blocks in memory. ``page_size`` is how many objects one request lists: the service gives up to 5,000. ``send_md5``
    sends an MD5 with each body, which the service checks: about 1.5 ms of a core for each MB. Of the time-outs
    ``call_timeout_s`` bounds one request with all its retries, ``attempt_timeout_s`` one try of it (no limit of its own
    if None), ``upload_timeout_s`` a whole ``put``; ``connect_timeout_s`` and ``read_timeout_s`` bound each wait for the
    network.
    """

    container: str
    identity: Identity = AzureDefault()
    account_url: str | None = None
    block_size: int = 26214400
    concurrency: int = 16
    upload_parallelism: int = 4
    page_size: int = 5000
    send_md5: bool = True
    attempts: int = 5
    call_timeout_s: float = CALL_TIMEOUT_S
    attempt_timeout_s: float | None = None
    upload_timeout_s: float = 7200.0
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    proxy: SocksProxy | None = None

    def __post_init__(self) -> None:
        if not self.container:
            raise ConfigError("the container's name is empty")
        if self.block_size < 1 or self.concurrency < 1 or self.upload_parallelism < 1:
            raise ConfigError("block_size, concurrency and upload_parallelism must be at least 1")
        if (self.account_url is None) != isinstance(self.identity, ConnectionString):
            raise ConfigError("either a connection string or the account's URL says where the container is: give one")
        if self.account_url is not None and ("@" in urlsplit(self.account_url).netloc or "?" in self.account_url):
            raise ConfigError("the account's URL must not hold credentials; set them by themselves")

    @classmethod
    def from_settings(cls, settings: Settings) -> AzureOptions:
        """The options that ``storage.azure.*`` and ``storage.proxy.*`` give."""
        if settings.azure is None:
            raise ConfigError("storage.azure.container.name is missing: the settings do not select Azure Blob Storage")
        azure = settings.azure
        return cls(
            container=azure.container_name,
            identity=_identity(azure),
            account_url=_account_url(azure),
            block_size=azure.block_size,
            concurrency=settings.requests_at_once,
            upload_parallelism=azure.upload_parallelism,
            send_md5=azure.upload_md5,
            call_timeout_s=seconds(azure.api_call_timeout_ms) or CALL_TIMEOUT_S,
            attempt_timeout_s=seconds(azure.api_call_attempt_timeout_ms),
            proxy=SocksProxy.from_settings(settings.proxy),
        )


def _identity(azure: AzureSettings) -> Identity:
    if azure.connection_string is not None:
        return ConnectionString(azure.connection_string.get_secret_value())
    return _chosen(azure.account_name, _text(azure.account_key), _text(azure.sas_token))


def _chosen(account: str | None, key: str | None, token: str | None) -> Identity:
    """As the plugin: the key wins over the token, and with neither the default credentials are used."""
    if account and key:
        return AccountKey(account, key)
    return SasToken(token) if token else AzureDefault()


def _account_url(azure: AzureSettings) -> str | None:
    if azure.connection_string is not None:
        return None
    return azure.endpoint_url or _url_of(azure.account_name or "")


def _url_of(account: str) -> str:
    return f"https://{account}.blob.core.windows.net"


def _text(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
