"""The empty topics that ``restore prepare`` has made in a running cluster, and the brokers of their partitions."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

from pydantic import TypeAdapter, ValidationError

from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.model import Uuid


@dataclass(frozen=True, slots=True)
class PreparedTopic:
    """An empty topic: its id in the bucket, its new one, and the brokers of each partition, the leader first."""

    topic: str
    source_id: str
    topic_id: str
    replicas: tuple[tuple[int, ...], ...]

    @property
    def incarnation(self) -> Uuid:
        """The id in the bucket."""
        return Uuid.parse(self.source_id)


@dataclass(frozen=True, slots=True)
class PreparedRestore:
    """The file that ``restore prepare`` writes, and that each broker's host needs."""

    version: Literal[1]
    cluster_id: str
    topics: tuple[PreparedTopic, ...]

    def write(self, file: BinaryIO) -> None:
        """Write it to a file from :func:`new_plan`."""
        file.write(_FILE.dump_json(self, indent=2) + b"\n")

    @classmethod
    def read(cls, path: Path) -> PreparedRestore:
        """Read a file; raise ConfigError for an invalid one, ResourceNotFoundError without one."""
        try:
            found = _FILE.validate_json(path.read_bytes())
            for topic in found.topics:
                Uuid.parse(topic.source_id)
                Uuid.parse(topic.topic_id)
        except FileNotFoundError:
            raise ResourceNotFoundError(
                f"there is no {path}: prepare the restore while the brokers run (restore prepare)"
            ) from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise ConfigError(f"{path} is not a prepared restore of this version: {where}: {first['msg']}") from None
        except ConfigError as error:
            raise ConfigError(f"{path} is not a prepared restore: {error}") from None
        return found


@contextmanager
def new_plan(path: Path) -> Generator[BinaryIO]:
    """Open a new file for a plan before the work that it describes; an error in the block removes it.

    Raise ConfigError if there is one, or if it cannot be written.
    """
    try:
        file = path.open("xb")
    except FileExistsError:
        raise ConfigError(f"{path} exists: a restore was prepared already; name another file (--plan)") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with file:
            yield file
    except BaseException:
        path.unlink()
        raise


_FILE: Final = TypeAdapter(PreparedRestore)
