"""What a key management service has to do, ours and a user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class KeySource(ABC):
    """A key that never leaves a key management service, and that seals short secrets.

    Each method makes one request and does not try again: whoever calls does. Errors are KeyServiceDeniedError,
    KeyServiceUnavailableError for what passes, KeyRingError for what this key has not sealed, and KeyServiceError.
    """

    @classmethod
    @abstractmethod
    def from_settings(cls, key: str, endpoint_url: str | None) -> Self:
        """The key of ``private.key.kms.key``, at ``private.key.kms.endpoint.url`` if that is set; asks nobody yet.

        ConfigError for a name that cannot be one.
        """

    @abstractmethod
    def seal(self, secret: bytes) -> bytes:
        """``secret`` (at most 64 bytes), as the service alone can open it."""

    @abstractmethod
    def open(self, sealed: bytes) -> bytes:
        """The secret that ``seal`` was given."""
