"""The table of commands, of the core and of optional parts.

An entry of the table contains a command's name and summary. So help and completion do not import the command's module.
An optional part names its own table by the entry point ``tieredstore.commands``::

    [project.entry-points."tieredstore.commands"]
    uploader = "tieredstore.uploader.cli:COMMANDS"

An entry with a name like ``cat --group`` is not a command, but implements that option.

The entry points of optional parts are read only if the core has no command with the requested name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tieredstore.installation import attached_parts

if TYPE_CHECKING:
    import typer

Loaded: TypeAlias = "Callable[..., object] | typer.Typer"
"""A command's function, or a group of commands."""

Effect: TypeAlias = Literal["reads", "adds", "rewrites"]
"""The effect of a command on stored data.

A command that ``reads`` changes nothing, except a consumer group's position. A command that ``adds`` acts at once and
deletes nothing, unless a service's settings require it. A command that ``rewrites`` shows a plan, and applies it with
``--yes``.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A command or a group of commands, with the effect of each command. ``summary`` is the first paragraph of a
    command's help, and the whole help of a group."""

    name: str
    summary: str
    effect: Effect | Mapping[str, Effect] = field(hash=False)
    load: Callable[[], Loaded]
    """A function that imports the command's module. The packages of an extra are imported only when the command
    runs."""

    @property
    def effects(self) -> dict[str, Effect]:
        """Return the effect of each command, by the words with which it is called."""
        if isinstance(self.effect, str):
            return {self.name: self.effect}
        return {f"{self.name} {command}": effect for command, effect in self.effect.items()}


def entry_of(name: str) -> Entry | None:
    """Find a command by its name. Return None if neither the core nor an optional part has it."""
    found = _CORE.get(name)
    return found or next((entry for entry in wing_entries() if entry.name == name), None)


def find_option(name: str) -> Entry | None:
    """Find an optional part's implementation of an option, by ``command --option``. Return None if there is none."""
    return next((entry for entry in _read_attached() if entry.name == name), None)


def all_entries() -> tuple[Entry, ...]:
    """Return the core's commands, then the commands of the installed optional parts."""
    return (*_CORE.values(), *wing_entries())


def wing_entries() -> tuple[Entry, ...]:
    """Return the commands of the installed optional parts."""
    return tuple(entry for entry in _read_attached() if " " not in entry.name)


@functools.cache
def _read_attached() -> tuple[Entry, ...]:
    """Read the tables of the installed optional parts."""
    tables: list[tuple[Entry, ...]] = attached_parts("tieredstore.commands")
    return tuple(entry for table in tables for entry in table)


_COMMANDS: Final[Mapping[str, tuple[Effect | Mapping[str, Effect], str]]] = {
    "upload": (
        "adds",
        "Copy the closed segments on a broker's disk into the store; skip segments that are already there.",
    ),
    "ls": ("reads", "List topics, partitions and segments: offsets, sizes, ratio, time span."),
    "inspect": (
        "reads",
        "Show a segment: manifest, chunk map, key id, indexes, objects, metadata; --index shows an index's entries.",
    ),
    "fetch": ("reads", "Fetch a segment's log, a range of its bytes, or an index, exactly as the broker wrote them."),
    "cat": ("reads", "Show the records of a topic, by partition and offset, or write them into files."),
    "query": (
        "reads",
        "Query topics in DuckDB's SQL: each topic is a table. Without SQL, open a shell on a terminal, or list topics.",
    ),
    "show": ("reads", "Show the contents of files: batches, records, or the entries of an index."),
    "mirror": ("adds", "Copy segments to another store or under another prefix; the source is only read."),
    "rm": (
        "rewrites",
        "Delete whole segments of topics: all of them, with --to only the oldest, or with --segment only one.",
    ),
    "gc": (
        "rewrites",
        "Delete the remains of broken copies and deletions: objects without a manifest, and unfinished writes.",
    ),
    "du": (
        "reads",
        "Show bytes, segments, objects and compression, and with --prices the cost.",
    ),
    "verify": (
        "reads",
        "Check the segments of a bucket and look for missing offsets between them; nothing is changed.",
    ),
    "init": ("adds", "Write a settings file for a bucket, and check it as doctor does."),
    "doctor": ("rewrites", "Check settings, keys, store, clock, lifecycle rules and caches, one line each."),
    "keys": (
        {"new": "adds", "list": "reads", "rotate": "rewrites", "seal": "adds"},
        "Key pairs: make, count, rotate and retire them.",
    ),
    "holds": (
        {"place": "adds", "list": "reads", "release": "rewrites"},
        "Legal holds: segments that rm and gc must keep.",
    ),
}


def load_of_core(name: str) -> Loaded:  # noqa: C901  a table
    """Import a command of the core. Raise LookupError if this function has no case for it."""
    command: Loaded
    match name:
        case "upload":
            from tieredstore.cli.bucket.upload import upload as command
        case "ls":
            from tieredstore.cli.bucket.ls import ls as command
        case "inspect":
            from tieredstore.cli.bucket.inspect import inspect as command
        case "fetch":
            from tieredstore.cli.bucket.fetch import fetch as command
        case "cat":
            from tieredstore.cli.records.cat import cat as command
        case "query":
            from tieredstore.cli.records.query import query as command
        case "show":
            from tieredstore.cli.records.show import show as command
        case "mirror":
            from tieredstore.cli.bucket.mirror import mirror as command
        case "rm":
            from tieredstore.cli.bucket.rm import rm as command
        case "gc":
            from tieredstore.cli.bucket.gc import gc as command
        case "du":
            from tieredstore.cli.bucket.du import du as command
        case "verify":
            from tieredstore.cli.bucket.verify import verify as command
        case "doctor":
            from tieredstore.cli.bucket.doctor import doctor as command
        case "init":
            from tieredstore.cli.bucket.init import init as command
        case "keys":
            from tieredstore.cli.bucket import keys

            return keys.app
        case "holds":
            from tieredstore.cli.bucket import holds

            return holds.app
        case _:
            raise LookupError(f"the table has a summary of the command {name!r}, but no case imports the command")
    return command


_CORE: Final = {
    name: Entry(name, summary, effect, functools.partial(load_of_core, name))
    for name, (effect, summary) in _COMMANDS.items()
}
