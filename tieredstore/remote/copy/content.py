"""Content of a segment to copy: its log, read at any position, and its indexes."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final

from tieredstore.errors import AlreadyClosedError, InvalidSegmentError
from tieredstore.kafka.batches import CompressionType, read_first_compression
from tieredstore.model import LogSegmentData, SegmentFile
from tieredstore.transform.chunks import ReadInto

_logger: Final = logging.getLogger(__name__)

_TURN_S: Final = 600.0
"""Seconds that a read waits for the previous read. The value must be greater than a store's stall timeout."""


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """A segment to copy, from any source.

    ``name`` is the log's name in messages, ``size`` its size in bytes. Several threads call ``read_into``.
    ``is_uncompressed`` returns True if the first batch has uncompressed records. ``indexes`` returns the plain indexes
    in the order in which they are stored. The transaction index comes last and is optional.
    """

    name: str
    size: int
    read_into: ReadInto
    is_uncompressed: Callable[[], bool]
    indexes: Callable[[], tuple[bytes, ...]]


@contextlib.contextmanager
def content_of_files(data: LogSegmentData) -> Generator[SegmentContent]:
    """Open a segment's files on a broker's disk. Raise InvalidSegmentError if a file is missing."""
    with open_file(data.log_segment) as log:
        size = os.fstat(log.fileno()).st_size
        is_uncompressed = partial(_first_batch_is_uncompressed, log, size)
        yield SegmentContent(log.name, size, _positional_reader(log), is_uncompressed, lambda: _indexes(data))


class InOrder:
    """Stream that several threads read, each at its own position. A read waits until the stream has reached the read's
    position.

    The caller must begin the reads in the order of their positions. Then the first unfinished read never waits.
    """

    def __init__(self, read: Callable[[memoryview], int], name: str) -> None:
        self._read = read
        self._name = name
        self._turn = threading.Condition()
        self._position = 0
        self._has_failed = False

    def read_into(self, position: int, buffer: memoryview) -> None:
        """Fill the buffer from the stream's ``position``. Raise InvalidSegmentError if the stream ends before the
        buffer is full."""
        with self._turn:
            is_due = self._turn.wait_for(lambda: self._has_failed or self._position == position, _TURN_S)
            if self._has_failed or not is_due:
                raise AlreadyClosedError(f"{self._name}: the bytes before byte {position} were not read")
            self._has_failed = True  # reset below on success
            filled = 0
            try:
                while filled < len(buffer):
                    got = self._read(buffer[filled:])
                    if not got:
                        raise InvalidSegmentError(f"{self._name} ends at byte {position + filled}")
                    filled += got
                self._position += filled
                self._has_failed = False
            finally:
                self._turn.notify_all()


def open_file(path: SegmentFile) -> BinaryIO:
    """Open a file of a segment. Raise InvalidSegmentError if it is missing."""
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise InvalidSegmentError(f"{path} is missing: it was deleted, or it is not where the metadata says") from error


def _first_batch_is_uncompressed(log: BinaryIO, size: int) -> bool:
    # Do not map the file. If the file shrinks or its disk fails, an access to the map kills the process.
    compression = read_first_compression(log.read, size)
    if compression is None:
        _logger.warning("%s does not start with a valid record batch; the segment is not compressed", log.name)
    return compression is CompressionType.NONE


def _positional_reader(log: BinaryIO) -> ReadInto:
    descriptor, name = log.fileno(), log.name

    def read_into(position: int, buffer: memoryview) -> None:
        filled = 0
        while filled < len(buffer):
            got = os.preadv(descriptor, [buffer[filled:]], position + filled)
            if not got:
                raise InvalidSegmentError(f"{name} ends at byte {position + filled}: it shrank while it was copied")
            filled += got

    return read_into


def _indexes(data: LogSegmentData) -> tuple[bytes, ...]:
    plain: tuple[bytes, ...] = (
        _read_index(data.offset_index),
        _read_index(data.time_index),
        _read_index(data.producer_snapshot_index),
        data.leader_epoch_index,
    )
    return plain if data.transaction_index is None else (*plain, _read_index(data.transaction_index))


def _read_index(path: SegmentFile) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InvalidSegmentError(
            f"{path} is missing; a segment is copied with all its indexes or not at all"
        ) from error
