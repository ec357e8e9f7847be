"""Scan of the batch headers in a segment's open log, for end offset, greatest timestamp and epochs. The scan can also
check the batches' checksums.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.errors import InvalidSegmentError
from tieredstore.kafka._header_walk import HeaderWalk
from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader, check_batch_crc, next_batch_header
from tieredstore.kafka.checkpoints import LeaderEpochs

# One read covers four batches of 16 KiB. A larger size would read unneeded records of large batches. A smaller size
# would need many calls for small batches.
_VIEW_SIZE: Final = 64 * 1024
_PIECE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A summary of all batch headers of a log.

    ``last_offset`` is inclusive. Without a batch it is the base offset minus 1, and ``max_timestamp_ms`` is -1.

    ``leader_epochs`` holds each epoch of the batches with the base offset of its first batch. ``is_contiguous`` is true
    if the log has records and lacks no offset from its base offset to ``last_offset``. This is so in a log that was
    never compacted. The offsets inside compressed message sets (magic 0 and 1) count as present.
    """

    last_offset: int
    max_timestamp_ms: int
    leader_epochs: LeaderEpochs
    is_contiguous: bool


def scan_log(descriptor: int, size: int, base_offset: int, segment: str, *, check_crcs: bool = False) -> LogSummary:
    """Read the headers of an open log of ``size`` bytes, with bounded memory and positional reads only.

    Raise InvalidSegmentError for a log that is not closed or begins before its base offset, BatchCorruptError for
    damage. Damaged records are found only with ``check_crcs``. ``segment`` is the segment's name in errors.
    """
    walk, view = HeaderWalk(descriptor, size, base_offset, check_crcs), _FileView(descriptor, size)
    while True:
        walk.pass_ordinary()
        header = next_batch_header(view, size, walk.position, walk.last_offset)
        if header is None:
            break
        if header.base_offset < base_offset:
            raise InvalidSegmentError(
                f"segment {segment} holds a batch at offset {header.base_offset}, before its base offset"
            )
        if check_crcs:
            _check(descriptor, header, segment)
        walk.pass_this(header)
    # The walk ends without an error at zeros. But a closed segment has no zeros at its end, because the broker trims
    # them.
    if walk.position != size:
        raise InvalidSegmentError(
            f"segment {segment} is closed, but its log ends with {size - walk.position} bytes of zeros"
        )
    is_contiguous = walk.is_contiguous and walk.last_offset >= 0
    return LogSummary(
        max(walk.last_offset, base_offset - 1), walk.max_timestamp, tuple(walk.leader_epochs), is_contiguous
    )


@contextmanager
def explain_failure(path: Path, segment: str) -> Generator[None, None, None]:
    """Turn an OSError about the file into an InvalidSegmentError that names the segment."""
    try:
        yield
    except FileNotFoundError:
        raise InvalidSegmentError(f"segment {segment} has no file {path}, and cannot be copied without it") from None
    except OSError as error:
        raise InvalidSegmentError(f"segment {segment}: {path} cannot be read: {error.strerror}") from error


def _check(descriptor: int, header: BatchHeader, segment: str) -> None:
    """Raise BatchCorruptError unless the batch's checksum matches. The caller has checked that the batch is within the
    log.
    """
    batch = bytearray(header.size_in_bytes)
    view, filled = memoryview(batch), 0
    while filled < len(batch):
        got = os.preadv(descriptor, [view[filled : filled + _PIECE]], header.position + filled)
        if not got:
            raise InvalidSegmentError(f"the log of segment {segment} shrank while it was read")
        filled += got
    check_batch_crc(view, header)


class _FileView:
    """A view of an open file. The file is read forward in pieces, so memory is bounded. With a memory map, a signal
    would kill the process if the file shrinks.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._start = 0
        self._piece = b""

    def __call__(self, position: int) -> memoryview:
        header_size = min(HEADER_SIZE, self._size - position)
        # Only the latest piece of the file is in memory. Positions only grow, so earlier pieces are not needed again.
        if not self._start <= position <= self._start + len(self._piece) - header_size:
            # Do not map the file. If the file shrinks while it is mapped, an access kills the process.
            self._piece = os.pread(self._descriptor, _VIEW_SIZE, position)
            self._start = position
            if len(self._piece) < header_size:
                raise InvalidSegmentError(
                    f"the log shrank to less than {position + header_size} bytes while it was read"
                )
        return memoryview(self._piece)[position - self._start :]
