"""The documents' pictures match the current output of the commands: `make pictures` regenerates them."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from scripts.pictures import LISTING, PICTURES, PLOTS, fill_bucket, screen
from tests.project.test_docs import DOCUMENTS

SHOWN = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")
TEXT = re.compile(r"<text [^>]*>(.*?)</text>")


def test_every_picture_is_there_and_shown() -> None:
    shown = {(path.parent / link).resolve() for path in DOCUMENTS for link in SHOWN.findall(path.read_text())}
    assert shown == {path.resolve() for path in PICTURES.iterdir()}
    assert {path.name for path in shown} == {"ls.svg", *PLOTS}
    assert sum(path.stat().st_size for path in shown) < 150_000


@pytest.mark.slow
def test_the_screen_is_what_the_commands_print(tmp_path: Path) -> None:
    fill_bucket(tmp_path)
    made_anew = screen(tmp_path, LISTING)
    assert words_of(made_anew) == words_of((PICTURES / "ls.svg").read_text()), "run `make pictures`, and look at them"
    assert "font-face" not in made_anew


def words_of(svg: str) -> list[str]:
    return [html.unescape(text).replace("\xa0", " ").strip() for text in TEXT.findall(svg)]
