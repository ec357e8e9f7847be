"""Writer of segments in the raw layout: first the offset index, time index and log, then the state files of Pinterest's
reader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Final

from tieredstore.errors import (
    BatchCorruptError,
    InvalidSegmentError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SegmentConflictError,
    StoreUnavailableError,
)
from tieredstore.format.keys import main_path, padded_offset
from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader, walk_batch_headers
from tieredstore.kafka.indexes import read_offset_index, read_time_index
from tieredstore.model import LogSegmentData, RemoteLogSegmentId, RemoteLogSegmentMetadata, SegmentFile
from tieredstore.places.raw_keys import INDEX, LOG, TIME_INDEX, WATERMARK
from tieredstore.places.raw_metadata import MetadataKeeper
from tieredstore.remote.copy.content import open_file
from tieredstore.remote.copy.writer import StoredSizes

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.remote.layout import KeyLayout

_PIECE: Final = 4 << 20
_MOST_INDEX: Final = 64 << 20
_MOST_WATERMARK: Final = 64
_TRIES: Final = 10


class RawSegmentWriter:
    """Writer of a segment's three files. Safe from several threads.

    The writer overwrites no file, so a repeated copy continues where the earlier copy stopped. It accepts an existing
    file with the same bytes, because another attempt or replica may have written the file. It accepts an existing index
    with different bytes if the index fits the batches of this log. Any other existing file raises SegmentConflictError.
    """

    def __init__(self, store: ObjectStore, layout: KeyLayout) -> None:
        self._store, self._layout = store, layout
        self._metadata = MetadataKeeper(store, layout.prefix)

    def copy(
        self,
        metadata: RemoteLogSegmentMetadata,
        data: LogSegmentData,
        on_progress: Callable[[int], None] | None,
        check: Callable[[], None],
    ) -> StoredSizes:
        """Store a segment by five writes. The write of the log commits the segment. ``check`` runs between the writes;
        if ``check`` raises an error, the copy stops.
        """
        path = f"{self._layout.prefix}{main_path(metadata.remote_log_segment_id, metadata.start_offset)}"
        sizes = 0
        for ending, file in ((INDEX, data.offset_index), (TIME_INDEX, data.time_index)):
            check()
            with open_file(file) as opened:
                content = opened.read()
            sizes += len(content)
            self._put_index(f"{path}.{ending}", content, metadata, data.log_segment, ending)
        self._put_log(f"{path}.{LOG}", metadata, data.log_segment, on_progress, check)
        check()
        self.reach(metadata.remote_log_segment_id, metadata.start_offset, _modification_ms(data.log_segment))
        return StoredSizes(metadata.segment_size_in_bytes, sizes, 0)

    def reach(self, segment_id: RemoteLogSegmentId, base_offset: int, modified_ms: int | None = None) -> None:
        """Move ``offset.wm`` at least to the base offset of a stored segment, and update the metadata. An earlier
        attempt may have stored the segment and stopped before these updates.
        """
        folder = f"{self._layout.prefix}{main_path(segment_id, base_offset)}".rpartition("/")[0]
        self._move_watermark(f"{folder}/{WATERMARK}", base_offset)
        self._metadata.name_all(f"{folder}/", {} if modified_ms is None else {base_offset: modified_ms})

    def _put_index(
        self, key: str, content: bytes, metadata: RemoteLogSegmentMetadata, log: SegmentFile, ending: str
    ) -> None:
        try:
            self._store.put(key, content, if_absent=True)
        except PreconditionFailedError as error:
            stored = self._store.get_small(key, _MOST_INDEX)
            if stored == content:
                return
            # Accept another index if it fits the log. Replicas may have different indexes of one log, because the
            # entries depend on how a replica appended the batches.
            if stored is None or not _leads_into(stored, ending, metadata, log):
                raise self._conflict(metadata, ending) from error

    def _put_log(
        self,
        key: str,
        metadata: RemoteLogSegmentMetadata,
        log: SegmentFile,
        on_progress: Callable[[int], None] | None,
        check: Callable[[], None],
    ) -> None:
        with open_file(log) as file:
            try:
                self._store.put(key, _pieces(file, metadata, on_progress, check), if_absent=True)
            except PreconditionFailedError as error:
                file.seek(0)
                if not self._is_stored(key, file, metadata.segment_size_in_bytes, check):
                    raise self._conflict(metadata, LOG) from error

    def _is_stored(self, key: str, file: BinaryIO, size: int, check: Callable[[], None]) -> bool:
        if self._store.head(key).size != size:
            return False
        for start in range(0, size, _PIECE):
            check()
            piece = file.read(min(_PIECE, size - start))
            if self._store.get(key, start, start + len(piece)) != piece:
                return False
        return True

    def _move_watermark(self, key: str, base_offset: int) -> None:
        """Move the watermark to ``base_offset`` unless it is already higher. Other writers may move it concurrently."""
        for _ in range(_TRIES):
            try:
                info = self._store.head(key)
                standing = self._store.get_small(key, _MOST_WATERMARK)
            except ObjectNotFoundError:
                try:
                    self._store.put(key, padded_offset(base_offset).encode(), if_absent=True)
                except PreconditionFailedError:
                    continue
                return
            if _offset_of(standing) >= base_offset:
                return
            try:
                self._store.replace(key, padded_offset(base_offset).encode(), info.etag or "")
            except PreconditionFailedError:
                continue
            return
        raise StoreUnavailableError(f"other writers changed {key!r} {_TRIES} times before this change; try again")

    @staticmethod
    def _conflict(metadata: RemoteLogSegmentMetadata, ending: str) -> SegmentConflictError:
        return SegmentConflictError(
            f"{metadata}: a different .{ending} file exists under its key, and was left unchanged"
        )


def _offset_of(standing: bytes | None) -> int:
    """Parse a watermark object. Return -1 for an invalid object, so that it is replaced."""
    line = (standing or b"").partition(b"\n")[0].strip()
    return int(line) if line.isdigit() and len(line) <= 20 else -1


def _modification_ms(file: SegmentFile) -> int | None:
    """Return the log's modification time, which Pinterest's index uses. Return None if the log is not a file."""
    with open_file(file) as opened:
        try:
            return os.fstat(opened.fileno()).st_mtime_ns // 1_000_000
        except OSError:
            return None


def _pieces(
    file: BinaryIO,
    metadata: RemoteLogSegmentMetadata,
    on_progress: Callable[[int], None] | None,
    check: Callable[[], None],
) -> Iterator[bytes]:
    left = metadata.segment_size_in_bytes
    while left:
        check()
        piece = file.read(min(_PIECE, left))
        if not piece:
            raise InvalidSegmentError(f"{metadata}: the log ends {left} bytes early: it shrank while it was copied")
        yield piece
        left -= len(piece)
        if on_progress is not None:
            on_progress(len(piece))


def _leads_into(stored: bytes, ending: str, metadata: RemoteLogSegmentMetadata, log: SegmentFile) -> bool:
    """Return True if a stored index, which another replica may have written, fits this log."""
    base, end = metadata.start_offset, metadata.end_offset
    with open_file(log) as file:
        headers = list(_headers(file, metadata.segment_size_in_bytes))
    try:
        if ending == INDEX:
            first_at = {header.position: header.base_offset for header in headers}
            entries = read_offset_index(stored, base)
            return all(first_at.get(entry.position, end + 1) <= entry.offset <= end for entry in entries)
        times = read_time_index(stored, base)
    except BatchCorruptError:
        return False
    greatest, number = -1, 0
    for entry in times:
        while number < len(headers) and headers[number].last_offset <= entry.offset:
            greatest = max(greatest, headers[number].max_timestamp)
            number += 1
        if greatest > entry.timestamp or entry.offset > end:
            return False
    return True


def _headers(file: BinaryIO, size: int) -> Iterator[BatchHeader]:
    def view(position: int) -> memoryview:
        file.seek(position)
        return memoryview(file.read(min(HEADER_SIZE, size - position)))

    return walk_batch_headers(view, size)
