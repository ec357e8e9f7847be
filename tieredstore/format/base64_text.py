"""Standard base64 as the plugin reads it from a manifest."""

from __future__ import annotations

import binascii
from typing import Final

from tieredstore.errors import ManifestCorrupt

_QUANTUM: Final = 4  # characters that make three bytes


def decode_base64(text: str, field: str, *, padded: bool) -> bytes:
    """The bytes of standard base64; ManifestCorrupt, naming ``field``, for anything else.

    The URL-safe alphabet, line breaks and other characters are refused. Without ``padded`` the ``=`` signs at the end
    may be missing (all of them, or none).
    """
    if not padded and "=" not in text:
        text += "=" * (-len(text) % _QUANTUM)
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:  # binascii.Error, or a character outside of ASCII
        raise ManifestCorrupt(f"{field} is not standard base64: {error}") from error
