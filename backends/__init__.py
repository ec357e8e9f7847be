"""Object stores: the interface (``base``), the stores, and the table that opens them (``registry``).

To write a store of your own, import only the names of this package: the interface, and shared helpers for keys, ranges
and bodies.
"""

from __future__ import annotations

from tieredstore.backends.base import (
    AbandonedWrite,
    Body,
    Buffer,
    DelegatingStore,
    ObjectInfo,
    ObjectStore,
    Prepared,
    StoreAdmin,
)
from tieredstore.backends.contract.bodies import byte_view, open_body
from tieredstore.backends.contract.checks import checked_key, is_empty_request, raise_failures, resolved_range

__all__ = [
    "AbandonedWrite",
    "Body",
    "Buffer",
    "DelegatingStore",
    "ObjectInfo",
    "ObjectStore",
    "Prepared",
    "StoreAdmin",
    "byte_view",
    "checked_key",
    "is_empty_request",
    "open_body",
    "raise_failures",
    "resolved_range",
]
