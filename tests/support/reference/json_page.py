"""JSON page: types and commands of each name from the golden file, meanings kept from the page."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

from tests.support.paths import REPOSITORY

GOLDEN: Final = REPOSITORY / "tests" / "cli" / "golden" / "json.txt"
_ROW: Final = re.compile(r"^`(\w+)`(?: ([a-z ]+))? \| (.*?)(?: \| (.*))?$")
_SECTION: Final = "### "
_FEWEST: Final = 3
"""Minimum number of own names for a section of a command."""
_INTEGER: Final = "integer"
"""The type of rows that name none."""
_CHANGING: Final = re.compile(r"means all of them: [^.]*\.")
_OF_OUTCOMES: Final = "new_segment_id"
_MOST: Final = 4
"""Maximum number of commands in a row."""


def renew_page(page: str) -> str:
    """Return the page with current types and commands; the meaning of a new name must be written by hand."""
    types: dict[str, set[str]] = defaultdict(set)
    commands: dict[str, set[str]] = defaultdict(set)
    for line in GOLDEN.read_text().splitlines():
        command, _, fields = line.partition(": ")
        for field in fields.split():
            name, _, kinds = field.partition(":")
            types[name].update(set(kinds.split("|")) - {"null"})
            commands[name].add(command)
    changing = commands[_OF_OUTCOMES]
    known = {name: (kind, meaning, where) for name, kind, meaning, where in rows_of(page)}
    by_command: dict[str, dict[str, str]] = defaultdict(dict)
    for name in sorted({*known, *types} - {date for date in types if is_date(date, types) and date not in known}):
        # A name that no command prints for the golden bucket keeps its row.
        kind, meaning, where = known.get(name, ("", "TODO", ""))
        kind, where = _type_of(types[name]) or kind, _shown(commands[name], changing) or where
        by_command[where][name] = f"`{name}`{'' if kind in ('', _INTEGER) else f' {kind}'} | {meaning}"
    own = {where for where, rows in by_command.items() if where.count("`") == 2 and len(rows) >= _FEWEST}
    shared = {
        name: f"{row} | {where}" for where, rows in by_command.items() if where not in own for name, row in rows.items()
    }
    lines = ["---|---|---", *(row for _, row in sorted(shared.items())), "", "## Names of one command"]
    for where in sorted(own):
        lines += ["", f"{_SECTION}{where}", "", "name | meaning", "---|---", *by_command[where].values()]
    head, _, _ = page.partition("---|---|---\n")
    listed = ", ".join(f"`{command}`" for command in sorted(changing))
    head = _CHANGING.sub(f"means all of them: {listed}.", head)
    return head + "\n".join(lines) + "\n"


def rows_of(page: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, type, meaning and commands of each row."""
    section = ""
    for line in page.splitlines():
        if line.startswith(_SECTION):
            section = line.removeprefix(_SECTION)
        elif (row := _ROW.match(line)) is not None:
            name, kind, meaning, where = row.groups("")
            yield name, kind, meaning, where or section


def is_date(name: str, names: Collection[str]) -> bool:
    """Return whether a name is the date of another one in milliseconds; the introduction explains all of them."""
    return f"{name}_ms" in names


def _type_of(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds - {_INTEGER} if "number" in kinds else kinds))


def _shown(commands: set[str], changing: set[str]) -> str:
    others = sorted(commands - changing if changing <= commands else commands)
    shown = (["*changing*"] if changing <= commands else []) + [f"`{command}`" for command in others]
    return ", ".join(shown) if len(others) <= _MOST else "many"
