"""One generation (a version of the output) of a pipeline: its file names, commit log and owner."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError, ObjectNotFoundError, PreconditionFailedError
from tieredstore.pipelines.config.settings import Pipeline, with_generation
from tieredstore.pipelines.filing.naming import OWN_FOLDER, parse_name
from tieredstore.pipelines.log.commit_log import CommitLog, Life
from tieredstore.pipelines.log.entries import read_state
from tieredstore.pipelines.log.holdings import Family
from tieredstore.pipelines.run.iceberg import table_of
from tieredstore.pipelines.run.recipes import fingerprint_of, naming_of
from tieredstore.versions import GENERATION

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.run.iceberg import IcebergTable

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """Contents of the claim object, which records the pipeline that owns a generation (a version of the output). Each
    root (key prefix) of the pipeline has one.

    ``root`` is the root of the commit log, or None if the commit log is below the same root as this object.
    """

    pipeline: str
    root: str | None = None


class Generation:
    """A generation (a version of the output) of a pipeline in a store. Not thread-safe."""

    def __init__(self, pipeline: Pipeline, store: ObjectStore) -> None:
        self.pipeline, self.store = pipeline, store
        self.own, self.number = pipeline.own, pipeline.own.generation
        self.naming = naming_of(pipeline)
        self.log: CommitLog = CommitLog(store, self.naming.root, self.own.name, self.number)
        self.family: Family = Family(self.log)
        self.fingerprint: str = fingerprint_of(self.own)

    @cached_property
    def table(self) -> IcebergTable | None:
        """The Iceberg table that lists the published files, or None."""
        return table_of(self.pipeline)

    def with_number(self, number: int) -> Generation:
        """Return the generation ``number`` of the same output, with the same settings."""
        return Generation(with_generation(self.pipeline, number), self.store)

    def refuse_replacement(self, *, but: int = -1) -> None:
        """Raise ConfigError if a generation other than ``but`` is now replacing files of this one."""
        other = self.log.state.giving_to
        if other not in {-1, but}:
            raise ConfigError(
                f"generation {other} is replacing files of generation {self.number}: first complete that backfill, or "
                f"remove generation {other}"
            )

    def end_replacement(self, by: int) -> None:
        """Record in the log that the generation ``by`` replaces no further files of this one."""
        self.log.append("replaced", self.fingerprint, other=by, directories=sorted(self.log.state.withheld))

    def refuse_ended(self) -> None:
        """Raise ConfigError if the commit log was sealed or dropped when it was last read."""
        state = self.log.state
        if state.life is Life.DROPPED:
            raise ConfigError(f"generation {self.number} was dropped: set another secor.generation")
        if state.life is Life.SEALED:
            raise ConfigError(
                f"generation {self.number} was sealed when generation {state.other} took it over: run generation "
                f"{state.other}"
            )

    @property
    def claim_keys(self) -> list[str]:
        """Keys of the claim objects, which record the pipeline that owns the output. There is one below each root (key
        prefix)."""
        return [f"{root}{OWN_FOLDER}/generations/{self.number}.json" for root in self.naming.places.roots]

    def claim(self) -> None:
        """Record that this pipeline owns the generation. Raise ConfigError if another pipeline already owns it."""
        for root, key in zip(self.naming.places.roots, self.claim_keys, strict=True):
            # A pipeline may have two roots. The claim in the root without the commit log names the other root.
            elsewhere = {} if root == self.naming.root else {"root": self.naming.root}
            try:
                self.store.put(key, GENERATION.to_bytes({"pipeline": self.own.name, **elsewhere}), if_absent=True)
            except PreconditionFailedError:
                self._refuse_other(root, key)

    def is_claimed(self) -> bool:
        """Return True if this pipeline owns the generation; raise ConfigError if another pipeline does."""
        try:
            for root, key in zip(self.naming.places.roots, self.claim_keys, strict=True):
                self._refuse_other(root, key)
        except ObjectNotFoundError:
            return False
        return True

    def _refuse_other(self, root: str, key: str) -> None:
        owner = read_state(GENERATION, Claim, self.store.get(key), key)
        if (owner.pipeline, root if owner.root is None else owner.root) != (self.own.name, self.naming.root):
            raise ConfigError(
                f"generation {self.number} of {self.store.identity}/{root} belongs to the pipeline "
                f"{owner.pipeline!r}: set another secor.generation, or check pipeline.name"
            ) from None

    def check_root(self) -> None:
        """Raise ConfigError for a new output if its key prefix does not end with a slash. Topic ``a`` under the prefix
        ``b`` would otherwise become ``ba``.

        If the output already exists, only log a warning, even for a new generation (a version of the output).
        """
        root = self.naming.root
        if not root or root.endswith("/"):
            return
        said = f"output.key.prefix is {root!r}, without a trailing slash, so files of a topic go to {root}TOPIC/"
        is_new = self.log.state.life is Life.FREE
        if is_new and next(iter(self.store.list(f"{root}{OWN_FOLDER}/")), None) is None:
            raise ConfigError(f"{said}: set {root}/")
        _logger.warning("%s, where the existing files are", said)

    def refuse_strangers(self, topics: Sequence[str]) -> None:
        """Raise ConfigError if the generation has files but no log, or FencedError if another driver has just begun."""
        for info in self.naming.places.list_files(self.store, topics):
            match = parse_name(info.key)
            if match is not None and match.generation == self.number:
                self.log.check_alone()
                raise ConfigError(
                    f"{info.key} is a file of generation {self.number}, which has no commit log: set another "
                    "secor.generation"
                )


def commit_log_of(pipeline: Pipeline, store: ObjectStore) -> CommitLog:
    """Return the commit log of a pipeline's generation. The returned object has not read any entries yet."""
    return CommitLog(store, pipeline.output.key_prefix, pipeline.own.name, pipeline.own.generation)


def find_claimed_logs(store: ObjectStore, root: str) -> Iterator[CommitLog]:
    """Yield the commit log of each generation, of any pipeline, that has a claim below ``root``. The log objects have
    not read any entries yet.
    """
    for info in store.list(f"{root}{OWN_FOLDER}/generations/"):
        owner = read_state(GENERATION, Claim, store.get(info.key), info.key)
        number = info.key.rpartition("/")[2].removesuffix(".json")
        if number.isdigit():
            yield CommitLog(store, root if owner.root is None else owner.root, owner.pipeline, int(number))
