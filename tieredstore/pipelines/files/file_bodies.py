"""Bodies of a window's files: what is encoded of a large one is on its way to the store while the rest is encoded.

A small one stays in memory until it ends. One at a time is streamed; what else grows large meanwhile, and what a format
wants to seek or to read again, goes into a temporary file, and to the store from there.
"""

from __future__ import annotations

import io
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn, cast

from tieredstore.errors import StoreError, TieredStoreError
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from tieredstore.backends.base import Body, ObjectStore, Prepared

    Prepare = Callable[[Body], Prepared]

_PIECE: Final = 4 << 20
_SMALL: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Memory:
    """How much of it the bodies of a window take: ``held_files`` times ``held_bytes``, and ``buffers`` of a stream."""

    held_bytes: int = 4 << 20
    """What a body may have and stay in memory."""
    held_files: int = 16
    """So many bodies at a time."""
    buffer_bytes: int = 1 << 20
    """A piece of a stream: it is digested and written while it is in a processor's cache."""
    buffers: int = 4


class FileBody(ABC):
    """What becomes an object: a writer's file until it ends, and prepared then."""

    @property
    @abstractmethod
    def file(self) -> BinaryIO:
        """Where to write."""

    @abstractmethod
    def check(self) -> None:
        """Raise the store's error, if it had one by now: a writer does not hear of it, as some cannot go on then."""

    @abstractmethod
    def end(self) -> None:
        """Nothing more is written."""

    @abstractmethod
    def await_prepared(self) -> Prepared:
        """The object, once it has ended; waits for the store. Raises the store's error."""

    @abstractmethod
    def abandon(self) -> None:
        """Give it up: what is written from now on goes nowhere. Does not wait."""

    @abstractmethod
    def leftover(self, *, waits: bool) -> Prepared | None:
        """What of one that was given up the store has nevertheless, as far as that is known without waiting for it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what this machine holds of it."""


class Bodies:
    """Those of one window. A context manager: after an error nothing of them stays in the store, as far as it lets.

    Only what ends the process is not waited for.
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
        """Nothing has begun."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        waits = kind is None or issubclass(kind, Exception)
        if kind is not None:
            self.abandon()
            for body in self._bodies:
                self._discard(body, waits=waits)
        for body in self._bodies:
            body.close()
        if self._pool is not None:
            self._pool.shutdown(wait=waits)

    def _discard(self, body: FileBody, *, waits: bool) -> None:
        if (prepared := body.leftover(waits=waits)) is not None:
            with suppress(TieredStoreError):
                # What cannot be discarded is for ``gc``, and the life-cycle rule.
                self._store.discard(prepared)

    def begin(self, key: str, *, writes_forward: bool) -> FileBody:
        """The body of an object; ``writes_forward`` says that nobody seeks in its file, or reads it."""
        prepare = partial(self._store.prepare, key, staging_prefix=self._staging_prefix)
        body: FileBody
        if not writes_forward or self._held >= self._memory.held_files:
            body = _Spooled(prepare, self.temporary())
        else:
            self._held += 1
            body = _Growing(self, key, prepare, self._memory)
        self._bodies.append(body)
        return body

    def abandon(self) -> None:
        """Give up all of them: what their writers still write goes nowhere."""
        for body in self._bodies:
            body.abandon()

    def leaves_memory(self) -> None:
        """A body is not held any more."""
        self._held -= 1

    def stream(self, key: str, prepare: Prepare) -> _Stream | None:
        """For a body that grows large; None if another one's is under way. One that has ended is waited for."""
        if self._streamed is not None and not self._streamed.is_over():
            return None
        self._pool = self._pool or ThreadPool(1, "tieredstore-file")
        self._streamed = _Stream(key, prepare, self._pool, self._memory)
        return self._streamed

    def temporary(self) -> BinaryIO:
        """A file of this machine's, without a name."""
        return cast("BinaryIO", tempfile.TemporaryFile(dir=self._local_path))


class _Spooled(FileBody):
    """In a temporary file."""

    def __init__(self, prepare: Prepare, file: BinaryIO) -> None:
        self._prepare, self._file = prepare, file
        self._prepared: Prepared | None = None

    @property
    def file(self) -> BinaryIO:
        return self._file

    def check(self) -> None:
        pass

    def end(self) -> None:
        with self._file:
            self._prepared = self._prepare(_pieces(self._file))

    def await_prepared(self) -> Prepared:
        assert self._prepared is not None
        return self._prepared

    def abandon(self) -> None:
        pass

    def leftover(self, *, waits: bool) -> Prepared | None:  # noqa: ARG002  it is known
        return self._prepared

    def close(self) -> None:
        self._file.close()


