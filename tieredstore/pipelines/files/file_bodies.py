"""Bodies: the contents of output files while a task writes and uploads the files.

A small body stays in memory until the file ends. One large body at a time is uploaded while it is being encoded. All
other large bodies go to temporary files, and are uploaded when they end. Formats that seek or read back use temporary
files for bodies of any size.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, BinaryIO, Final, NoReturn, cast

from tieredstore.errors import StoreError, TieredStoreError
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from typing_extensions import Buffer

    from tieredstore.backends.base import Body, ObjectStore, Prepared

    Prepare = Callable[[Body], Prepared]

_PIECE: Final = 4 << 20
_SMALL: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory limits for the files of an offset window (a task's range of offsets): ``held_files`` files with
    ``held_bytes`` each, and the ``buffers`` of one upload.
    """

    held_bytes: int = 4 << 20
    """Maximum size of a body in memory."""
    held_files: int = 16
    """Maximum number of bodies in memory."""
    buffer_bytes: int = 1 << 20
    """Size of a stream's buffer. A buffer this small stays in the processor's cache while its bytes are hashed and
    sent."""
    buffers: int = 4


class Bodies:
    """Bodies of one offset window. After an error, ``__exit__`` deletes the uploaded bodies from the store if it can.

    After KeyboardInterrupt or SystemExit, ``__exit__`` does not wait for running uploads.
    """

    def __init__(
        self, store: ObjectStore, staging_prefix: str, local_path: str | None, memory: Memory | None = None
    ) -> None:
        self._store, self._staging_prefix, self._local_path = store, staging_prefix, local_path
        self._memory = memory or Memory()
        self._bodies: list[FileBody] = []
        self._held = 0
        self._streamed: _Stream | None = None
        self._pool: ThreadPool | None = None

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        waits = kind is None or issubclass(kind, Exception)
        if kind is not None:
            self.abandon()
            for body in self._bodies:
                self._discard(body, waits=waits)
        with ExitStack() as stack:
            if self._pool is not None:
                stack.callback(self._pool.shutdown, wait=waits)
            for body in self._bodies:
                # On a full disk, ``close`` fails too, if a temporary file still has bytes to write.
                stack.callback(body.close)

    def _discard(self, body: FileBody, *, waits: bool) -> None:
        if (prepared := body.leftover(waits=waits)) is not None:
            with suppress(TieredStoreError):
                # Ignore errors: ``gc`` or the bucket's lifecycle rule deletes the uploads that remain.
                self._store.discard(prepared)

    def begin(self, key: str, *, writes_forward: bool) -> FileBody:
        """Return a new body. ``writes_forward`` promises that the file writer neither seeks nor reads back."""
        prepare = partial(self._store.prepare, key, staging_prefix=self._staging_prefix)
        in_memory = writes_forward and self._held < self._memory.held_files
        self._held += in_memory
        body = FileBody(self, key, prepare, self._memory, in_memory=in_memory)
        self._bodies.append(body)
        return body

    def abandon(self) -> None:
        """Abandon all bodies: later writes do nothing."""
        for body in self._bodies:
            body.abandon()

    def leaves_memory(self) -> None:
        """Count one body less in memory."""
        self._held -= 1

    def stream(self, key: str, prepare: Prepare) -> _Stream | None:
        """Return a stream for a large body. Return None while another body uses the stream.

        If that body has ended but its upload still runs, wait for the upload, then return a new stream.
        """
        if self._streamed is not None and not self._streamed.is_over():
            return None
        self._pool = self._pool or ThreadPool(1, "tieredstore-file")
        self._streamed = _Stream(key, prepare, self._pool, self._memory)
        return self._streamed

    def temporary(self) -> BinaryIO:
        """Return an unnamed temporary file."""
        return cast("BinaryIO", tempfile.TemporaryFile(dir=self._local_path))


class _Local:
    """A body in memory, or in a temporary file."""

    def __init__(self, prepare: Prepare, file: BinaryIO) -> None:
        self._prepare, self.file = prepare, file
        self._prepared: Prepared | None = None

    def write(self, data: Buffer) -> None:
        self.file.write(data)

    def end(self) -> None:
        with self.file as file:
            self._prepared = self._prepare(file.getvalue() if isinstance(file, io.BytesIO) else _pieces(file))

    def await_prepared(self) -> Prepared:
        assert self._prepared is not None
        return self._prepared

    def abandon(self) -> None:
        pass

    def leftover(self, *, waits: bool) -> Prepared | None:  # noqa: ARG002  there is nothing to wait for
        return self._prepared

    def close(self) -> None:
        self.file.close()


