"""Page of JSON names: their types and commands come from the golden file, their meanings from the page itself."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from typing import Final

from tests.support.paths import REPOSITORY

GOLDEN: Final = REPOSITORY / "tests" / "cli" / "golden" / "json.txt"
_ROW: Final = re.compile(r"^`(\w+)`(?: ([a-z ]+))? \| (.*)$", re.MULTILINE)
_SECTION: Final = "### "
_FEWEST: Final = 3
"""A command has its own section if it alone prints at least this many names."""
_INTEGER: Final = "integer"
"""Type of the names whose rows show no type."""
_CHANGING: Final = re.compile(r"These commands change something: [^.]*\.")
_OF_OUTCOMES: Final = "new_segment_id"
_ASTERISK: Final = "*"


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
    known = {name: (kind, meaning) for name, kind, meaning in rows_of(page)}
    by_command: dict[str, dict[str, str]] = defaultdict(dict)
    for name in sorted({*known, *types} - {date for date in types if is_date(date, types) and date not in known}):
        # Keep the row of a name that no command prints for the golden bucket.
        kind, meaning = known.get(name, ("", "TODO"))
        kind = _type_of(types[name]) or kind
        shown = "" if kind in ("", _INTEGER) else f" {kind}"
        by_command[_shown(commands[name], changing)][name] = f"`{name}`{shown} | {meaning}"
    of_changing = by_command.pop(_ASTERISK).values()
    own = {where for where, rows in by_command.items() if where and len(rows) >= _FEWEST}
    shared = [row for where, rows in by_command.items() if where not in own for row in rows.values()]
    lines = ["---|---", *sorted(shared), "", "## Names of commands that change something", ""]
    lines += ["name | meaning", "---|---", *of_changing, "", "## Names of one command"]
    for where in sorted(own):
        lines += ["", f"{_SECTION}{where}", "", "name | meaning", "---|---", *by_command[where].values()]
    head, _, _ = page.partition("---|---\n")
    listed = ", ".join(f"`{command}`" for command in sorted(changing))
    head = _CHANGING.sub(f"These commands change something: {listed}.", head)
    return head + "\n".join(lines) + "\n"


def rows_of(page: str) -> list[tuple[str, str, str]]:
    """Return the name, type and meaning of each row."""
    return _ROW.findall(page)


def is_date(name: str, names: Collection[str]) -> bool:
    """Return True if a name is the date form of another name in ms. The page explains these in its introduction."""
    return f"{name}_ms" in names


def _type_of(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds - {_INTEGER} if "number" in kinds else kinds))


def _shown(commands: set[str], changing: set[str]) -> str:
    """Return a name's heading: its only command, an asterisk if all commands that change something print it, or ""."""
    if changing <= commands:
        return _ASTERISK
    return f"`{next(iter(commands))}`" if len(commands) == 1 else ""
