"""The empty topics that ``restore prepare`` has created in a running cluster, and the brokers of their partitions."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from pydantic import TypeAdapter

from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.model import Uuid
from tieredstore.process.interruption import at_sudden_end
from tieredstore.process.whole_files import read_named
from tieredstore.versions import RESTORE_PLAN


@dataclass(frozen=True, slots=True)
class PreparedPartition:
    """An empty partition: its brokers, the leader first, and the start and the end (exclusive) of its log in the
    bucket.

    Each broker's host restores exactly these offsets, so that all replicas have the same end. Segments that the bucket
    gets later are not restored. For a partition without a log, the two offsets are equal.
    """

    replicas: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PreparedTopic:
    """A prepared, empty topic: its id in the bucket, its id in the cluster, and its partitions."""

    topic: str
    source_id: str
    topic_id: str
    partitions: tuple[PreparedPartition, ...]

    @property
    def incarnation(self) -> Uuid:
        """The topic's id in the bucket."""
        return Uuid.parse(self.source_id)


@dataclass(frozen=True, slots=True)
class PreparedRestore:
    """The content of the file that ``restore prepare`` writes. Each broker's host needs this file."""

    cluster_id: str
    topics: tuple[PreparedTopic, ...]

    def write(self, file: BinaryIO) -> None:
        """Write the plan to a file that :func:`new_plan` opened."""
        file.write(RESTORE_PLAN.to_bytes(asdict(self), indent=2))

    @classmethod
    def read(cls, path: Path) -> PreparedRestore:
        """Read the plan from a file. Raise CorruptDataError if the file is damaged, and NewerVersionError if a later
        release wrote it. Raise ResourceNotFoundError if the file does not exist, and ConfigError if it cannot be read.
        """
        raw = read_named(path, absent="prepare the restore while the brokers run (restore prepare)")
        found = RESTORE_PLAN.parse(_FILE, raw, str(path))
        try:
            for topic in found.topics:
                Uuid.parse(topic.source_id)
                Uuid.parse(topic.topic_id)
        except ConfigError as error:
            raise CorruptDataError(f"{path} is not a valid {RESTORE_PLAN.name}: {error}") from None
        return found


@contextmanager
def new_plan(path: Path) -> Generator[BinaryIO]:
    """Open a new file for a plan at the beginning of the ``with`` block. If the block raises an error, remove the file.

    Raise ConfigError if the file exists already, or cannot be written.
    """
    try:
        file = path.open("xb")
    except FileExistsError:
        if path.is_file() and not path.stat().st_size:
            raise ConfigError(
                f"{path} is empty: a restore prepare is running or was killed; if it was killed, delete this file and "
                "the empty topics that it created"
            ) from None
        raise ConfigError(f"{path} exists: a restore was prepared already; name another file (--plan)") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    remove = partial(path.unlink, missing_ok=True)
    try:
        with file, at_sudden_end(remove):
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        remove()
        raise


_FILE: Final = TypeAdapter(PreparedRestore)
