"""Headers of Kafka's record batches, read from any buffer without copying the records.

A log segment is a run of batches without anything between them. All integers are big-endian. Every magic begins
alike::

    0  int64  base offset (magic 0 and 1: the offset of the message, of a compressed set its last one)
    8  int32  length: the bytes that follow this field
    16 int8   magic

Magic 2, the record batch, 61 bytes and then the records::

    12 int32  partition leader epoch        27 int64  base timestamp (or the delete horizon)
    16 int8   magic                         35 int64  max timestamp
    17 uint32 CRC-32C of 21..end            43 int64  producer id
    21 int16  attributes                    51 int16  producer epoch
    23 int32  last offset delta             53 int32  base sequence
                                            57 int32  record count

Magic 0 and 1, the message or message set, whose key and value follow::

    12 uint32 CRC-32 of 16..end
    16 int8   magic
    17 int8   attributes
    18 int64  timestamp (magic 1 only)

Attributes: bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 the base timestamp is a delete horizon.
"""

from __future__ import annotations

import enum
import mmap
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import crc32c

from tieredstore.errors import BatchCorruptError, InvalidRangeError
from tieredstore.limits import MAX_OFFSET

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
LogView: TypeAlias = Callable[[int], memoryview]
"""The bytes of a log from a position on: as many as there are, and if there are more than 61, at least 61."""

HEADER_SIZE: Final = 61
"""Bytes of a magic 2 batch before its records: more than any other header."""

FRAME_SIZE: Final = 12
"""Bytes before those that ``length`` counts."""

MIN_LENGTH: Final = 14
"""The least ``length`` Kafka accepts: CRC, magic, attributes, key size and value size of a magic 0 message."""

# What all magics have in common: offset, length, a field that differs, magic.
_PREFIX: Final = struct.Struct(">qiib")
_PREFIX_SIZE: Final = 17
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
_MESSAGE: Final = struct.Struct(">qiIbb")
_MESSAGE_WITH_TIMESTAMP: Final = struct.Struct(">qiIbbq")
# Magic 0, magic 1: the latter has eight bytes of timestamp more.
_MIN_MESSAGE_SIZE: Final = (FRAME_SIZE + MIN_LENGTH, FRAME_SIZE + MIN_LENGTH + 8)
# What preallocated space is compared with, a piece at a time: a log may end in hundreds of megabytes of it.
_ZEROS: Final = bytes(64 * 1024)


class CompressionType(enum.Enum):
    """Kafka's codec ids, the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_CODEC_BITS: Final = 7
_CODECS: Final = frozenset(codec.value for codec in CompressionType)


class TimestampType(enum.Enum):
    """Who set the timestamps of a batch; magic 0 has none."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What one batch says about itself.

    ``position`` and ``size_in_bytes`` are those of the whole batch in the log. Both offsets are inclusive; of a
    compressed message set (magic 0 and 1) both are its last offset, the only one outside of the compressed bytes, and
    ``record_count`` is None. Timestamps, ids and epochs that the magic does not have are -1.
    """

    position: int
    size_in_bytes: int
    base_offset: int
    last_offset: int
    magic: int
    crc: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int | None

    @property
    def compression(self) -> CompressionType:
        """The codec of the records; the reader has refused unknown ones."""
        return CompressionType(self.attributes & 7)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether producers or the broker set the timestamps."""
        return TimestampType.NO_TIMESTAMP if self.magic == 0 else TimestampType(self.attributes >> 3 & 1)

    @property
    def is_transactional(self) -> bool:
        """True for batches of a transaction, its end marker included."""
        return self.magic == 2 and bool(self.attributes & 16)

    @property
    def is_control(self) -> bool:
        """True for a batch of control records, which consumers do not show: commit and abort markers."""
        return self.magic == 2 and bool(self.attributes & 32)

    @property
    def has_delete_horizon(self) -> bool:
        """True where ``base_timestamp`` says when compaction may drop the tombstones."""
        return self.magic == 2 and bool(self.attributes & 64)


