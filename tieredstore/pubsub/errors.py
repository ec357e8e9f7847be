"""Errors of topics of batches."""

from __future__ import annotations

from tieredstore.errors import CorruptDataError, TieredStoreError


class BufferFullError(TieredStoreError):
    """A producer's buffer is full, and no record was stored in time to make room."""

    retryable = True
    exit_code = 75


class DeliveryFailedError(TieredStoreError):
    """By their deadline, records were not stored, or were stored without a notification.

    ``maybe_stored`` is True if the records may be stored, now or later. Sending them again may then duplicate them.
    True is the safe default.
    """

    retryable = True
    exit_code = 75

    def __init__(self, sentence: str, *, maybe_stored: bool = True) -> None:
        super().__init__(sentence)
        self.maybe_stored = maybe_stored


class InvalidRecordError(TieredStoreError):
    """MemQ's format cannot hold a record, or MemQ's readers would misread it."""

    exit_code = 2


class MessageCorruptError(CorruptDataError):
    """The bytes of a batch's index, of a Message or of its records are inconsistent."""


class NotificationCorruptError(CorruptDataError):
    """Bytes in a notification queue are no valid notification, or point outside the topic's objects."""


class PacketCorruptError(CorruptDataError):
    """Bytes received over a connection are no packet of MemQ's."""
