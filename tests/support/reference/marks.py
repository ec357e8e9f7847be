"""Generated tables in a hand-written page, each between two HTML comments: its name and ``end``."""

from __future__ import annotations

from collections.abc import Mapping


def renew_marked(page: str, tables: Mapping[str, str]) -> str:
    """Return the page with its tables replaced by these."""
    for name, table in tables.items():
        mark = f"<!-- {name} -->\n"
        before, found, rest = page.partition(mark)
        assert found, name
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{mark}{table}\n{end}{after}"
    return page
