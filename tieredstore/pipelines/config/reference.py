"""The tables of ``docs/pipelines.md``: all settings of pipelines, and what becomes of Secor's."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tieredstore.config.reference import shown_default
from tieredstore.pipelines.config.secor import ALSO_CALLED, HONOURED_BEGINNINGS, OURS, REFUSED, WITHOUT_EFFECT
from tieredstore.pipelines.config.settings import own_properties
from tieredstore.pipelines.filing.schemas import OF_TOPICS

_SETTINGS: Final = "| property | type | default | allowed | meaning |"
_SECORS: Final = "| property of Secor's | here |"


def settings_table() -> str:
    """All that is read by a name of its own."""
    lines = [_SETTINGS, "|---|---|---|---|---|"]
    for name, info, kind in own_properties():
        lines.append(f"| `{name}` | {kind.type} | {shown_default(info)} | {kind.valid} | {info.description} |")
    return "\n".join(lines)


def secors_table() -> str:
    """Of each property of Secor's whether it is honoured."""
    lines = [_SECORS, "|---|---|"]
    names = [name for name, _, _ in own_properties() if name not in OURS]
    families = [f"{start}TOPIC" for start in OF_TOPICS if start.startswith("secor.")]
    lines += [f"| `{name}` | honoured |" for name in sorted([*names, *families, *HONOURED_BEGINNINGS])]
    for theirs, ours in sorted(ALSO_CALLED.items()):
        topic = "TOPIC" if theirs.endswith(".") else ""
        lines.append(f"| `{theirs}{topic}` | honoured: as `{ours}{topic}` |")
    lines += _rows(WITHOUT_EFFECT, "without effect")
    lines += _rows(REFUSED, "refused")
    return "\n".join(lines)


def _rows(table: Mapping[str, str], outcome: str) -> Iterator[str]:
    for name, words in sorted(table.items()):
        rest = "*" if name.endswith(".") else ""
        yield f"| `{name}{rest}` | {outcome}{f': {words}' if words else ''} |"


def renew_page(page: str) -> str:
    """The page with these tables in place of those that it has."""
    for beginning, table in ((_SETTINGS, settings_table()), (_SECORS, secors_table())):
        before, _, rest = page.partition(beginning)
        _, end, after = f"{beginning}{rest}".partition("\n\n")
        page = before + table + end + after
    return page


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renew_page(path.read_text()))
