"""A pipeline's output in a folder, with an Iceberg table next to it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog

from tests.support.pipelines.pipeline_runs import listed_offsets, pipeline_of, texts
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.pipelines import Pipeline

NAME = "logs.events"
SMALL = {"secor__max__file__size__bytes": "5000"}


class Folder:
    """Output of a pipeline in a folder, with an Iceberg catalog and warehouse next to it."""

    def __init__(self, path: Path) -> None:
        self.output = path / "output"
        self.output.mkdir()
        (path / "warehouse").mkdir()
        self.store: ObjectStore = FilesystemObjectStore(self.output)
        self.catalog = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/warehouse"}

    def pipeline(self, **changes: str) -> Pipeline:
        output = {"output.storage.backend.class": "filesystem", "output.storage.root": str(self.output)}
        return self.with_table(output, self.catalog, changes)

    def with_table(self, output: dict[str, str], catalog: dict[str, str], changes: dict[str, str]) -> Pipeline:
        given = {f"table.iceberg.catalog.{name}": text for name, text in catalog.items()}
        table = {"table": "iceberg", "table.iceberg.name": NAME, **given}
        return pipeline_of(**(texts(output | table) | changes))

    @contextlib.contextmanager
    def table(self) -> Generator[Any]:
        with closing(load_catalog("default", **self.catalog)) as catalog:
            yield catalog.load_table(NAME)

    def drop_table(self) -> None:
        with closing(load_catalog("default", **self.catalog)) as catalog:
            catalog.drop_table(NAME)

    def offsets(self) -> list[int]:
        with self.table() as table:
            return sorted(table.scan().to_arrow().column("offset").to_pylist())

    def commits(self) -> list[int]:
        """Return the commit number that each snapshot of the table has."""
        with self.table() as table:
            return [int(one.summary.additional_properties["tieredstore.commit"]) for one in table.snapshots()]

    def is_whole(self) -> None:
        """Assert that the table has the rows of all listed files, each once."""
        assert self.offsets() == listed_offsets(self.store)
        assert max(Counter(self.offsets()).values()) == 1


def rewrite_by_another(folder: Folder) -> None:
    """Replace the files by one file with the same rows, as a compaction does."""
    with folder.table() as table:
        table.overwrite(table.scan().to_arrow())
