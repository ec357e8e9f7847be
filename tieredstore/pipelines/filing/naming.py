"""Names of output files, and paths of their directories."""

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
"""Folder for commit logs and other objects of pipelines, below the root and beside the topics' folders."""
_NAME: Final = re.compile(r"(\d{1,9})_(\d{1,10})_(\d{20})(\..*)?")


class FileName(NamedTuple):
    """The parts of a file's name."""

    generation: int
    partition: int
    offset: int


def parse_name(key: str, *, or_beside: bool = False) -> FileName | None:
    """Parse the name of a data file; with ``or_beside``, also of a sidecar. Return None for any other key."""
    name = key.rpartition("/")[2]
    match = _NAME.fullmatch(name.removeprefix(".") if or_beside else name)
    return None if match is None else FileName(*map(int, match.groups()[:3]))


def own_folder(root: str, pipeline: str, generation: int) -> str:
    """Return the folder for a generation's commit log and other objects."""
    return f"{root}{OWN_FOLDER}/{pipeline}/{generation}/"


@dataclass(frozen=True, slots=True)
class Naming:
    """Names of files: ``<root><topic>/<directories>/<generation>_<partition>_<offset><extension>``."""

    places: Places
    pipeline: str
    generation: int
    extension: str
    redriven: int = 0
    """Number of times that the messages in these files were parsed again after quarantine."""
    by_window: bool = False
    """True if a directory's first file of an offset window has the window's first offset in its name, as in Secor."""

    @property
    def root(self) -> str:
        """Prefix of the topics' folders and of OWN_FOLDER."""
        return self.places.root

    def data_key(self, topic: str, directory: str, partition: int, offset: int) -> str:
        """Return the key of a data file. Raise ConfigError if the topic has the name of OWN_FOLDER, the folder for
        commit logs.
        """
        if topic == OWN_FOLDER:
            raise ConfigError(
                f"the topic {topic} cannot be written: pipelines use the directory of this name themselves; exclude "
                "the topic by secor.kafka.topic_blacklist"
            )
        again = self._again if self.by_window else ""
        return f"{self.places.path(topic, directory)}/{self._stem(partition, offset)}{again}{self.extension}"

    def sidecar_key(self, data_key: str) -> str:
        """Return the key of a data file's sidecar. The sidecar's name begins with a dot, so that Spark and Hive skip
        it."""
        folder, _, name = data_key.rpartition("/")
        return f"{folder}/.{name}.parquet"

    def quarantine_key(self, topic: str, partition: int, first_offset: int) -> str:
        """Return the key of a quarantine file."""
        return f"{self.folder}quarantine/{topic}/{self._stem(partition, first_offset)}{self._again}.parquet"

    @property
    def folder(self) -> str:
        """Folder for the generation's commit log and other objects."""
        return own_folder(self.root, self.pipeline, self.generation)

    @property
    def staging_prefix(self) -> str:
        """Prefix of files that are uploaded but not yet published, in stores that cannot hide a finished upload."""
        return f"{self.folder}staging/"

    @property
    def _again(self) -> str:
        return f".r{self.redriven}" if self.redriven else ""

    def _stem(self, partition: int, first_offset: int) -> str:
        return f"{self.generation}_{partition}_{first_offset:020}"


_HASH_CHARACTERS: Final = 4


@dataclass(frozen=True, slots=True)
class ByDate:
    """A second root (key prefix), for directories of the day ``since`` and later days. ``how`` is the ``strftime``
    format of a day."""

    root: str
    since: date
    prefix: str = "dt="
    how: str = "%Y-%m-%d"

    def has(self, directory: str) -> bool:
        """Return True if the directory's day is ``since`` or later. Return False if the directory has no day in its
        path.
        """
        for part in reversed(directory.split("/")):
            if not part.startswith(self.prefix):
                continue
            try:
                # The date needs no time zone, because the directory's name gives the day in the pipeline's zone.
                return datetime.strptime(unquote(part.removeprefix(self.prefix)), self.how).date() >= self.since  # noqa: DTZ007
            except ValueError:
                continue
        return False


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of directories: ``<root><topic>/<directory>``.

    ``hashed`` begins each path with four digits of the MD5 of ``<topic>/<directory>``, to spread the store's load.
    """

    root: str
    hashed: bool = False
    by_date: ByDate | None = None

    @property
    def roots(self) -> list[str]:
        """Prefixes of the topics' folders. OWN_FOLDER is under the first prefix."""
        return [self.root] if self.by_date is None else [self.root, self.by_date.root]

    def path(self, topic: str, directory: str) -> str:
        """Return the path of a topic's directory, without a trailing slash."""
        later = self.by_date is not None and self.by_date.has(directory)
        inner = f"{topic}/{directory}"
        path = f"{self.roots[later]}{inner}"
        return f"{_hash(inner)}/{path}" if self.hashed else path

    def directory(self, topic: str, path: str) -> str | None:
        """Return the directory for which :meth:`path` returns ``path``, or None if the path belongs to another
        topic."""
        for root in self.roots:
            directory = self._without_hash(path).removeprefix(f"{root}{topic}/")
            if self.path(topic, directory) == path:
                return directory
        return None

    def inner(self, key: str) -> str | None:
        """Return the part ``<topic>/<directories>/<name>`` of an object key, or None for a key outside all roots (key
        prefixes)."""
        rest = self._without_hash(key)
        if self.hashed and rest == key:
            return None
        # Prefer the root where :meth:`path` would put this directory, because one root may be inside the other.
        inners = [rest.removeprefix(root) for root in self.roots if rest.startswith(root)]
        inners.sort(key=lambda inner: not self._is_written(inner, key))
        return next(iter(inners), None)

    def _is_written(self, inner: str, key: str) -> bool:
        topic, _, rest = inner.partition("/")
        return self.path(topic, rest.rpartition("/")[0]) == key.rpartition("/")[0]

    def list_files(self, store: ObjectStore, topics: Iterable[str]) -> Iterator[ObjectInfo]:
        """Yield all objects of these topics. With ``hashed``, list the whole store."""
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
        """Prefixes whose listings together find each data file exactly once. With ``hashed``, the only prefix is the
        empty text."""
        roots = [""] if self.hashed else sorted(self.roots)
        return roots[:1] + [root for root in roots[1:] if not root.startswith(roots[0])]

    def _without_hash(self, key: str) -> str:
        return re.sub(rf"^[0-9a-f]{{{_HASH_CHARACTERS}}}/", "", key) if self.hashed else key


def _hash(inner: str) -> str:
    """Return the hash of ``<topic>/<directory>``, as Secor computes it."""
    return hashlib.md5(inner.encode(), usedforsecurity=False).hexdigest()[:_HASH_CHARACTERS]
