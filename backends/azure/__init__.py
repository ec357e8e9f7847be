"""Azure Blob Storage.

Importing this package loads the options. The store, and with it Azure's SDK, is imported on first use.
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
