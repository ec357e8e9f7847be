"""Option tables of the docs, generated from the declarations of the two Spark sources: ``make docs``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tests.support.paths import REPOSITORY
from tieredstore.spark.memq import options as memq
from tieredstore.spark.source.option_values import Option
from tieredstore.spark.source.options import OPTIONS

Tables = Mapping[str, Sequence[Option[object]]]
"""Options below each heading."""

PAGES: Final[Mapping[str, Tables]] = {
    "docs/how-to/spark.md": {f"### {heading}": options for heading, options in OPTIONS.items()},
    "docs/how-to/batches.md": {"## Spark": memq.OPTIONS},
}


def renew_tables(page: str, tables: Tables) -> str:
    """Return the page with these tables in place of the first option table below each heading."""
    for heading, options in tables.items():
        before, title, rest = page.partition(f"\n{heading}\n")
        text, begin, table = rest.partition("\noption |")
        _, end, after = table.partition("\n\n")
        assert title
        assert begin
        page = "".join((before, title, text, "\n", "\n".join(_rows(options)), end, after))
    return page


def _rows(options: Sequence[Option[object]]) -> Iterator[str]:
    if not any(option.kafka for option in options):
        yield from ("option | meaning", "---|---")
        yield from (f"`{option.name}` | {option.doc}" for option in options)
        return
    yield from ("option | default | meaning | different from Spark's Kafka source", "---|---|---|---")
    for option in options:
        kind = "" if option.query == "both" else f" ({option.query})"
        cells = f"`{option.name}`{kind}", option.shown, option.doc, option.kafka
        yield re.sub(r"[ |]*$", "", "|".join(f" {cell} " if cell else " " for cell in cells)).lstrip()


if __name__ == "__main__":
    for name, tables in PAGES.items():
        path = REPOSITORY / name
        path.write_text(renew_tables(path.read_text(encoding="utf-8"), tables), encoding="utf-8")
