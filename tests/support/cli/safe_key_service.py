"""Key management service in an installed package; it derives the wrapping key from the key's name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.installed_packages import install
from tieredstore.config.named_class import KEY_SOURCES

_CODE: Final = """
import hashlib
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from tieredstore.errors import KeyRingError
from tieredstore.kms.base import KeySource

class Safe(KeySource):
    def __init__(self, key):
        self._key = AESSIV(hashlib.sha256(key.encode()).digest())

    @classmethod
    def from_settings(cls, key, endpoint_url):
        return cls(key)

    def seal(self, secret):
        return self._key.encrypt(secret, None)

    def open(self, sealed):
        try:
            return self._key.decrypt(sealed, None)
        except InvalidTag as error:
            raise KeyRingError("another key has sealed it") from error
"""


def install_safe(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """Install the service and return its name for ``--kms``."""
    install(monkeypatch, folder, "safes", {"safe": "safes:Safe"}, code=_CODE, group=KEY_SOURCES)
    return "safe"
