"""Write the map of subpackages (rooms) into CONTRIBUTING.md: ``python -m scripts.room_map``.

The layers come from import-linter's first contract, and the descriptions from the rooms' docstrings.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PAGE: Final = REPOSITORY / "CONTRIBUTING.md"
HEADER: Final = "layer | package | contents\n---|---|---"


def layers() -> list[list[str]]:
    """Return the rooms of each layer, from the top to the bottom."""
    tables = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [[room.strip() for room in layer.split("|")] for layer in tables[0]["layers"]]


def room_map() -> str:
    """Return the table, with one row per room. Layers are numbered from the bottom."""
    rows = [HEADER]
    for height, rooms in zip(range(len(layers()), 0, -1), layers(), strict=True):
        rows += [f"{height} | `{room}` | {_description(room)}" for room in rooms]
    return "\n".join(rows)


def _source(room: str) -> Path:
    package = REPOSITORY / "tieredstore" / room / "__init__.py"
    return package if package.exists() else REPOSITORY / "tieredstore" / f"{room}.py"


def _description(room: str) -> str:
    """Return the first clause of the room's docstring as Markdown; if the clause is short, the whole first sentence."""
    docstring = " ".join((ast.get_docstring(ast.parse(_source(room).read_text())) or "").split())
    sentence = re.split(r"(?<=[.]) (?=[A-Z`])", docstring)[0].rstrip(":.").replace("``", "`")
    clause = re.split(r"[:;,] | \(", sentence)[0]
    return clause if len(clause.split()) > 3 else sentence


def renew_page(page: str) -> str:
    """Return the page with its map replaced by the current one."""
    before, _, rest = page.partition(HEADER)
    return before + room_map() + "\n\n" + rest.partition("\n\n")[2]


if __name__ == "__main__":
    PAGE.write_text(renew_page(PAGE.read_text()))
