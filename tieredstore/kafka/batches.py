"""Headers of Kafka's record batches, read from any buffer without copying the records.

A log segment consists of batches with nothing between them. All integers are big-endian. Batches of every magic (format
version) begin with the same fields::

    0  int64  base offset (magic 0 and 1: the message's offset; of a compressed set, the offset of its last message)
    8  int32  length: the bytes that follow this field
    16 int8   magic

Magic 2, the record batch. After these 61 bytes come the records::

    12 int32  partition leader epoch        27 int64  base timestamp (or the delete horizon)
    16 int8   magic                         35 int64  max timestamp
    17 uint32 CRC-32C of 21..end            43 int64  producer id
    21 int16  attributes                    51 int16  producer epoch
    23 int32  last offset delta             53 int32  base sequence
                                            57 int32  record count

Magic 0 and 1, the message or message set. After these fields come the key and the value::

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

from tieredstore.errors import BatchCorruptError
from tieredstore.limits import MAX_OFFSET

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
LogView: TypeAlias = Callable[[int], memoryview]
"""A function that returns the bytes of a log from a position on: all of them, or at least 61."""

HEADER_SIZE: Final = 61
"""Bytes of a magic 2 batch before its records. Headers of magic 0 and 1 are smaller."""

FRAME_SIZE: Final = 12
"""Size of the two fields that ``length`` does not count: the base offset and ``length`` itself."""

MIN_LENGTH: Final = 14
"""The smallest ``length`` that Kafka accepts: CRC, magic, attributes, key size and value size of a magic 0 message."""

# The beginning of a batch in all magics: offset, length, a field that depends on the magic, and the magic.
_PREFIX: Final = struct.Struct(">qiib")
_PREFIX_SIZE: Final = 17
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
_MESSAGE: Final = struct.Struct(">qiIbb")
_MESSAGE_WITH_TIMESTAMP: Final = struct.Struct(">qiIbbq")
# The sizes of the smallest messages of magic 0 and magic 1. Magic 1 adds eight bytes of timestamp.
_MIN_MESSAGE_SIZE: Final = (FRAME_SIZE + MIN_LENGTH, FRAME_SIZE + MIN_LENGTH + 8)
# Zeros to compare preallocated space with. The comparison goes piece by piece, because a log may end in hundreds of
# megabytes of such space.
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
    """The clock that set the timestamps of a batch. Batches of magic 0 have no timestamps."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of one batch.

    ``position`` and ``size_in_bytes`` are those of the whole batch in the log. Both offsets are inclusive. Timestamps,
    ids and epochs that do not exist in the batch's magic are -1.

    The offsets inside a compressed message set (magic 0 and 1) are compressed too. Its ``base_offset`` and
    ``last_offset`` are therefore both the set's last offset, and ``record_count`` is None.
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
        """The codec of the records. An unknown codec was already refused when the header was parsed."""
        return CompressionType(self.attributes & 7)

    @property
    def timestamp_type(self) -> TimestampType:
        """The clock that set the timestamps: the producers' or the broker's."""
        return TimestampType.NO_TIMESTAMP if self.magic == 0 else TimestampType(self.attributes >> 3 & 1)

    @property
    def is_transactional(self) -> bool:
        """True for batches of a transaction, its end marker included."""
        return self.magic == 2 and bool(self.attributes & 16)

    @property
    def is_control(self) -> bool:
        """True for a batch of control records (commit and abort markers), which consumers do not show."""
        return self.magic == 2 and bool(self.attributes & 32)

    @property
    def has_delete_horizon(self) -> bool:
        """True if ``base_timestamp`` is the time from which compaction may drop the tombstones."""
        return self.magic == 2 and bool(self.attributes & 64)


def read_batch_headers(log: Buffer, *, check_crc: bool = False) -> Iterator[BatchHeader]:
    """Yield the headers of all batches of ``log``. Without ``check_crc``, only headers are read.

    If at least 12 bytes follow the last batch, and all are zeros, the log ends before them, because Kafka can
    preallocate log files. Any other bytes that are not a whole batch raise BatchCorruptError with their position.
    Offsets that do not increase raise this error too.

    The iterator holds the buffer until it is exhausted, has raised an error, or is closed. Until then, an ``mmap``
    cannot be closed.
    """
    with memoryview(log) as whole, whole.cast("B") as view:
        for header in walk_batch_headers(lambda position: view[position:], len(view)):
            if check_crc:
                with view[header.position : header.position + header.size_in_bytes] as batch:
                    check_batch_crc(batch, header)
            yield header


def walk_batch_headers(view: LogView, size: int, start: int = 0) -> Iterator[BatchHeader]:
    """Yield the headers of a log of ``size`` bytes. Call ``view`` once per batch to get its bytes.

    Like :func:`read_batch_headers`, for logs that are not in memory. Releases each view before the next call.
    """
    position, last_offset = start, -1
    while (header := next_batch_header(view, size, position, last_offset)) is not None:
        yield header
        position += header.size_in_bytes
        last_offset = header.last_offset


def next_batch_header(view: LogView, size: int, position: int, last_offset: int) -> BatchHeader | None:
    """Return the header at ``position``, after the batch that ended with ``last_offset``. Return None at the end of the
    log.

    This is one step of :func:`walk_batch_headers`.
    """
    if position >= size:
        return None
    with view(position) as head:
        header = _parse_header(head, position, size - position)
    if header is None:
        _expect_zeros(view, position, size)
    # Overlapping batches count as damage, because a reader would return their common records twice.
    elif header.base_offset <= last_offset:
        raise BatchCorruptError(
            f"the record batch at byte {position} begins at offset {header.base_offset}, but the batch before it "
            f"ends at offset {last_offset}"
        )
    return header


