"""``tieredstore show``: show the contents of a file, local or in a store. Each format is an entry of a table."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from tieredstore.cli.app.options import BACKUP, Count, Output, Store
from tieredstore.cli.records.formats import Asked, Format, Records, Shown, View
from tieredstore.cli.records.kafka_files import KAFKA_FILES
from tieredstore.cli.records.record_output import TABLE, json_lines, rows_of, table_cells
from tieredstore.cli.terminal.output import JsonValue, complain, print_growing_table, print_json_line, print_lines
from tieredstore.cli.terminal.streams import StandardOutputFailedError
from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.installation import attached_parts

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_GROUP: Final = "tieredstore.files"


def show(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE|KEY", help="Files on this machine, or keys of objects in the store.")
    ],
    store: Store,
    records: Annotated[bool, typer.Option("--records", help="Show records instead of batches.")] = False,
    sources: Annotated[
        bool, typer.Option("--sources", help="For a pipeline's files: show where their records came from.")
    ] = False,
    backups: Annotated[list[Path] | None, BACKUP] = None,
    base_offset: Annotated[
        int | None,
        typer.Option(
            "--base-offset", metavar="OFFSET", min=0, help="First offset of an index; default: from the file's name."
        ),
    ] = None,
    count: Count = None,
    *,
    output: Output,
) -> None:
    """Show the contents of files: batches, records, or the entries of an index.

    show reads Kafka's local .log, .index, .timeindex, .txnindex and .snapshot files. It also reads batches, if pub/sub
    is installed, and files of pipelines (with -c PIPELINE), if pipelines are installed. A corrupt file is shown up to
    the corruption, with exit code 4. If one of several files fails, the others are still shown. The exit code is that
    of the first failure.

    Example: tieredstore show /var/lib/kafka/orders-0/00000000000000000000.log --records
    """
    if records and sources:
        raise ConfigError("--records and --sources exclude each other: give one of them")
    if backups and not sources:
        raise ConfigError("--backup names the source of the records that --sources shows: give --sources too")
    view = View.RECORDS if records else View.SOURCES if sources else View.CONTENTS
    report = _Report(output, count)
    for place, name in enumerate(files):
        if len(files) > 1 and not output.as_json:
            print_lines([*([""] if place else []), f"{name}:"])
        path = Path(name)
        try:
            with _explain(path):
                asked = Asked(name, path if path.exists() else None, store, view, backups or (), base_offset)
                with _format_of(asked).show(asked) as shown:
                    report.show(asked, shown)
        except StandardOutputFailedError:
            raise
        except TieredStoreError as error:
            report.exit_codes.append(error.exit_code)
            if len(files) == 1:
                report.finish()
                raise
            sys.stdout.flush()
            complain(str(error) if name in str(error) else f"{name}: {error}")
    report.finish()
    if report.exit_codes:
        raise typer.Exit(report.exit_codes[0])


class _Report:
    """Prints the contents of files, and the sums over all files."""

    def __init__(self, output: Output, count: int | None) -> None:
        self.exit_codes: list[int] = []
        self._output = output
        self._count = count
        self._sums: Counter[str] = Counter()
        self._shown = 0
        self._is_data = False

    def show(self, asked: Asked, shown: Shown) -> None:
        """Print one file."""
        self._shown += 1
        if isinstance(shown, Records):
            self._is_data = True
            self._records(shown)
            return
        self._is_data |= asked.view is View.RECORDS
        items = self._count_items(itertools.islice(shown.items, self._count))
        if self._output.as_json:
            lines = ({"file": asked.name, **shown.row.json(item)} for item in items)
            sys.stdout.writelines(json.dumps(line) + "\n" for line in lines)
        else:
            print_lines([] if shown.heading is None else [shown.heading])
            if shown.lines is None:
                print_growing_table(shown.row.columns, map(shown.row.cells, items), wide=self._output.wide)
            else:
                print_lines(line for item in items for line in shown.lines(item))
        if shown.sums is not None:
            self._sums.update(shown.sums())

    def finish(self) -> None:
        """Print the summary, unless nothing was shown. Records are data, so they have no summary."""
        if self._output.as_json and self._shown and not self._is_data:
            sums: dict[str, JsonValue] = {**self._sums, "entries": self._sums["entries"]}
            print_json_line({"summary": {"files": self._shown, **sums, "failed": len(self.exit_codes)}})

    def _count_items(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            self._sums["entries"] += 1
            yield item

    def _records(self, shown: Records) -> None:
        batches = _first(shown.batches, self._count)
        if self._output.as_json:
            for partition, batch in batches:
                sys.stdout.writelines(json_lines(batch, partition, topic=shown.topic))
            return
        # The records in a broker's file do not name their partition, so drop the column.
        skipped = 1 if shown.topic is None else 0
        rows = (
            table_cells(row, "" if partition is None else str(partition))[skipped:]
            for partition, batch in batches
            for row in rows_of(batch)
        )
        print_growing_table(TABLE[skipped:], rows, wide=self._output.wide)


def _first(
    batches: Iterable[tuple[int | None, pa.RecordBatch]], count: int | None
) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    left = count
    for partition, batch in batches:
        yield partition, batch if left is None else batch.slice(0, left)
        left = None if left is None else left - batch.num_rows
        if left is not None and left <= 0:
            return


def _formats() -> Iterator[Format]:
    """Yield the core's formats, then the formats of optional parts. Optional parts are imported only if no core format
    matches.
    """
    yield from KAFKA_FILES
    tables: list[tuple[Format, ...]] = attached_parts(_GROUP)
    yield from itertools.chain.from_iterable(tables)


def _format_of(asked: Asked) -> Format:
    """Find the format of a file. Raise ConfigError if no format knows the file, or if the format lacks the requested
    view."""
    found = next((each for each in _formats() if each.knows(asked)), None)
    if found is None:
        if asked.path is None and not asked.store.is_given:
            raise ConfigError(
                f"there is no file {asked.name}; for an object in a store give --settings FILE (-c) or --store URL"
            )
        nouns = ", ".join(each.noun for each in _formats())
        raise ConfigError(f"{asked.name} cannot be shown: it is none of {nouns} (inspect shows segments of a bucket)")
    if asked.view not in found.views:
        raise ConfigError(f"{asked.view.value} does not apply to {asked.name}, which is one of {found.noun}")
    if asked.base_offset is not None and (found not in KAFKA_FILES or not asked.name.endswith("index")):
        raise ConfigError(f"--base-offset does not apply to {asked.name}: give it with Kafka's index files")
    return found


@contextlib.contextmanager
def _explain(file: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename) != str(file):
            raise
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
