"""A store in memory that keeps versions under delete markers, as S3 does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tieredstore.backends.base import Body, BucketVersions, ObjectVersion
from tieredstore.backends.memory import MemoryObjectStore

START_MS = 1_795_428_000_000
"""2026-11-23T10:00:00Z, in ms."""


class VersionedStore(MemoryObjectStore):
    """Store that adds a version per write, and a marker per deleted key, present or not, at ``clock_ms``."""

    def __init__(self) -> None:
        super().__init__()
        self.clock_ms = START_MS
        self.history = _History(self._objects)

    def versions(self) -> BucketVersions:
        """Return the history."""
        return self.history

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Add a version."""
        super().put(key, body, if_absent=if_absent)
        self.history.add(key, self.clock_ms)

    def replace(self, key: str, body: Body, etag: str) -> str:
        """Add a version."""
        written = super().replace(key, body, etag)
        self.history.add(key, self.clock_ms)
        return written

    def delete(self, keys: Iterable[str]) -> None:
        """Add a delete marker to each key."""
        for key in keys:
            super().delete([key])
            self.history.add(key, self.clock_ms)


class _History(BucketVersions):
    def __init__(self, objects: dict[str, Any]) -> None:
        # Keep the memory store's own objects, so that an object has its old etag again if it returns.
        self._objects = objects
        self._of_key: defaultdict[str, list[ObjectVersion]] = defaultdict(list)
        self._by_id: dict[str, Any] = {}
        self._number = 0

    def add(self, key: str, time_ms: int) -> None:
        """Add a version of the key's present object, or a delete marker if there is none."""
        self._number += 1
        stored, version_id = self._objects.get(key), str(self._number)
        version = ObjectVersion(key, version_id, time_ms, is_marker=stored is None)
        if stored is not None:
            version = replace(version, size=len(stored.data), etag=stored.info(key).etag)
            self._by_id[version_id] = stored
        self._of_key[key].insert(0, version)

    def list(self, prefix: str) -> Iterator[ObjectVersion]:
        """Yield the versions of each key, then its markers, in the order of an S3 page."""
        for key in sorted(self._of_key):
            if key.startswith(prefix):
                found = [replace(one, is_latest=number == 0) for number, one in enumerate(self._of_key[key])]
                yield from sorted(found, key=lambda one: one.is_marker)

    def remove_marker(self, marker: ObjectVersion) -> None:
        """Remove a delete marker; its object returns if the newest entry left is a version."""
        assert marker.is_marker
        left = self._of_key[marker.key] = [one for one in self._of_key[marker.key] if one.id != marker.id]
        if left and not left[0].is_marker:
            self._objects[marker.key] = self._by_id[left[0].id]

    def forget(self, key: str) -> None:
        """Remove the versions of a deleted object, as a lifecycle rule does; its delete markers stay."""
        self._of_key[key] = [one for one in self._of_key[key] if one.is_marker]

    def obstacle(self) -> None:
        """Return None, because versions are kept."""
