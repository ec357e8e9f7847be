"""Formats of files that ``show`` knows: the core's own, and those that a wing attaches by an entry point.

It lies apart from ``show`` because wings import it. An entry point of ``tieredstore.files`` names a tuple of
:class:`Format`::

    [project.entry-points."tieredstore.files"]
    pubsub = "tieredstore.pubsub.cli.files:FILES"

``show`` asks one format after the other whether it knows a file, the core's first, then those of wings in the order of
their entry points, and prints what the first one gives. Importing the table should be cheap: ``knows`` and ``show``
import what they need.
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

T = TypeVar("T")


class View(enum.Enum):
    """What of a file is shown; the value is the option that asks for it."""

    CONTENTS = ""
    RECORDS = "--records"
    SOURCES = "--sources"


@dataclass(frozen=True, slots=True)
class Asked:
    """One file, and what of it is to be shown.

    ``path`` is the file of this machine that ``name`` is; where there is none it is None, and the name is the key of an
    object: in the store that ``store`` names, or in one that its settings file tells.
    """

    name: str
    path: Path | None
    store: Store
    view: View = View.CONTENTS
    backups: Sequence[Path] = ()
    base_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """Rows of a file, made while they are printed: an error that ends them comes behind those before it.

    A person sees ``heading`` and a table, or ``lines`` of each row where it is no table. ``sums`` are asked for at the
    end, for the summary; those of several files are added up.
    """

    row: Row[T]
    items: Iterable[T]
    heading: str | None = None
    lines: Callable[[T], Iterable[str]] | None = None
    sums: Callable[[], Mapping[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a file, in batches of the columns that ``record_rows.SHOWN`` names, each with its partition."""

    batches: Iterable[tuple[int | None, pa.RecordBatch]]
    topic: str | None = None


Shown: TypeAlias = "Rows[Any] | Records"


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files. ``noun`` names such files in a sentence: ``batches of MemQ``."""

    noun: str
    views: frozenset[View]
    knows: Callable[[Asked], bool]
    """Whether the file is one, by its name, its settings or its first bytes."""
    show: Callable[[Asked], AbstractContextManager[Shown]]
    """What is shown of it, while the file is open."""