def read_batch_headers(log: Buffer, start: int = 0, *, check_crc: bool = False) -> Iterator[BatchHeader]:
    """The headers of all batches from byte ``start`` of ``log``, which must be a batch border.

    Only headers are touched, unless ``check_crc``. A zero-filled rest of 12 bytes or more is the end: Kafka
    preallocates log files when told to. Raises BatchCorruptError, which names the position, for everything else that is
    not a whole batch and for offsets that do not increase. The buffer stays exported (an ``mmap`` cannot be closed)
    until the iterator is exhausted, has raised, or is closed.
    """
    if not 0 <= start <= len(log):
        raise InvalidRangeError(f"byte {start} is outside of a log of {len(log)} bytes")
    return _read_buffer(log, start, check_crc)


def _read_buffer(log: Buffer, start: int, check_crc: bool) -> Iterator[BatchHeader]:
    with memoryview(log) as whole, whole.cast("B") as view:
        for header in walk_batch_headers(lambda position: view[position:], len(view), start):
            if check_crc:
                with view[header.position : header.position + header.size_in_bytes] as batch:
                    check_batch_crc(batch, header)
            yield header


def walk_batch_headers(view: LogView, size: int, start: int = 0) -> Iterator[BatchHeader]:
    """The headers of a log of ``size`` bytes that is seen through ``view``, one call of it a batch.

    As :func:`read_batch_headers`, for logs that are not in memory. Each view is released before the next is asked for.
    """
    position, last_offset = start, -1
    while (header := next_batch_header(view, size, position, last_offset)) is not None:
        yield header
        position += header.size_in_bytes
        last_offset = header.last_offset


def next_batch_header(view: LogView, size: int, position: int, last_offset: int) -> BatchHeader | None:
    """A step of :func:`walk_batch_headers`: the batch behind the one that ends at ``last_offset``; None at the end."""
    if position >= size:
        return None
    with view(position) as head:
        header = _parse_header(head, position, size - position)
    if header is None:
        _expect_zeros(view, position, size)
    # Batches that overlap count as damage: readers would give records twice.
    elif header.base_offset <= last_offset:
        raise BatchCorruptError(
            f"the record batch at byte {position} begins at offset {header.base_offset}, "
            f"not after offset {last_offset} of the batch before it"
        )
    return header


def check_batch_crc(batch: memoryview, header: BatchHeader) -> None:
    """BatchCorruptError unless the checksum of the whole ``batch``, which begins with ``header``, holds."""
    computed = _computed_crc(batch, header.magic)
    if computed != header.crc:
        raise BatchCorruptError(
            f"the record batch at byte {header.position} (offset {header.base_offset}) is damaged: "
            f"its CRC is {computed:08x}, and {header.crc:08x} was written"
        )


def first_batch_size(head: Buffer) -> int | None:
    """The size of the batch that ``head`` begins with, from its first 12 bytes.

    None if there are fewer bytes or the length is none that Kafka accepts. The size is unchecked input of up to 2 GiB:
    hold it against the size of the log before reading that much.
    """
    if len(head) < FRAME_SIZE:
        return None
    length = int.from_bytes(head[8:FRAME_SIZE], "big", signed=True)
    return FRAME_SIZE + length if length >= MIN_LENGTH else None


def first_batch_compression(head: Buffer) -> CompressionType | None:
    """The codec of the first batch of a log; None if ``head`` does not begin with a whole and valid batch.

    ``head`` must hold all of that batch (:func:`first_batch_size`); bytes after it are not looked at. Valid means: CRC
    and least size hold. A codec id that Kafka does not know raises BatchCorruptError, before the CRC is looked at: the
    plugin fails such a copy too.
    """
    size = first_batch_size(head)
    if size is None or size > len(head):
        return None
    with memoryview(head) as view, view[:size] as batch:
        # No header parsing here: this looks at bytes that nobody has vouched for, and answers None where a reader
        # would raise.
        magic = batch[16]
        if magic > 2:
            return None
        compression = _compression(batch[22 if magic == 2 else 17], 0)
        if magic == 2 and size < HEADER_SIZE:
            return None
        return compression if _stored_crc(batch, magic) == _computed_crc(batch, magic) else None