def check_batch_crc(batch: memoryview, header: BatchHeader) -> None:
    """Raise BatchCorruptError unless the checksum of the whole ``batch``, which begins with ``header``, matches."""
    computed = _computed_crc(batch, header.magic)
    if computed != header.crc:
        raise BatchCorruptError(
            f"the record batch at byte {header.position} (offset {header.base_offset}) is damaged: its bytes have "
            f"the CRC {computed:08x}, but its header states {header.crc:08x}"
        )


def first_batch_size(head: Buffer) -> int | None:
    """Return the size of the batch at the start of ``head``, from its first 12 bytes.

    Return None if ``head`` is shorter, or if Kafka would refuse the length. A damaged size may claim up to 2 GiB.
    Compare the size with the size of the log before reading so many bytes.
    """
    if len(head) < FRAME_SIZE:
        return None
    length = int.from_bytes(head[8:FRAME_SIZE], "big", signed=True)
    return FRAME_SIZE + length if length >= MIN_LENGTH else None


def read_first_compression(read: Callable[[int], bytes], size: int) -> CompressionType | None:
    """Read the first batch of a log of ``size`` bytes, and return what :func:`first_batch_compression` returns."""
    head = read(FRAME_SIZE)
    batch_size = first_batch_size(head)
    # Do not read the whole log into memory for a damaged length.
    if batch_size is None or batch_size > size:
        return None
    return first_batch_compression(head + read(batch_size - len(head)))


def first_batch_compression(head: Buffer) -> CompressionType | None:
    """Return the codec of the first batch of a log. Return None if ``head`` does not begin with a whole and valid
    batch.

    ``head`` must hold the whole batch (see :func:`first_batch_size`). Later bytes are ignored. A valid batch has at
    least the minimum size, and a matching CRC. An unknown codec id raises BatchCorruptError before the CRC is checked,
    because the plugin also refuses to copy such a log.
    """
    size = first_batch_size(head)
    if size is None or size > len(head):
        return None
    with memoryview(head) as view, view[:size] as batch:
        # Do not parse the header, because the bytes are not verified yet. For a damaged header the parser raises an
        # error, but this function must return None.
        magic = batch[16]
        if magic > 2:
            return None
        compression = _compression(batch[22 if magic == 2 else 17], 0)
        if magic == 2 and size < HEADER_SIZE:
            return None
        return compression if _stored_crc(batch, magic) == _computed_crc(batch, magic) else None


def _parse_header(head: memoryview, position: int, available: int) -> BatchHeader | None:
    """Parse the header at the start of ``head``. Return None if ``head`` has only zeros."""
    # 12 or more zeros are the end of the log, because the length of a batch is in its first 12 bytes and never 0.
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
    # Compare the length with the log's size before using it, because a damaged length may claim 2 GiB.
    if size > available:
        raise BatchCorruptError(
            f"the record batch at byte {position} is truncated: its header states {size} bytes, but only "
            f"{available} bytes of the log follow"
        )
    if magic == 2:
        return _parse_batch(head, position, size)
    if magic in (0, 1):
        return _parse_message(head, position, size, magic)
    raise BatchCorruptError(f"the record batch at byte {position} has the unknown magic {magic}")


def _parse_batch(head: memoryview, position: int, size: int) -> BatchHeader:
    if size < HEADER_SIZE:
        raise BatchCorruptError(f"the record batch at byte {position} has {size} bytes, too few for its header")
    (
        base_offset, _, leader_epoch, magic, crc, attributes, last_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    ) = _BATCH.unpack_from(head)  # fmt: skip
    last_offset = base_offset + last_delta
    if base_offset < 0 or last_delta < 0 or last_offset > MAX_OFFSET:
        raise BatchCorruptError(
            f"the record batch at byte {position} has an impossible range of offsets: base offset {base_offset}, "
            f"last offset delta {last_delta}"
        )
    # Compaction removes records but keeps the offsets, so a batch may have fewer records than offsets, or none.
    if not 0 <= count <= last_delta + 1:
        raise BatchCorruptError(
            f"the record batch at byte {position} states {count} records, but spans {last_delta + 1} offsets"
        )
    if attributes & _CODEC_BITS not in _CODECS:
        _compression(attributes, position)  # raises for an unknown codec
    return BatchHeader(
        position, size, base_offset, last_offset, magic, crc, attributes, base_timestamp, max_timestamp,
        leader_epoch, producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip


def _parse_message(head: memoryview, position: int, size: int, magic: int) -> BatchHeader:
    if size < _MIN_MESSAGE_SIZE[magic]:
        raise BatchCorruptError(f"the message at byte {position} has {size} bytes, too few for its header")
    offset, _, crc, _, attributes = _MESSAGE.unpack_from(head)
    timestamp: int = _MESSAGE_WITH_TIMESTAMP.unpack_from(head)[-1] if magic == 1 else -1
    if offset < 0:
        raise BatchCorruptError(f"the message at byte {position} has the negative offset {offset}")
    # In the old formats, a compressed message set is one outer message. Its value contains the other messages,
    # compressed. The header describes only the outer message, so it has neither the number of messages nor the first
    # timestamp.
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
    # In magic 2 the CRC field follows the magic; in older formats it precedes the magic.
    start = 17 if magic == 2 else 12
    return int.from_bytes(batch[start : start + 4], "big")


def _computed_crc(batch: memoryview, magic: int) -> int:
    # The CRC covers only the bytes after its own field. The broker sets the offset, and in magic 2 the leader epoch,
    # after the producer has computed the CRC. So these fields come before the CRC. Magic 2 uses Castagnoli's
    # polynomial, and the older formats use zlib's.
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
