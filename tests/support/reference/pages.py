"""Generators of pages, by page. In a hand-written page, only the tables are replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.support.paths import REPOSITORY
from tests.support.reference import commands_page, json_page, kinds_table, pipeline_tables, python_page, settings_page
from tests.support.reference.marks import renew_marked

FOLDER: Final = REPOSITORY / "docs" / "reference"

PAGES: Final[Mapping[str, Callable[[str], str]]] = {
    "commands.md": lambda _: commands_page.render_page(),
    "wing-commands.md": lambda _: commands_page.render_wings_page(),
    "json.md": json_page.renew_page,
    "python.md": lambda _: python_page.render_page(),
    "pipeline-settings.md": pipeline_tables.renew_page,
    "settings.md": lambda _: settings_page.render_page(),
    "../how-to/verify.md": lambda page: renew_marked(page, {"kinds": kinds_table.kinds_table()}),
    "stores.md": lambda page: renew_marked(page, {"pinterest": settings_page.pinterest_table()}),
}


def render_page(name: str) -> str:
    """Return the expected content of a page."""
    path = FOLDER / name
    return PAGES[name](path.read_text(encoding="utf-8") if path.exists() else "")


def write_pages() -> None:
    """Write each page."""
    for name in PAGES:
        Path(FOLDER / name).write_text(render_page(name), encoding="utf-8")
