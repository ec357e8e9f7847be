"""The key ring that the settings describe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.config import Settings

if TYPE_CHECKING:
    from tieredstore.transform.keyring import KeyRing


def key_ring_of(settings: Settings) -> KeyRing | None:
    """Make the key ring of ``encryption.*`` and read its keys; None without encryption.

    Raise KeyRingError, which names an unusable key, or KeyServiceError if a key management service refused to open a
    key.
    """
    if settings.encryption is None:
        return None
    from tieredstore.remote.private_keys import key_pair_of  # noqa: PLC0415  loads a library for RSA
    from tieredstore.transform.keyring import KeyRing  # noqa: PLC0415

    return KeyRing(
        settings.encryption.key_pair_id, {pair.id: key_pair_of(pair) for pair in settings.encryption.key_pairs}
    )
