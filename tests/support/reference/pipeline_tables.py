"""The tables of docs/reference/pipeline-settings.md: settings, Secor's properties, and messages filed elsewhere."""

from __future__ import annotations

import textwrap

from tests.support.pipelines.secor_cases import load_cases, render_table
from tests.support.reference.marks import renew_marked
from tests.support.reference.settings_page import HEADER, render_row, shown_default
from tieredstore.pipelines.config.secor import ALSO_CALLED, HONOURED, HONOURED_BEGINNINGS, REFUSED, WITHOUT_EFFECT
from tieredstore.pipelines.config.settings import own_properties
from tieredstore.pipelines.filing.schemas import OF_TOPICS


def settings_table() -> str:
    """Return a table with a row for each property that Secor does not have."""
    rows = (
        render_row(name, kind.type, shown_default(info), kind.valid, info.description or "")
        for name, info, kind in own_properties()
    )
    return "\n".join([HEADER, *rows])


def honoured_names() -> str:
    """Return the names of Secor's properties that mean the same here."""
    names = [name for name, info, _ in own_properties() if HONOURED in info.metadata]
    families = [f"{start}TOPIC" for start in OF_TOPICS if start.startswith("secor.")]
    return _listed(sorted([*names, *families, *HONOURED_BEGINNINGS, *map(_whole, ALSO_CALLED)]))


def names_without_effect() -> str:
    """Return Secor's properties that are accepted without effect, with a table of those for which a reason is given."""
    silent = [_whole(name) for name, words in sorted(WITHOUT_EFFECT.items()) if not words]
    rows = [f"`{_whole(name)}` | {words}" for name, words in sorted(WITHOUT_EFFECT.items()) if words]
    return "\n".join([_listed(silent), "", "property | because", "---|---", *rows])


def refused_names() -> str:
    """Return Secor's rejected properties."""
    return _listed(sorted(map(_whole, REFUSED)))


def _whole(name: str) -> str:
    return f"{name}*" if name.endswith(".") else name


def _listed(names: list[str]) -> str:
    words = " ".join(f"`{name}`," for name in names).removesuffix(",")
    return textwrap.fill(f"{words}.", 118, break_long_words=False, break_on_hyphens=False)


def renew_page(page: str) -> str:
    """Return the page with the tables at its marks replaced by these."""
    tables = {
        "settings": settings_table(),
        "honoured": honoured_names(),
        "without effect": names_without_effect(),
        "refused": refused_names(),
        "messages": render_table(load_cases()),
    }
    return renew_marked(page, tables)
