"""Store in a folder where two attempts of a task meet: each prepares a file before either continues.

Settings choose the store as ``storage.backend.class=tests.support.stores.meeting_folder.MeetingFolder``.
``storage.folder`` is its folder. The attempts meet at the key that ends with ``storage.meeting``, and each leaves an
empty file as its mark in the folder ``storage.marks``.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

from pyspark import TaskContext

from tests.support.stores.doubles import DelegatingObjectStore
from tests.support.waiting import wait_until
from tieredstore.backends.base import Body, Prepared
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.config import Settings

BOTH: Final[AbstractSet[str]] = {"prepared-0", "prepared-1"}
"""Names of the marks of the two attempts."""


class MeetingFolder(DelegatingObjectStore):
    """Folder store whose Spark tasks wait for each other at one key."""

    def __init__(self, folder: Path, meeting: str, marks: Path) -> None:
        super().__init__(FilesystemObjectStore(folder))
        self._meeting, self._marks = meeting, marks

    @classmethod
    def from_settings(cls, settings: Settings) -> MeetingFolder:
        options: dict[str, Any] = dict(settings.storage_options)
        folder, meeting, marks = (options[name].get_secret_value() for name in ("folder", "meeting", "marks"))
        return cls(Path(folder), meeting, Path(marks))

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        prepared = super().prepare(key, body, staging_prefix=staging_prefix)
        context = TaskContext.get()
        if context is not None and key.endswith(self._meeting):
            (self._marks / f"prepared-{context.attemptNumber()}").touch()
            wait_until(lambda: {mark.name for mark in self._marks.iterdir()} >= BOTH, what="a second attempt")
        return prepared
