"""JSON page: types and commands of each name from the golden file, meanings kept from the page."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from typing import Final

from tests.support.paths import REPOSITORY

GOLDEN: Final = REPOSITORY / "tests" / "cli" / "golden" / "json.txt"
ROW: Final = re.compile(r"^`(\w+)`(?: ([a-z ]+))? \| (.*) \| (.*)$", re.MULTILINE)
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
    known = {name: row for name, *row in ROW.findall(page)}
    rows: list[str] = []
    for name in sorted({*known, *types} - {date for date in types if is_date(date, types) and date not in known}):
        # A name that no command prints for the golden bucket keeps its row.
        kind, meaning, where = known.get(name, ("", "TODO", ""))
        kind, where = _type_of(types[name]) or kind, _shown(commands[name], changing) or where
        rows.append(f"`{name}`{'' if kind in ('', _INTEGER) else f' {kind}'} | {meaning} | {where}")
    head, _, _ = page.partition("---|---|---\n")
    listed = ", ".join(f"`{command}`" for command in sorted(changing))
    head = _CHANGING.sub(f"means all of them: {listed}.", head)
    return f"{head}---|---|---\n" + "\n".join(rows) + "\n"


def is_date(name: str, names: Collection[str]) -> bool:
    """Return whether a name is the date of another one in milliseconds; the introduction explains all of them."""
    return f"{name}_ms" in names


def _type_of(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds - {_INTEGER} if "number" in kinds else kinds))


def _shown(commands: set[str], changing: set[str]) -> str:
    others = sorted(commands - changing if changing <= commands else commands)
    shown = (["*changing*"] if changing <= commands else []) + [f"`{command}`" for command in others]
    return ", ".join(shown) if len(others) <= _MOST else "many"
