"""How files are named and where their directories lie."""

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
"""Below the root, beside the topics."""
_NAME: Final = re.compile(r"(\d{1,9})_(\d{1,10})_(\d{20})(\..*)?")


class FileName(NamedTuple):
    """What the name of a file says."""

    generation: int
    partition: int
    offset: int


def parse_name(key: str, *, or_beside: bool = False) -> FileName | None:
    """Read the name of a file of records, or of one beside it if these count too; None for any other key."""
    name = key.rpartition("/")[2]
    match = _NAME.fullmatch(name.removeprefix(".") if or_beside else name)
    return None if match is None else FileName(*map(int, match.groups()[:3]))


def own_folder(root: str, pipeline: str, generation: int) -> str:
    """Where a pipeline keeps what is its own, of one generation."""
    return f"{root}{OWN_FOLDER}/{pipeline}/{generation}/"


@dataclass(frozen=True, slots=True)
class Naming:
    """``<root><topic>/<partitions>/<generation>_<kafkaPartition>_<first offset><extension>``."""

    places: Places
    pipeline: str
    generation: int
    extension: str
    redriven: int = 0
    """How often the bad messages in a file of these were parsed again."""
    by_window: bool = False
    """Whether the first file of a window in a directory has the window's first offset in its name, as Secor's have."""

    @property
    def root(self) -> str:
        """What topics and the pipeline's own folder lie below."""
        return self.places.root

    def offset_in_name(self, first_offset: int, window_start: int, *, is_first: bool) -> int:
        """The offset in the name of a file of a window, by whether it is the first one in its directory.

        Later ones there have that of their own first record, which is none of any other file. So do messages that were
        put aside: where their window starts, a file of good ones is named.
        """
        return window_start if self.by_window and is_first and not self.redriven else first_offset

    def data_key(self, topic: str, directory: str, partition: int, offset: int) -> str:
        """Of a file of records, by its :meth:`named_offset`.

        ConfigError for a topic whose directory is what pipelines keep for themselves.
        """
        if topic == OWN_FOLDER:
            raise ConfigError(
                f"the topic {topic} cannot be kept: the directory of this name is the pipelines' own; leave it out by "
                "secor.kafka.topic_blacklist"
            )
        again = self._again if self.by_window else ""
        return f"{self.places.path(topic, directory)}/{self._stem(partition, offset)}{again}{self.extension}"

    def sidecar_key(self, data_key: str) -> str:
        """Of the file beside it that Spark and Hive pass over."""
        folder, _, name = data_key.rpartition("/")
        return f"{folder}/.{name}.parquet"

    def quarantine_key(self, topic: str, partition: int, first_offset: int) -> str:
        """Of bad messages."""
        return f"{self.folder}quarantine/{topic}/{self._stem(partition, first_offset)}{self._again}.parquet"

    @property
    def folder(self) -> str:
        """Where the pipeline keeps what is its own."""
        return own_folder(self.root, self.pipeline, self.generation)

    @property
    def _again(self) -> str:
        return f".r{self.redriven}" if self.redriven else ""

    def _stem(self, partition: int, first_offset: int) -> str:
        return f"{self.generation}_{partition}_{first_offset:020}"


_HASH_CHARACTERS: Final = 4


@dataclass(frozen=True, slots=True)
class ByDate:
    """Directories of ``since`` and later days lie below another root; a day is told as ``how`` (``strftime``) says."""

    root: str
    since: date
    prefix: str = "dt="
    how: str = "%Y-%m-%d"

    def has(self, directory: str) -> bool:
        """Whether a directory is of such a day; one that tells no day is of none."""
        for part in reversed(directory.split("/")):
            if not part.startswith(self.prefix):
                continue
            try:
                # Of the zone that directories are named by.
                return datetime.strptime(unquote(part.removeprefix(self.prefix)), self.how).date() >= self.since  # noqa: DTZ007
            except ValueError:
                continue
        return False


@dataclass(frozen=True, slots=True)
class Places:
    """``<root><topic>/<directory>``; ``hashed`` behind four digits of its MD5, by which stores part their load."""

    root: str
    hashed: bool = False
    by_date: ByDate | None = None

    @property
    def roots(self) -> list[str]:
        """What topics lie below, the pipeline's own first."""
        return [self.root] if self.by_date is None else [self.root, self.by_date.root]

    def path(self, topic: str, directory: str) -> str:
        """Of a directory of a topic, without a slash at its end."""
        later = self.by_date is not None and self.by_date.has(directory)
        inner = f"{topic}/{directory}"
        path = f"{self.roots[later]}{inner}"
        return f"{_hash(inner)}/{path}" if self.hashed else path

    def directory(self, topic: str, path: str) -> str | None:
        """What :meth:`path` was given; None for a path that is none of the topic's."""
        for root in self.roots:
            directory = self._without_hash(path).removeprefix(f"{root}{topic}/")
            if self.path(topic, directory) == path:
                return directory
        return None

    def inner(self, key: str) -> str | None:
        """``<topic>/<directories>/<name>`` of a key; None for one that is not below a root."""
        rest = self._without_hash(key)
        if self.hashed and rest == key:
            return None
        # One root may lie below the other: the one below which such a directory is written comes first.
        inners = [rest.removeprefix(root) for root in self.roots if rest.startswith(root)]
        inners.sort(key=lambda inner: not self._is_written(inner, key))
        return next(iter(inners), None)

    def _is_written(self, inner: str, key: str) -> bool:
        topic, _, rest = inner.partition("/")
        return self.path(topic, rest.rpartition("/")[0]) == key.rpartition("/")[0]

    def list_files(self, store: ObjectStore, topics: Iterable[str]) -> Iterator[ObjectInfo]:
        """All objects of these topics; of hashed ones by a listing of all that the store has."""
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
        """What all keys of data begin with, none of them with another: nothing, where they are hashed."""
        roots = [""] if self.hashed else sorted(self.roots)
        return roots[:1] + [root for root in roots[1:] if not root.startswith(roots[0])]

    def _without_hash(self, key: str) -> str:
        return re.sub(rf"^[0-9a-f]{{{_HASH_CHARACTERS}}}/", "", key) if self.hashed else key


def _hash(inner: str) -> str:
    """Secor's: of the topic and the parts of the directory."""
    return hashlib.md5(inner.encode(), usedforsecurity=False).hexdigest()[:_HASH_CHARACTERS]
