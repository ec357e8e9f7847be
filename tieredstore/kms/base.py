"""The interface of key management services; users can implement it for their own service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class KeySource(ABC):
    """A key that never leaves a key management service, and that seals short secrets.

    Each method makes one request without retries, because the caller retries. Each raises KeyServiceDeniedError for
    refused credentials or permissions, KeyServiceUnavailableError for a transient fault, KeyRingError for a secret that
    another key sealed, and KeyServiceError for any other fault.
    """

    @classmethod
    @abstractmethod
    def from_settings(cls, key: str, endpoint_url: str | None) -> Self:
        """Make the key from the settings ``private.key.kms.key`` and ``private.key.kms.endpoint.url``, without a
        request to the service.

        Raise ConfigError for an invalid name of a key.
        """

    @abstractmethod
    def seal(self, secret: bytes) -> bytes:
        """Seal ``secret`` (at most 64 bytes), so that only the service can open it."""

    @abstractmethod
    def open(self, sealed: bytes) -> bytes:
        """Return the secret given to ``seal``."""
