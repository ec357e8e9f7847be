"""What is done to bytes: zstd frames, AES-256-GCM, the RSA key ring, and the ordered pipeline. No stores here."""

from tieredstore.transform.chunks import ChunkDecoder, ChunkEncoder
from tieredstore.transform.encryption import DataKey, SegmentCipher
from tieredstore.transform.keyring import KeyRing
from tieredstore.transform.pipeline import TransformedChunks

__all__ = [
    "ChunkDecoder",
    "ChunkEncoder",
    "DataKey",
    "KeyRing",
    "SegmentCipher",
    "TransformedChunks",
]
