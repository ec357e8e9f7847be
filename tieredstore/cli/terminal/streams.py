"""stdout and stderr of the process: what cannot be written is one sentence and an exit code, whoever wrote it."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

from tieredstore.errors import TieredStoreError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDOUT: Final = 1
_STDERR: Final = 2


class OutputFailedError(TieredStoreError):
    """What a command was to write cannot be written."""


class StandardOutputFailedError(OutputFailedError):
    """It is stdout that cannot be written. Whoever gave the stream its ``on_failure`` has been told."""


class ReaderGoneError(StandardOutputFailedError):
    """Nobody reads what is written any more, as after ``| head``. No error to talk of: other tools end by SIGPIPE."""

    exit_code = 141


class _Stream(io.RawIOBase):
    """The bytes of one of the process's streams; the descriptor is None where it was closed when the process began."""

    def __init__(self, descriptor: int | None) -> None:
        super().__init__()
        self._descriptor = descriptor

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The descriptor; OSError without one."""
        if self._descriptor is None:
            raise io.UnsupportedOperation("the stream was closed when the process began")
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._descriptor is not None and os.isatty(self._descriptor)


class StandardOutput(_Stream):
    """The bytes of stdout. Its errors are StandardOutputFailedError; after the first one nothing is written any more.

    Not an OSError, which anybody may take for one of the file or the store that he asked for.
    """

    def __init__(self, descriptor: int | None, on_failure: Callable[[StandardOutputFailedError], None]) -> None:
        super().__init__(descriptor)
        self._on_failure = on_failure
        self._failure: StandardOutputFailedError | None = None

    @property
    def exit_code(self) -> int:
        """0 as long as all was written."""
        return 0 if self._failure is None else self._failure.exit_code

    def write(self, data: ReadableBuffer, /) -> int:
        """As much of ``data`` as is taken at once."""
        with memoryview(data) as view:
            if self._failure is not None:
                return view.nbytes  # the command is on its way to the end, and the error is known
            try:
                return self._written(view)
            except StandardOutputFailedError as error:
                self._failure = error
                self._on_failure(error)
                raise

    def _written(self, view: memoryview) -> int:
        if self._descriptor is None:
            raise StandardOutputFailedError("standard output cannot be written: it is closed")
        try:
            return _write(self._descriptor, view)
        except BrokenPipeError as error:
            raise ReaderGoneError("nobody reads standard output any more") from error
        except OSError as error:
            raise StandardOutputFailedError(f"standard output cannot be written: {error.strerror}") from error


class StandardError(_Stream):
    """The bytes of stderr. Where it cannot be written they are lost: there is nobody to tell, but by an exit code."""

    def __init__(self, descriptor: int | None) -> None:
        super().__init__(descriptor)
        self.exit_code = 0
        """0 as long as all was written."""

    def write(self, data: ReadableBuffer, /) -> int:
        """All of ``data``, as far as that goes."""
        with memoryview(data) as view:
            try:
                return _write(self.fileno(), view)
            except OSError:
                self.exit_code = OutputFailedError.exit_code
                return view.nbytes


def take_streams(
    on_failure: Callable[[StandardOutputFailedError], None],
) -> tuple[StandardOutput, StandardError]:
    """Put these in the place of Python's own, which raise whatever the system says, and are None where closed."""
    output = StandardOutput(None if sys.stdout is None else _STDOUT, on_failure)
    complaints = StandardError(None if sys.stderr is None else _STDERR)
    _occupy_free_descriptors()
    sys.stdout, sys.stderr = _text(sys.stdout, output), _text(sys.stderr, complaints)
    return output, complaints


def _text(replaced: TextIO | None, raw: io.RawIOBase) -> io.TextIOWrapper:
    """``raw`` for text, buffered and coded as the stream that it replaces."""
    buffered = io.BufferedWriter(raw)
    # A name that the locale cannot show is no reason to fail.
    if not isinstance(replaced, io.TextIOWrapper):
        return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace")
    return io.TextIOWrapper(
        buffered,
        encoding=replaced.encoding,
        errors="backslashreplace",
        line_buffering=replaced.line_buffering,
        write_through=replaced.write_through,
    )


def _occupy_free_descriptors() -> None:
    """Whatever is opened next must not become 0, 1 or 2, into which others would write, and from which read."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)


def _write(descriptor: int, view: memoryview) -> int:
    while True:
        try:
            return os.write(descriptor, view)
        except BlockingIOError:
            # Whoever has the other end set it so, for us too: it is waited for all the same.
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
