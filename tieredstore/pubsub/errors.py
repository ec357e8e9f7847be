"""Errors of topics of batches."""

from __future__ import annotations

from tieredstore.errors import CorruptDataError, TieredStoreError


class BufferFullError(TieredStoreError):
    """A producer's buffer is full, and no record was stored in time to make room."""

    retryable = True
    exit_code = 75


class DeliveryFailedError(TieredStoreError):
    """Records that were not stored by their deadline, or that were stored without a notification.

    ``maybe_stored`` is True if the records may be stored, now or later. Sending them again may then duplicate them.
    True is the safe default.
    """

    retryable = True
    exit_code = 75

    def __init__(self, sentence: str, *, maybe_stored: bool = True) -> None:
        super().__init__(sentence)
        self.maybe_stored = maybe_stored


class InvalidRecordError(TieredStoreError):
    """A record that MemQ's format cannot hold, or that MemQ's readers would misread."""

    exit_code = 2


class MessageCorruptError(CorruptDataError):
    """Inconsistent bytes in a batch's index, in a Message or in its records."""


class NotificationCorruptError(CorruptDataError):
    """Bytes in a notification queue that are not a valid notification, or that point outside the topic's objects."""


class PacketCorruptError(CorruptDataError):
    """Bytes received over a connection that are not a MemQ packet."""
