"""The sizes that encryption adds in the stored format: AES-256-GCM, with an IV and a tag for each unit."""

from __future__ import annotations

from typing import Final

DATA_KEY_SIZE: Final = 32
AAD_SIZE: Final = 32
IV_SIZE: Final = 12
TAG_SIZE: Final = 16

ENCRYPTION_OVERHEAD: Final = IV_SIZE + TAG_SIZE
"""The number of bytes that encryption adds to a chunk or an index. The IV comes before the data, and the tag after the
data."""
