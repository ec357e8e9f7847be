"""docs/reference: generated pages are what their generators make of the product today."""

from __future__ import annotations

import pytest

from tests.support.reference.pages import FOLDER, PAGES, render_page


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == render_page(name), "run `make docs`"
