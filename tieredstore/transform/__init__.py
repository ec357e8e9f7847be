"""Transformation of bytes, independent of stores: zstd frames, AES-256-GCM, the RSA key ring, and the ordered
pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.transform.chunks import ChunkDecoder, ChunkEncoder
from tieredstore.transform.encryption import DataKey, SegmentCipher
from tieredstore.transform.pipeline import TransformedChunks

if TYPE_CHECKING:
    from tieredstore.transform.keyring import KeyRing

__all__ = [
    "ChunkDecoder",
    "ChunkEncoder",
    "DataKey",
    "KeyRing",
    "SegmentCipher",
    "TransformedChunks",
]


def __getattr__(name: str) -> object:
    """Import the key ring on first use, because it needs a second cryptography library for RSA."""
    if name != "KeyRing":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.transform.keyring import KeyRing  # noqa: PLC0415

    return KeyRing
