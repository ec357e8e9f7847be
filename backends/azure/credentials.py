"""Who asks Azure Blob Storage: the identity that the settings name, and never another."""

from __future__ import annotations

from typing import Protocol

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential

from tieredstore.backends.azure.options import AccountKey, ConnectionString, Credentials, SasToken


class Transport(Protocol):
    """``azure.core.pipeline.transport.RequestsTransport``: what sends the SDK's requests."""

    def close(self) -> None:
        """Close its session."""
        ...


def described(credentials: Credentials) -> str:
    """Whose requests they are, without any secret."""
    match credentials:
        case ConnectionString():
            return "the connection string of the settings"
        case AccountKey(account=account):
            return f"the shared key of the account {account}"
        case SasToken():
            return "the shared access signature of the settings"
        case _:
            return "Azure's default credentials; azure.identity logs which of them has a token"


def sdk_credential(
    credentials: Credentials, login: Transport
) -> AzureNamedKeyCredential | AzureSasCredential | TokenCredential:
    """What the SDK signs with; not for a connection string, which it reads itself."""
    if isinstance(credentials, AccountKey):
        return AzureNamedKeyCredential(credentials.account, credentials.key)
    if isinstance(credentials, SasToken):
        return AzureSasCredential(credentials.token.lstrip("?"))
    # Not needed, and slow to import, where there is a key or a token.
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415

    return DefaultAzureCredential(transport=login)
