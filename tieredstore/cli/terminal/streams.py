"""The process's stdout and stderr. If a write fails anywhere, the user sees one sentence and an exit code."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO, cast

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


class _Stream(io.FileIO):
    """The bytes of a standard stream."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as many bytes of ``data`` as the stream accepts at once."""
        while (count := cast("int | None", super().write(data))) is None:
            # Wait until the pipe is writable. The process at the other end may have made the pipe non-blocking for both
            # processes.
            poll = select.poll()
            poll.register(self, select.POLLOUT)
            poll.poll()
        return count


class StandardOutput(_Stream):
    """The bytes of stdout. Its errors are StandardOutputFailedError. After the first error nothing more is written.

    The errors of stdout are not OSErrors, because a caller might take an OSError for an error of its file or store.
    """

    def __init__(self, descriptor: int, on_failure: Callable[[StandardOutputFailedError], None]) -> None:
        super().__init__(descriptor)
        self._on_failure = on_failure
        self._failure: StandardOutputFailedError | None = None

    @property
    def exit_code(self) -> int:
        """The exit code after a failed write; 0 if all output was written so far."""
        return 0 if self._failure is None else self._failure.exit_code

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as many bytes of ``data`` as the stream accepts at once."""
        if self._failure is not None:
            return memoryview(data).nbytes  # the command is ending, and the error is already known
        try:
            return super().write(data)
        except BrokenPipeError:
            self._failure = ReaderGoneError("the process that reads standard output has closed the pipe")
        except OSError as error:
            reason = "it is closed" if error.errno == errno.EBADF else error.strerror
            self._failure = StandardOutputFailedError(f"standard output cannot be written: {reason}")
        self._on_failure(self._failure)
        raise self._failure


class StandardError(_Stream):
    """The bytes of stderr. If a write to stderr fails, its text is lost, and only the exit code shows the failure."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.exit_code = 0
        """The exit code after a failed write; 0 if all output was written so far."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as much of ``data`` as possible. Ignore the rest."""
        try:
            return super().write(data)
        except OSError:
            self.exit_code = OutputFailedError.exit_code
            return memoryview(data).nbytes


def take_streams(on_failure: Callable[[StandardOutputFailedError], None]) -> tuple[StandardOutput, StandardError]:
    """Replace ``sys.stdout`` and ``sys.stderr``. Python's own streams raise OSError, and are None if they were closed
    when the process began. In this case, replace ``sys.stdin`` too."""
    # A write to a descriptor that is open only for reading fails like a write to a closed stream. A read finds the end.
    closed = os.open(os.devnull, os.O_RDONLY)
    output = StandardOutput(closed if sys.stdout is None else _STDOUT, on_failure)
    complaints = StandardError(closed if sys.stderr is None else _STDERR)
    _occupy_free_descriptors()
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(closed)))
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
