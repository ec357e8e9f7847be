"""The empty topics that ``restore prepare`` has made in a running cluster, and the brokers of their partitions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

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

    def write(self, path: Path) -> None:
        """Write a new file; raise ConfigError if there is one."""
        try:
            with path.open("xb") as file:
                file.write(_FILE.dump_json(self, indent=2) + b"\n")
        except FileExistsError:
            raise ConfigError(f"{path} exists: a restore was prepared already; name another file (--plan)") from None

    @classmethod
    def read(cls, path: Path) -> PreparedRestore:
        """Read a file; raise ConfigError for an invalid one, ResourceNotFoundError without one."""
        try:
            return _FILE.validate_json(path.read_bytes())
        except FileNotFoundError:
            raise ResourceNotFoundError(
                f"there is no {path}: prepare the restore while the brokers run (restore prepare)"
            ) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise ConfigError(f"{path} is not a prepared restore of this version: {where}: {first['msg']}") from None


_FILE: Final = TypeAdapter(PreparedRestore)
