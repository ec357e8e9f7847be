"""What Secor's parsers make of odd messages, for tests and for docs/reference/pipeline-settings.md.

``tests/pipelines/filing/secor_parsers.json`` has a message each: its properties, Secor's directory, ours, and ours with
``secor.parser.strict`` (null: a bad message). Secor's were measured with the classes that its parsers call: json-smart
2.3, ``SimpleDateFormat`` and ``Pattern`` of Java 17 in UTC, JAXB's ``DatatypeConverter`` 2.3.0, json-path 2.4.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support.paths import REPOSITORY

REFUSED: Final = "REFUSED"
"""In place of our directory: the settings are refused at the start."""
_NAME: Final = "secor.message.parser.class"
_SHOWN: Final = {"message.timestamp.input.pattern": "", "partitioner.granularity.date.format": "to "}


@dataclass(frozen=True, slots=True)
class SecorCase:
    """A message, and the directory that each reader of it files it in."""

    properties: Mapping[str, str]
    value: bytes
    secor: str | None
    ours: str | None
    strict: str | None
    why: str
    """Why ours differs; empty where it does not."""

    @property
    def parser(self) -> str:
        """The parser's short name."""
        return self.properties[_NAME]


def load_cases() -> list[SecorCase]:
    """Read all of them."""
    rows: list[dict[str, Any]] = json.loads((REPOSITORY / "tests/pipelines/filing/secor_parsers.json").read_text())
    return [
        SecorCase(
            row["properties"],
            row["value"].encode() if "value" in row else row["latin1"].encode("latin-1"),
            row["secor"],
            row["ours"],
            row.get("strict"),
            row.get("why", ""),
        )
        for row in rows
    ]


def render_table(cases: list[SecorCase]) -> str:
    """Return a row for each message that is filed elsewhere than with Secor, below the reason."""
    by_reason: dict[str, list[SecorCase]] = {}
    for case in cases:
        by_reason.setdefault(case.why, []).append(case)
    by_reason.pop("")
    lines = ["parser | message | Secor | here", "---|---|---|---"]
    for why, those in by_reason.items():
        lines.append(f"**{why}** | | |")
        for case in those:
            more = [f"{label}`{case.properties[name]}`" for name, label in _SHOWN.items() if name in case.properties]
            shown = repr(case.value)[2:-1].replace("\\'", "'").replace("|", "\\|")
            shown = shown if len(shown) < 70 else f"{shown[:60]}…"
            cells = [" ".join([case.parser, *more]), f"`{shown}`", _cell(case.secor), _cell(case.ours)]
            lines.append(" | ".join(cells))
    return "\n".join(lines)


def _cell(directory: str | None) -> str:
    if directory == REFUSED:
        return "refused"
    return f"`{directory[:40]}`" if directory else "bad"
