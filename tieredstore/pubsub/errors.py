"""What goes wrong with topics of batches alone."""

from __future__ import annotations

from tieredstore.errors import CorruptDataError, TieredStoreError


class BufferFullError(TieredStoreError):
    """A producer holds as many bytes as it may, and none of them was stored in time to make room."""

    retryable = True
    exit_code = 75


class DeliveryFailedError(TieredStoreError):
    """Records that were not stored and notified by their deadline.

    ``maybe_stored``: they may be, or may yet be: who sends them again may have them twice. It has to be supposed where
    nothing is said.
    """

    retryable = True
    exit_code = 75

    def __init__(self, sentence: str, *, maybe_stored: bool = True) -> None:
        super().__init__(sentence)
        self.maybe_stored = maybe_stored


class InvalidRecordError(TieredStoreError):
    """A record that MemQ's format cannot hold, or that its readers would read as another one."""

    exit_code = 2


class MessageCorruptError(CorruptDataError):
    """MemQ's own bytes (a batch's index, a Message, its records) do not hold together."""


class NotificationCorruptError(CorruptDataError):
    """What a notification queue holds is no notification, or points to where its topic has no objects."""


class PacketCorruptError(CorruptDataError):
    """What came over a connection is no packet of MemQ's."""
