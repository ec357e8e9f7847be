"""Store in a folder that fails at random, before, during or after an operation, for use in other processes.

Settings choose the store as ``storage.backend.class=tests.support.stores.failing_folder.FailingFolder``.
``storage.folder`` is its folder, and ``storage.failing`` the percentage of operations that fail.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, cast

from tests.support.stores.doubles import FaultyStore, Moment, Operation
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.config import Settings


class FailingFolder(FaultyStore):
    """Store whose failures differ from process to process."""

    def __init__(self, folder: Path, percent: int) -> None:
        super().__init__(FilesystemObjectStore(folder), self._fails)
        self._percent = percent
        self._random = random.Random(os.getpid())

    @classmethod
    def from_settings(cls, settings: Settings) -> FailingFolder:
        options: dict[str, Any] = dict(settings.storage_options)
        return cls(Path(options["folder"].get_secret_value()), int(options["failing"].get_secret_value()))

    def _fails(self, _: Operation) -> bool:
        self.moment = cast("Moment", self._random.choice(["before", "during", "after"]))
        self.operations.clear()
        return self._random.randrange(100) < self._percent
