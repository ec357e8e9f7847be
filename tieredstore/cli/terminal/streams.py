"""The process's stdout and stderr. If a write fails anywhere, the user sees one sentence and an exit code."""

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
    """The output cannot be written."""


class StandardOutputFailedError(OutputFailedError):
    """A write to stdout failed. The stream has already called its ``on_failure``."""


class ReaderGoneError(StandardOutputFailedError):
    """The reader of stdout is gone, as after ``| head``. The command ends without a message, like tools that end by
    SIGPIPE.
    """

    exit_code = 141


class _Stream(io.RawIOBase):
    """The bytes of a standard stream. The descriptor is None if the stream was closed when the process began."""

    def __init__(self, descriptor: int | None) -> None:
        super().__init__()
        self._descriptor = descriptor

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor. Raise OSError if there is none."""
        if self._descriptor is None:
            raise io.UnsupportedOperation("the stream was closed when the process began")
        return self._descriptor

    def isatty(self) -> bool:
        """Return True for a terminal."""
        return self._descriptor is not None and os.isatty(self._descriptor)


class StandardOutput(_Stream):
    """The bytes of stdout. Its errors are StandardOutputFailedError. After the first error nothing more is written.

    The errors of stdout are not OSErrors, because a caller might take an OSError for an error of its file or store.
    """

    def __init__(self, descriptor: int | None, on_failure: Callable[[StandardOutputFailedError], None]) -> None:
        super().__init__(descriptor)
        self._on_failure = on_failure
        self._failure: StandardOutputFailedError | None = None

    @property
    def exit_code(self) -> int:
        """The exit code after a failed write; 0 if all output was written so far."""
        return 0 if self._failure is None else self._failure.exit_code

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as many bytes of ``data`` as the stream accepts at once."""
        with memoryview(data) as view:
            if self._failure is not None:
                return view.nbytes  # the command is ending, and the error is already known
            try:
                return self._write_bytes(view)
            except StandardOutputFailedError as error:
                self._failure = error
                self._on_failure(error)
                raise

    def _write_bytes(self, view: memoryview) -> int:
        if self._descriptor is None:
            raise StandardOutputFailedError("standard output cannot be written: it is closed")
        try:
            return _write(self._descriptor, view)
        except BrokenPipeError as error:
            raise ReaderGoneError("the process that reads standard output has closed the pipe") from error
        except OSError as error:
            raise StandardOutputFailedError(f"standard output cannot be written: {error.strerror}") from error


class StandardError(_Stream):
    """The bytes of stderr. If a write to stderr fails, its text is lost, and only the exit code shows the failure."""

    def __init__(self, descriptor: int | None) -> None:
        super().__init__(descriptor)
        self.exit_code = 0
        """The exit code after a failed write; 0 if all output was written so far."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as much of ``data`` as possible. Ignore the rest."""
        with memoryview(data) as view:
            try:
                return _write(self.fileno(), view)
            except OSError:
                self.exit_code = OutputFailedError.exit_code
                return view.nbytes


def take_streams(on_failure: Callable[[StandardOutputFailedError], None]) -> tuple[StandardOutput, StandardError]:
    """Replace ``sys.stdout`` and ``sys.stderr``. Python's own streams raise OSError, and are None if they were closed
    when the process began."""
    output = StandardOutput(None if sys.stdout is None else _STDOUT, on_failure)
    complaints = StandardError(None if sys.stderr is None else _STDERR)
    _occupy_free_descriptors()
    sys.stdout, sys.stderr = _text(sys.stdout, output), _text(sys.stderr, complaints)
    return output, complaints


def _text(replaced: TextIO | None, raw: io.RawIOBase) -> io.TextIOWrapper:
    """Return ``raw`` as text, buffered and encoded like the stream that it replaces."""
    buffered = io.BufferedWriter(raw)
    # Escape characters that the locale cannot show, because writing a name must not fail.
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
    """Occupy the descriptors 0, 1 and 2 if they are free. Otherwise, a file that is opened later would get one of these
    descriptors. Other code would then use that file as a standard stream.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)


def _write(descriptor: int, view: memoryview) -> int:
    while True:
        try:
            return os.write(descriptor, view)
        except BlockingIOError:
            # Wait until the pipe is writable. The process at the other end may have made the pipe non-blocking for both
            # processes.
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
