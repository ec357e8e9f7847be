"""The log directory of a stopped broker, into which a restore writes partitions. This module is separate from
``restoring``, because this module does not use the bucket.

While a restore is unfinished, each log directory of the broker contains the folder ``MARKER`` with a description of the
restore. A broker refuses to start with a folder that is not named topic-partition, and logs the folder's name. The
broker can therefore never serve or truncate an unfinished restore.

A starting broker deletes the files that mark its clean shutdown, even if it then refuses to start. The restore
therefore moves these files into ``MARKER``, and moves them back at the end. A broker that starts between two moves may
still delete some of the files. After the restore, it then takes longer to start, because it checks the ends of logs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Collection, Generator, Mapping
from pathlib import Path
from typing import Final

from tieredstore.errors import BatchCorruptError, ConfigError
from tieredstore.kafka.checkpoints import OffsetCheckpoint, format_offset_checkpoint, parse_offset_checkpoint
from tieredstore.process.closing import Closing
from tieredstore.process.whole_files import sync_folder
from tieredstore.restore.logdir.segment_copy import DRAFT, sync

MARKER: Final = "tieredstore-restore-unfinished"

_LOCK: Final = ".lock"
_CLEAN: Final = ".kafka_cleanshutdown"
_WORK: Final = "work.json"

_AT_THE_END: Final = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
_LOG_START: Final = "log-start-offset-checkpoint"
_CLEANER: Final = "cleaner-offset-checkpoint"


class LogDirectory(Closing):
    """The log directory of a stopped broker. This object holds the broker's lock on the directory, so that the broker
    cannot start.

    Raise ConfigError if a broker or another restore uses the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # The lock file may exist. At a clean stop, brokers of Kafka 4 delete it, but brokers of Kafka 3.9 leave it.
        self._made_lock = not (path / _LOCK).exists()
        self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A process that ends deletes the file. A lock on a deleted file keeps no other process away.
            if not os.path.samestat(os.fstat(self._lock), (self.path / _LOCK).stat()):
                raise FileNotFoundError
        except OSError:
            self._made_lock = False
            raise ConfigError(
                f"a broker is running in {self.path}, or another restore is writing to it: stop that process first"
            ) from None
        if self._made_lock:
            take_owner(self.path / _LOCK, self.path)
        for name in (*_AT_THE_END, _LOG_START, _CLEANER):
            self._read(name)

    def close(self) -> None:
        """Release the lock, and delete the lock file if this process has created it."""
        if self._made_lock:
            (self.path / _LOCK).unlink(missing_ok=True)
        os.close(self._lock)

    def begin(self, work: bytes) -> None:
        """Keep the broker from starting until :meth:`finish`, and save ``work``, the description of the restore."""
        marker = self.path / MARKER
        marker.mkdir(exist_ok=True)
        replace_file(marker / _WORK, work, like=self.path)
        if (self.path / _CLEAN).exists():
            (self.path / _CLEAN).replace(marker / _CLEAN)
        sync_folder(marker)
        sync_folder(self.path)

    def finish(self) -> None:
        """Allow the broker to start."""
        marker = self.path / MARKER
        if (marker / _CLEAN).exists():
            (marker / _CLEAN).replace(self.path / _CLEAN)
            sync_folder(self.path)
        if marker.exists():
            for path in marker.iterdir():
                path.unlink()
            marker.rmdir()
        sync_folder(self.path)

    def checkpoint(self, bounds: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        """Write the start and the end (exclusive) of these partitions' logs into the broker's checkpoint files. Lines
        of other partitions stay unchanged.

        The end of a log becomes its recovery point and its high watermark. Remove the log cleaner's line for a
        partition, because the line belongs to an earlier log.
        """
        for name in _AT_THE_END:
            self._rewrite(name, lambda known: known | {where: end for where, (_, end) in bounds.items()})
        starts = {where: start for where, (start, _) in bounds.items() if start}
        self._rewrite(_LOG_START, lambda known: _without(known, bounds) | starts)
        if (self.path / _CLEANER).exists():
            self._rewrite(_CLEANER, lambda known: _without(known, bounds))

    def _rewrite(self, name: str, change: Callable[[OffsetCheckpoint], OffsetCheckpoint]) -> None:
        replace_file(self.path / name, format_offset_checkpoint(change(self._read(name))), like=self.path)

    def _read(self, name: str) -> OffsetCheckpoint:
        path = self.path / name
        try:
            return parse_offset_checkpoint(path.read_bytes())
        except FileNotFoundError:
            return {}
        except BatchCorruptError as error:
            raise BatchCorruptError(f"{path}: {error}") from None


@contextlib.contextmanager
def disk_faults(log_dir: Path) -> Generator[None]:
    """Translate disk errors in the ``with`` block to ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or log_dir}: {error.strerror}; correct this, and run the restore again, as the broker's "
            "user or as root"
        ) from error


def check_clean(log_dirs: Collection[Path]) -> None:
    """Raise ConfigError if the broker of these directories was not shut down cleanly, because such a broker rewrites
    logs at its next start."""
    for log_dir in log_dirs:
        if not (log_dir / _CLEAN).exists():
            markers = [f"remove the folder {path / MARKER}, " for path in log_dirs if (path / MARKER).exists()]
            raise ConfigError(
                f"{log_dir} has no {_CLEAN}: {''.join(markers)}start its broker, and stop it by kafka-server-stop"
            )


def unfinished_work(log_dir: Path) -> bytes | None:
    """Return the description of an unfinished restore that :meth:`LogDirectory.begin` has saved; None if there is no
    such restore."""
    work = log_dir / MARKER / _WORK
    return work.read_bytes() if work.exists() else None


def _without(known: OffsetCheckpoint, bounds: Mapping[tuple[str, int], object]) -> OffsetCheckpoint:
    return {where: offset for where, offset in known.items() if where not in bounds}


def replace_file(path: Path, content: bytes, *, like: Path) -> None:
    """Write a file completely or not at all, with the owner and the mode of the folder ``like`` (see
    :func:`take_owner`).

    Unlike ``whole_file``, this function gives the draft (unfinished file) a fixed name. If the process is killed, a
    later restore with other options must find and remove the draft.
    """
    draft = path.with_name(f"{path.name}{DRAFT}")
    with draft.open("wb") as file:
        file.write(content)
        sync(file)
    take_owner(draft, like)
    draft.replace(path)
    sync_folder(path.parent)


def take_owner(path: Path, folder: Path) -> None:
    """Give a file the folder's owner, and the folder's mode without the execute bits.

    The owner and mode matter. A broker that fails to open one file takes its whole log directory offline.
    """
    like = folder.stat()
    # Only root may set any group.
    os.chown(path, like.st_uid, like.st_gid if os.geteuid() == 0 else -1)
    path.chmod(like.st_mode & 0o666)