class _Growing(FileBody):
    """In memory, and when that is not enough, on its way; or in a temporary file if another one is."""

    def __init__(self, bodies: Bodies, key: str, prepare: Prepare, memory: Memory) -> None:
        self._bodies, self._key, self._prepare, self._memory = bodies, key, prepare, memory
        self._held: io.BytesIO | None = io.BytesIO()
        self._rest: _Stream | _Spooled | None = None
        self._write: Callable[[Any], object] = self._held.write
        self._prepared: Prepared | None = None
        self._error: Exception | None = None
        self._is_abandoned = False
        self._size = 0
        # Writers of some formats append each value by itself.
        self._file = io.BufferedWriter(_ForwardFile(self), _SMALL)

    @property
    def file(self) -> BinaryIO:
        return cast("BinaryIO", self._file)

    @property
    def size(self) -> int:
        """What was written so far."""
        return self._size

    def write(self, data: Any) -> int:
        """Append all of it."""
        with memoryview(data) as view:
            count = view.nbytes
        if not self._is_abandoned:
            self._size += count
            try:
                if self._held is not None and self._size > self._memory.held_bytes:
                    self._leave_memory(self._held)
                self._write(data)
            except Exception as error:  # noqa: BLE001  it is raised by ``check``
                self._error = error
                self.abandon()
        return count

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        self._file.flush()
        self.check()
        held = self._take_out()
        if self._rest is not None:
            self._rest.end()
        elif held is not None:
            self._prepared = self._prepare(held.getbuffer())

    def await_prepared(self) -> Prepared:
        prepared = self._prepared if self._rest is None else self._rest.await_prepared()
        assert prepared is not None
        return prepared

    def abandon(self) -> None:
        self._is_abandoned = True
        self._take_out()
        if self._rest is not None:
            self._rest.abandon()

    def leftover(self, *, waits: bool) -> Prepared | None:
        return self._prepared if self._rest is None else self._rest.leftover(waits=waits)

    def close(self) -> None:
        if self._rest is not None:
            self._rest.close()

    def _leave_memory(self, held: io.BytesIO) -> None:
        self._take_out()
        stream = self._bodies.stream(self._key, self._prepare)
        self._rest = stream or _Spooled(self._prepare, self._bodies.temporary())
        self._write = self._rest.file.write if isinstance(self._rest, _Spooled) else self._rest.write
        self._write(held.getbuffer())

    def _take_out(self) -> io.BytesIO | None:
        held, self._held = self._held, None
        if held is not None:
            self._write = _pass_over
            self._bodies.leaves_memory()
        return held


def _pass_over(_: object) -> None:
    pass


class _ForwardFile(io.RawIOBase):
    """A body as a file that is open for writing alone, and stays so."""

    def __init__(self, body: _Growing) -> None:
        super().__init__()
        self._body = body

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._body.write(data)

    def tell(self) -> int:
        return self._body.size


class _AbandonedError(Exception):
    """What a store is told by whose body will not end."""


class _Stream:
    """Bytes for a thread that has the store take them; who writes waits while all buffers are full."""

    def __init__(self, key: str, prepare: Prepare, pool: ThreadPool, memory: Memory) -> None:
        self._key, self._memory = key, memory
        self._full: SimpleQueue[tuple[bytearray, int] | _AbandonedError | None] = SimpleQueue()
        self._free: SimpleQueue[bytearray | None] = SimpleQueue()
        self._buffers, self._buffer, self._filled = 1, bytearray(memory.buffer_bytes), 0
        self._has_ended = False
        self._future: Future[Prepared] = pool.submit(prepare, self._pieces())
        self._future.add_done_callback(lambda _: self._free.put(None))

    def write(self, data: Any) -> None:
        """Append; the store's error as soon as it is known."""
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
        """Nothing more is written."""
        self._has_ended = True
        self._full.put((self._buffer, self._filled))
        self._full.put(None)

    def is_over(self) -> bool:
        """Whether another one may begin: this one is waited for if it has ended, and its buffers are given back."""
        if not self._has_ended:
            return False
        is_done(self._future)
        self.close()
        return True

    def await_prepared(self) -> Prepared:
        """What the store has made of it."""
        return outcome(self._future)

    def abandon(self) -> None:
        """Have the store take back what it has."""
        self._has_ended = True
        self._full.put(_AbandonedError())

    def leftover(self, *, waits: bool) -> Prepared | None:
        """What the store has made of it, if it had all before it was given up."""
        is_over = is_done(self._future, None if waits else 0)
        return None if not is_over or self._future.cancelled() or self._future.exception() else outcome(self._future)

    def close(self) -> None:
        """Forget the buffers; nothing is written any more."""
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
        raise StoreError(f"the store has prepared {self._key!r} before all of it was written")

    def _pieces(self) -> Generator[memoryview]:
        """For the thread."""
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
