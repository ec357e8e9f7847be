"""What commands show on a terminal: golden screens of the demo's bucket, and tables that fit each width."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.screens import FOLDER, OTHERS, TABLES, demo_bucket, screen_of
from tieredstore.cli.tables import cell_count

SCREENS = {**TABLES, **OTHERS}


@pytest.fixture(scope="module", autouse=True)
def _bucket() -> Iterator[None]:
    with demo_bucket():
        yield


@pytest.mark.parametrize("name", SCREENS)
def test_a_command_shows_what_its_file_says(name: str) -> None:
    """If the change is meant: ``python -m tests.support.screens``, and look at the difference."""
    assert str(screen_of(SCREENS[name])) == (FOLDER / f"{name}.txt").read_text()


def test_each_file_is_of_a_command() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(SCREENS)


@pytest.mark.parametrize("name", TABLES)
def test_a_row_is_a_line_however_wide_the_terminal_is(name: str) -> None:
    shown = {columns: screen_of(TABLES[name], columns) for columns in (60, 80, 120, 200)}
    assert {screen.code for screen in shown.values()} == {0}
    assert len({screen.text.count("\n") for screen in shown.values()}) == 1
    if "--wide" not in TABLES[name]:
        for columns, screen in shown.items():
            assert max(map(cell_count, screen.text.splitlines())) <= columns