class FileBody:
    """Body of an object that is being written to ``file``. When the body ends, the object is prepared: uploaded, but
    not yet visible.

    A large body moves from memory to the window's upload stream, or to a temporary file if another body uses the
    stream. A body that is not ``in_memory`` begins in a temporary file.
    """

    def __init__(self, bodies: Bodies, key: str, prepare: Prepare, memory: Memory, *, in_memory: bool) -> None:
        self._bodies, self._key, self._prepare, self._memory = bodies, key, prepare, memory
        self._held = io.BytesIO() if in_memory else None
        self.file: BinaryIO = bodies.temporary() if self._held is None else self._held
        self._place: _Local | _Stream = _Local(prepare, self.file)
        self._error: Exception | None = None
        self._is_abandoned = False
        self.size = 0
        """Bytes written to a body that began in memory."""
        if in_memory:
            # Some formats write single values, so collect small writes in a buffer.
            self.file = cast("BinaryIO", io.BufferedWriter(_ForwardFile(self), _SMALL))

    def write(self, data: Buffer) -> int:
        """Append all of ``data``."""
        with memoryview(data) as view:
            count = view.nbytes
        if not self._is_abandoned:
            self.size += count
            try:
                if self._held is not None and self.size > self._memory.held_bytes:
                    self._leave_memory(self._held)
                self._place.write(data)
            except Exception as error:  # noqa: BLE001  ``check`` raises it later
                self._error = error
                self.abandon()
        return count

    def check(self) -> None:
        """Raise the error of the store, if there was one. ``write`` does not raise this error, because some file
        writers cannot be closed after an error.
        """
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End the body. No write may follow."""
        self.file.flush()
        self.check()
        self._stop_holding()
        self._place.end()

    def await_prepared(self) -> Prepared:
        """Wait until the ended body is uploaded; return the prepared object. Raise the store's error."""
        return self._place.await_prepared()

    def abandon(self) -> None:
        """Stop the upload of the body without waiting. Later writes do nothing."""
        self._is_abandoned = True
        self._stop_holding()
        self._place.abandon()

    def leftover(self, *, waits: bool) -> Prepared | None:
        """Return the prepared object that an abandoned body left in the store, or None.

        If ``waits`` is false, the result is None while the upload is still running.
        """
        return self._place.leftover(waits=waits)

    def close(self) -> None:
        """Release local memory and files."""
        self._place.close()

    def _leave_memory(self, held: io.BytesIO) -> None:
        self._stop_holding()
        stream = self._bodies.stream(self._key, self._prepare)
        self._place = stream or _Local(self._prepare, self._bodies.temporary())
        self._place.write(held.getbuffer())

    def _stop_holding(self) -> None:
        if self._held is not None:
            self._held = None
            self._bodies.leaves_memory()


class _ForwardFile(io.RawIOBase):
    """A write-only file object over a body. Closing the file object does not end the body."""

    def __init__(self, body: FileBody) -> None:
        super().__init__()
        self._body = body

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        return self._body.write(data)

    def tell(self) -> int:
        return self._body.size


class _AbandonedError(Exception):
    """Raised by the body iterator to abort an upload."""


class _Stream:
    """Stream that passes bytes in buffers to a thread, which uploads them. While all buffers are full, ``write``
    waits."""

    def __init__(self, key: str, prepare: Prepare, pool: ThreadPool, memory: Memory) -> None:
        self._key, self._memory = key, memory
        self._full: SimpleQueue[tuple[bytearray, int] | _AbandonedError | None] = SimpleQueue()
        self._free: SimpleQueue[bytearray | None] = SimpleQueue()
        self._buffers, self._buffer, self._filled = 1, bytearray(memory.buffer_bytes), 0
        self._has_ended = False
        self._future: Future[Prepared] = pool.submit(prepare, self._pieces())
        self._future.add_done_callback(lambda _: self._free.put(None))

    def write(self, data: Buffer) -> None:
        """Append bytes. If the upload has failed, raise the store's error."""
        with memoryview(data) as given, given.cast("B") as view:
            start = 0
            while start < len(view):
                count = min(len(view) - start, len(self._buffer) - self._filled)
                self._buffer[self._filled : self._filled + count] = view[start : start + count]
                start += count
                self._filled += count
                if self._filled == len(self._buffer):
                    self._send()

    def end(self) -> None:
        """End the stream. No write may follow."""
        self._has_ended = True
        self._full.put((self._buffer, self._filled))
        self._full.put(None)

    def is_over(self) -> bool:
        """Return False if the stream has not ended. Otherwise wait for its upload, release its buffers, and return
        True. The caller may then begin another stream.
        """
        if not self._has_ended:
            return False
        is_done(self._future)
        self.close()
        return True

    def await_prepared(self) -> Prepared:
        """Wait until the upload is complete; return the prepared object."""
        return outcome(self._future)

    def abandon(self) -> None:
        """Let the store abort the upload."""
        self._has_ended = True
        self._full.put(_AbandonedError())

    def leftover(self, *, waits: bool) -> Prepared | None:
        """Return the prepared object if the upload was complete before the stream was abandoned."""
        is_over = is_done(self._future, None if waits else 0)
        return None if not is_over or self._future.cancelled() or self._future.exception() else outcome(self._future)

    def close(self) -> None:
        """Release the buffers. No write may follow."""
        self._buffer, self._free = bytearray(), SimpleQueue()

    def _send(self) -> None:
        if self._future.done():
            self._fail()
        self._full.put((self._buffer, self._filled))
        self._filled = 0
        if self._buffers < self._memory.buffers:
            self._buffers += 1
            self._buffer = bytearray(self._memory.buffer_bytes)
            return
        free = self._free.get()
        if free is None:
            self._fail()
        self._buffer = free

    def _fail(self) -> NoReturn:
        outcome(self._future)
        raise StoreError(f"the store ended the upload of {self._key!r} too early")

    def _pieces(self) -> Generator[memoryview]:
        """Yield filled buffers to the uploading thread."""
        while (piece := self._full.get()) is not None:
            if isinstance(piece, _AbandonedError):
                raise piece
            buffer, size = piece
            yield memoryview(buffer)[:size]
            self._free.put(buffer)


def _pieces(file: BinaryIO) -> Generator[bytes]:
    file.seek(0)
    while piece := file.read(_PIECE):
        yield piece
