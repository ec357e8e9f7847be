"""The key ring that the settings describe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.config import Settings

if TYPE_CHECKING:
    from tieredstore.transform.keyring import KeyRing


def key_ring_of(settings: Settings) -> KeyRing | None:
    """Make the key ring of ``encryption.*`` and read its keys. Return None without encryption.

    Raise a KeyRingError that names an unusable key. Raise KeyServiceError if a key management service refused to open a
    key.
    """
    if settings.encryption is None:
        return None
    from tieredstore.remote.private_keys import open_pair  # noqa: PLC0415  loads a library for RSA
    from tieredstore.transform.keyring import KeyRing  # noqa: PLC0415

    return KeyRing(
        settings.encryption.key_pair_id, {pair.id: open_pair(pair)[0] for pair in settings.encryption.key_pairs}
    )
