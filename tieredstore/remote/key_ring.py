"""The key ring that settings describe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.config import Settings

if TYPE_CHECKING:
    from tieredstore.transform.keyring import KeyRing


def key_ring_of(settings: Settings) -> KeyRing | None:
    """The ring of ``encryption.*``, its key files read; None without encryption. KeyRingError names a bad file."""
    if settings.encryption is None:
        return None
    from tieredstore.transform.keyring import KeyRing  # noqa: PLC0415  loads a library for RSA

    files = {pair.id: (pair.public_key_file, pair.private_key_file) for pair in settings.encryption.key_pairs}
    return KeyRing.from_files(settings.encryption.key_pair_id, files)
