"""File formats that ``show`` knows: the core's own, and those that an optional part attaches by an entry point.

This module is separate from ``show``, because optional parts import it. An entry point of ``tieredstore.files`` names a
tuple of :class:`Format`::

    [project.entry-points."tieredstore.files"]
    pubsub = "tieredstore.pubsub.cli.files:FILES"

``show`` asks one format after another if it knows a file. The core's formats come first, then the formats of optional
parts in the order of their entry points. The first format that knows the file prints it. The functions ``knows`` and
``show`` of a format import modules only when called. So listing the formats is fast.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from tieredstore.cli.app.options import Store
from tieredstore.cli.terminal.rows import Row

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.reading.topic_backup import TopicBackup

T = TypeVar("T")


class View(enum.Enum):
    """The part of a file to show. The value is the option that chooses this part."""

    CONTENTS = ""
    RECORDS = "--records"
    SOURCES = "--sources"


@dataclass(frozen=True, slots=True)
class Asked:
    """One file, and the view to show.

    ``path`` is the local file called ``name``. If ``path`` is None, ``name`` is the key of an object in ``store``.
    """

    name: str
    path: Path | None
    store: Store
    view: View = View.CONTENTS
    backups: Sequence[Path] = ()
    base_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """Rows of a file. The rows are generated while they are printed, so the rows before an error are printed too.

    The output for people has ``heading`` and a table or, without a table, the ``lines`` of each row. ``sums`` is called
    after the last row. The summary adds up the sums of all files.
    """

    row: Row[T]
    items: Iterable[T]
    heading: str | None = None
    lines: Callable[[T], Iterable[str]] | None = None
    sums: Callable[[], Mapping[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a file, in batches. Each batch has its partition, and the columns that ``record_output.SHOWN`` has."""

    batches: Iterable[tuple[int | None, pa.RecordBatch]]
    topic: str | None = None


Shown: TypeAlias = "Rows[Any] | Records"


@dataclass(frozen=True, slots=True)
class Format:
    """A file format. ``noun`` names such files in a sentence, for example ``batches of MemQ``."""

    noun: str
    views: frozenset[View]
    knows: Callable[[Asked], bool]
    """A function that returns True for files of the format. The function decides by the file's name, settings or first
    bytes."""
    show: Callable[[Asked], AbstractContextManager[Shown]]
    """A function that opens the file and returns its rows or records. The file stays open within the context."""
    topics: Callable[[Path, Sequence[str]], AbstractContextManager[TopicBackup] | None] | None = None
    """A function that opens topics for a restore, or returns None if the settings file is of another kind. The settings
    file names the topics. Their records are in files of this format.
    """
