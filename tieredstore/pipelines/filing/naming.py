"""Names of files and places of their directories."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectInfo, ObjectStore

OWN_FOLDER: Final = "_tieredstore"
"""The pipeline's own folder below the root, beside the topics."""
_NAME: Final = re.compile(r"(\d{1,9})_(\d{1,10})_(\d{20})(\..*)?")


class FileName(NamedTuple):
    """The parsed name of a file."""

    generation: int
    partition: int
    offset: int


def parse_name(key: str, *, or_beside: bool = False) -> FileName | None:
    """Parse the name of a file of records, or of a sidecar if these count too; None for any other key."""
    name = key.rpartition("/")[2]
    match = _NAME.fullmatch(name.removeprefix(".") if or_beside else name)
    return None if match is None else FileName(*map(int, match.groups()[:3]))


def own_folder(root: str, pipeline: str, generation: int) -> str:
    """Return the folder for a generation's own objects."""
    return f"{root}{OWN_FOLDER}/{pipeline}/{generation}/"


@dataclass(frozen=True, slots=True)
class Naming:
    """``<root><topic>/<partitions>/<generation>_<kafkaPartition>_<first offset><extension>``."""

    places: Places
    pipeline: str
    generation: int
    extension: str
    redriven: int = 0
    """How often the messages in these files were parsed again after their quarantine."""
    by_window: bool = False
    """True if the first file of a window in a directory is named by the window's first offset, as Secor's are."""

    @property
    def root(self) -> str:
        """The prefix of topics and of the pipeline's own folder."""
        return self.places.root

    def offset_in_name(self, first_offset: int, window_start: int, *, is_first: bool) -> int:
        """Return the offset in a file's name; the first file of a window in its directory may use the window's start.

        Later files use the offset of their first record, which no other file has. So do redriven messages, since a file
        of good ones may already have the name of the window's start.
        """
        return window_start if self.by_window and is_first and not self.redriven else first_offset

    def data_key(self, topic: str, directory: str, partition: int, offset: int) -> str:
        """Return the key of a file of records, by its :meth:`offset_in_name`.

        Raises ConfigError for a topic whose directory is reserved for pipelines.
        """
        if topic == OWN_FOLDER:
            raise ConfigError(
                f"the topic {topic} cannot be kept: the directory of this name is the pipelines' own; leave it out by "
                "secor.kafka.topic_blacklist"
            )
        again = self._again if self.by_window else ""
        return f"{self.places.path(topic, directory)}/{self._stem(partition, offset)}{again}{self.extension}"

    def sidecar_key(self, data_key: str) -> str:
        """Return the key of the sidecar, which Spark and Hive skip."""
        folder, _, name = data_key.rpartition("/")
        return f"{folder}/.{name}.parquet"

    def quarantine_key(self, topic: str, partition: int, first_offset: int) -> str:
        """Return the key of a file of bad messages."""
        return f"{self.folder}quarantine/{topic}/{self._stem(partition, first_offset)}{self._again}.parquet"

    @property
    def folder(self) -> str:
        """Folder for the pipeline's own objects."""
        return own_folder(self.root, self.pipeline, self.generation)

    @property
    def _again(self) -> str:
        return f".r{self.redriven}" if self.redriven else ""

    def _stem(self, partition: int, first_offset: int) -> str:
        return f"{self.generation}_{partition}_{first_offset:020}"


_HASH_CHARACTERS: Final = 4


@dataclass(frozen=True, slots=True)
class ByDate:
    """Places directories of the day ``since`` and later below another root; ``how`` is the day's ``strftime``
    format.
    """

    root: str
    since: date
    prefix: str = "dt="
    how: str = "%Y-%m-%d"

    def has(self, directory: str) -> bool:
        """Return True if a directory is of such a day; False without a day."""
        for part in reversed(directory.split("/")):
            if not part.startswith(self.prefix):
                continue
            try:
                # In the zone that names the directories.
                return datetime.strptime(unquote(part.removeprefix(self.prefix)), self.how).date() >= self.since  # noqa: DTZ007
            except ValueError:
                continue
        return False


@dataclass(frozen=True, slots=True)
class Places:
    """``<root><topic>/<directory>``; ``hashed`` puts four digits of the MD5 of ``<topic>/<directory>`` first, to
    spread the store's load.
    """

    root: str
    hashed: bool = False
    by_date: ByDate | None = None

    @property
    def roots(self) -> list[str]:
        """Roots of topics, the pipeline's own first."""
        return [self.root] if self.by_date is None else [self.root, self.by_date.root]

    def path(self, topic: str, directory: str) -> str:
        """Return the path of a topic's directory, without a trailing slash."""
        later = self.by_date is not None and self.by_date.has(directory)
        inner = f"{topic}/{directory}"
        path = f"{self.roots[later]}{inner}"
        return f"{_hash(inner)}/{path}" if self.hashed else path

    def directory(self, topic: str, path: str) -> str | None:
        """Return the directory that :meth:`path` was given; None for a path outside the topic."""
        for root in self.roots:
            directory = self._without_hash(path).removeprefix(f"{root}{topic}/")
            if self.path(topic, directory) == path:
                return directory
        return None

    def inner(self, key: str) -> str | None:
        """Return ``<topic>/<directories>/<name>`` of a key; None for a key outside every root."""
        rest = self._without_hash(key)
        if self.hashed and rest == key:
            return None
        # One root may contain the other: prefer the one that such a directory is written below.
        inners = [rest.removeprefix(root) for root in self.roots if rest.startswith(root)]
        inners.sort(key=lambda inner: not self._is_written(inner, key))
        return next(iter(inners), None)

    def _is_written(self, inner: str, key: str) -> bool:
        topic, _, rest = inner.partition("/")
        return self.path(topic, rest.rpartition("/")[0]) == key.rpartition("/")[0]

    def list_files(self, store: ObjectStore, topics: Iterable[str]) -> Iterator[ObjectInfo]:
        """Yield all objects of these topics; if hashed, by listing the whole store."""
        names = sorted(topics)
        if not self.hashed:
            for prefix in sorted({f"{root}{topic}/" for root in self.roots for topic in names}):
                yield from store.list(prefix)
            return
        inside = tuple(f"{topic}/" for topic in names)
        for info in store.list(""):
            inner = self.inner(info.key)
            if inner is not None and inner.startswith(inside):
                yield info

    @property
    def prefixes(self) -> list[str]:
        """Disjoint prefixes of all data keys; only the empty one if hashed."""
        roots = [""] if self.hashed else sorted(self.roots)
        return roots[:1] + [root for root in roots[1:] if not root.startswith(roots[0])]

    def _without_hash(self, key: str) -> str:
        return re.sub(rf"^[0-9a-f]{{{_HASH_CHARACTERS}}}/", "", key) if self.hashed else key


def _hash(inner: str) -> str:
    """Return Secor's hash of the topic and the parts of the directory."""
    return hashlib.md5(inner.encode(), usedforsecurity=False).hexdigest()[:_HASH_CHARACTERS]
