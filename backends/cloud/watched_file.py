"""A file that is read again when it changes, for credentials that are rotated while a process runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.process.forks import ForkSafeLock

Value = TypeVar("Value")

MAX_FILE_BYTES = 1 << 20
"""Maximum size of the file, because a wrong path may name a large file. A credentials file has a few KiB."""

_Stamp = tuple[int, int, int]


class WatchedFile(Generic[Value]):
    """The parsed content of a file. An access checks the file for changes if the last check was at least ``interval_s``
    ago. Thread-safe.

    If a changed file is unreadable or half written, raise an error. Never return the old content, because revoked
    credentials must not stay in use. ``parse`` raises ConfigError for invalid content, and must not quote it.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[bytes], Value],
        *,
        interval_s: float = 10.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._parse = parse
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._lock = ForkSafeLock()
        self._read: tuple[_Stamp, Value] | None = None
        self._looked_at_s = 0.0
        self.version = 0

    def get(self) -> Value:
        """Return the current content; raise ConfigError if the file cannot be read or parsed.

        ``version`` grows with each change.
        """
        with self._lock:
            now = self._monotonic()
            if self._read is None or now - self._looked_at_s >= self._interval_s:
                self._read = self._fresh()
                self._looked_at_s = now
            return self._read[1]

    def _fresh(self) -> tuple[_Stamp, Value]:
        stamp = self._stamp()
        if self._read is not None and self._read[0] == stamp:
            return self._read
        # Drop the old content first, because if the new content is invalid, the next call must not return the old
        # content.
        self._read = None
        try:
            with self.path.open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(raw) > MAX_FILE_BYTES:
            raise ConfigError(f"{self.path} has over {MAX_FILE_BYTES} bytes: it is not a credentials file")
        try:
            value = self._parse(raw)
        except TieredStoreError as error:
            raise ConfigError(f"{self.path}: {error}") from error
        self.version += 1
        return stamp, value

    def _stamp(self) -> _Stamp:
        try:
            status = self.path.stat()
        except OSError as error:
            self._read = None
            raise self._unreadable(error) from error
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _unreadable(self, error: OSError) -> ConfigError:
        return ConfigError(f"the credentials file {self.path} cannot be read: {error.strerror}")
