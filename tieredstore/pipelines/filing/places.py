"""Where the directories of topics lie in an output's store: below its root, or as Secor spreads them over a bucket."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectInfo, ObjectStore

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
            directory = self._unhashed(path).removeprefix(f"{root}{topic}/")
            if self.path(topic, directory) == path:
                return directory
        return None

    def inner(self, key: str) -> str | None:
        """``<topic>/<directories>/<name>`` of a key; None for one that is not below a root."""
        rest = self._unhashed(key)
        if self.hashed and rest == key:
            return None
        # One root may lie below the other: the one below which such a directory is written comes first.
        inners = [rest.removeprefix(root) for root in self.roots if rest.startswith(root)]
        inners.sort(key=lambda inner: not self._is_written(inner, key))
        return next(iter(inners), None)

    def _is_written(self, inner: str, key: str) -> bool:
        topic, _, rest = inner.partition("/")
        return self.path(topic, rest.rpartition("/")[0]) == key.rpartition("/")[0]

    def listed(self, store: ObjectStore, topics: Iterable[str]) -> Iterator[ObjectInfo]:
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

    def _unhashed(self, key: str) -> str:
        return re.sub(rf"^[0-9a-f]{{{_HASH_CHARACTERS}}}/", "", key) if self.hashed else key


def _hash(inner: str) -> str:
    """Secor's: of the topic and the parts of the directory."""
    return hashlib.md5(inner.encode(), usedforsecurity=False).hexdigest()[:_HASH_CHARACTERS]
