"""Google Cloud Storage.

Importing this package loads the options. The store, and with it Google's SDK, is imported on first use.
"""

from typing import TYPE_CHECKING

from tieredstore.backends.gcs.options import Anonymous, ApplicationDefault, CredentialsFile, CredentialsJson, GcsOptions

if TYPE_CHECKING:
    from tieredstore.backends.gcs.store import GcsObjectStore

__all__ = [
    "Anonymous",
    "ApplicationDefault",
    "CredentialsFile",
    "CredentialsJson",
    "GcsObjectStore",
    "GcsOptions",
]


def __getattr__(name: str) -> object:
    if name != "GcsObjectStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.backends.gcs.store import GcsObjectStore  # noqa: PLC0415

    return GcsObjectStore