def _parse_header(head: memoryview, position: int, available: int) -> BatchHeader | None:
    """The header that ``head`` begins with; None where there are only zeros."""
    # Fewer than 12 zeros may be how a cut-off batch begins; 12 cannot, since no length is 0.
    if available < _PREFIX_SIZE and (available < FRAME_SIZE or any(head)):
        raise BatchCorruptError(f"the log ends {available} bytes into the record batch at byte {position}")
    if available < _PREFIX_SIZE:
        return None
    _, length, _, magic = _PREFIX.unpack_from(head)
    size = FRAME_SIZE + length
    if length < MIN_LENGTH:
        if not any(head[:_PREFIX_SIZE]):
            return None
        raise BatchCorruptError(f"the record batch at byte {position} has the impossible length {length}")
    # The length is held against the log before anything is sliced by it: it may claim 2 GiB.
    if size > available:
        raise BatchCorruptError(
            f"the record batch at byte {position} is truncated: it has {size} bytes, the log {available} more"
        )
    if magic == 2:
        return _parse_batch(head, position, size)
    if magic in (0, 1):
        return _parse_message(head, position, size, magic)
    raise BatchCorruptError(f"the record batch at byte {position} has the unknown magic {magic}")


def _parse_batch(head: memoryview, position: int, size: int) -> BatchHeader:
    if size < HEADER_SIZE:
        raise BatchCorruptError(f"the record batch at byte {position} has {size} bytes, fewer than its header")
    (
        base_offset, _, leader_epoch, magic, crc, attributes, last_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    ) = _BATCH.unpack_from(head)  # fmt: skip
    last_offset = base_offset + last_delta
    if base_offset < 0 or last_delta < 0 or last_offset > MAX_OFFSET:
        raise BatchCorruptError(f"the record batch at byte {position} has offsets {base_offset} + {last_delta}")
    # Compaction takes records away and keeps the offsets, so there may be fewer records than offsets, even none.
    if not 0 <= count <= last_delta + 1:
        raise BatchCorruptError(f"the record batch at byte {position} has {count} records for {last_delta + 1} offsets")
    if attributes & _CODEC_BITS not in _CODECS:
        _compression(attributes, position)  # raises
    return BatchHeader(
        position, size, base_offset, last_offset, magic, crc, attributes, base_timestamp, max_timestamp,
        leader_epoch, producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip


def _parse_message(head: memoryview, position: int, size: int, magic: int) -> BatchHeader:
    if size < _MIN_MESSAGE_SIZE[magic]:
        raise BatchCorruptError(f"the message at byte {position} has {size} bytes, fewer than its header")
    offset, _, crc, _, attributes = _MESSAGE.unpack_from(head)
    timestamp: int = _MESSAGE_WITH_TIMESTAMP.unpack_from(head)[-1] if magic == 1 else -1
    if offset < 0:
        raise BatchCorruptError(f"the message at byte {position} has the offset {offset}")
    # A compressed message set of old: one message whose value holds the others. How many there are, and when the
    # first was written, stands inside of the compressed bytes alone.
    wrapper = _compression(attributes, position) is not CompressionType.NONE
    return BatchHeader(
        position, size, offset, offset, magic, crc, attributes, -1 if wrapper else timestamp, timestamp,
        -1, -1, -1, -1, None if wrapper else 1,
    )  # fmt: skip


def _compression(attributes: int, position: int) -> CompressionType:
    try:
        return CompressionType(attributes & 7)
    except ValueError:
        raise BatchCorruptError(
            f"the record batch at byte {position} has the unknown compression type {attributes & 7}"
        ) from None


def _stored_crc(batch: memoryview, magic: int) -> int:
    # The CRC field of magic 2 stands behind the magic, that of the older ones before it.
    start = 17 if magic == 2 else 12
    return int.from_bytes(batch[start : start + 4], "big")


def _computed_crc(batch: memoryview, magic: int) -> int:
    # Covered is what follows the CRC, so not the offset (of magic 2 the leader epoch neither), which the broker sets
    # after the producer has computed it. Magic 2 has Castagnoli's polynomial, the older ones zlib's.
    with batch[21 if magic == 2 else 16 :] as covered:
        return crc32c.crc32c(covered) if magic == 2 else zlib.crc32(covered)


def _expect_zeros(view: LogView, position: int, size: int) -> None:
    checked = position
    while checked < size:
        with view(checked) as rest:
            piece = bytes(rest[: len(_ZEROS)])
        if piece != _ZEROS[: len(piece)]:
            raise BatchCorruptError(f"the record batch at byte {position} has the impossible length 0")
        checked += len(piece)
