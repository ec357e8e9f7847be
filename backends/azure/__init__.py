"""Azure Blob Storage.

Imports the options at once, the store, which needs its SDK, on first use.
"""

from typing import TYPE_CHECKING

from tieredstore.backends.azure.options import AccountKey, AzureDefault, AzureOptions, ConnectionString, SasToken

if TYPE_CHECKING:
    from tieredstore.backends.azure.store import AzureObjectStore

__all__ = [
    "AccountKey",
    "AzureDefault",
    "AzureObjectStore",
    "AzureOptions",
    "ConnectionString",
    "SasToken",
]


def __getattr__(name: str) -> object:
    if name != "AzureObjectStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.backends.azure.store import AzureObjectStore  # noqa: PLC0415

    return AzureObjectStore
