"""Tables within a hand-written page, each between a mark with its name and an end mark."""

from __future__ import annotations

from collections.abc import Mapping


def renew_marked(page: str, tables: Mapping[str, str]) -> str:
    """Return the page with these tables in place of those that it has."""
    for name, table in tables.items():
        mark = f"<!-- {name} -->\n"
        before, found, rest = page.partition(mark)
        assert found, name
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{mark}{table}\n{end}{after}"
    return page
