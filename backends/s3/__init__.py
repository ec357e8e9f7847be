"""Amazon S3 and compatible stores.

Importing this package loads the options. The store, and with it the SDK, is imported on first use.
"""

from typing import TYPE_CHECKING

from tieredstore.backends.s3.options import AccessKeys, Compatibility, S3Options

if TYPE_CHECKING:
    from tieredstore.backends.s3.store import S3ObjectStore

__all__ = ["AccessKeys", "Compatibility", "S3ObjectStore", "S3Options"]


def __getattr__(name: str) -> object:
    if name != "S3ObjectStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.backends.s3.store import S3ObjectStore  # noqa: PLC0415

    return S3ObjectStore
