"""Secor's treatment of unusual messages, for tests and for docs/reference/pipeline-settings.md.

Each entry of ``tests/pipelines/filing/secor_parsers.json`` has a message, its properties, Secor's directory, ours, and
ours with ``secor.parser.strict`` (null: a bad message). Secor's results were measured with the classes that its parsers
call: json-smart 2.3, ``SimpleDateFormat`` and ``Pattern`` of Java 17 in UTC, JAXB's ``DatatypeConverter`` 2.3.0,
json-path 2.4.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support.paths import REPOSITORY

REFUSED: Final = "REFUSED"
"""Value in place of our directory if we refuse the settings at startup."""
_NAME: Final = "secor.message.parser.class"
_SHOWN: Final = {"message.timestamp.input.pattern": "", "partitioner.granularity.date.format": "to "}


@dataclass(frozen=True, slots=True)
class SecorCase:
    """A message, and the directory in which each system files it."""

    properties: Mapping[str, str]
    value: bytes
    secor: str | None
    ours: str | None
    strict: str | None
    why: str
    """Reason why our directory differs from Secor's; empty if it does not."""

    @property
    def parser(self) -> str:
        """The parser's short name."""
        return self.properties[_NAME]


def load_cases() -> list[SecorCase]:
    """Read all cases."""
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
    """Return a table of the reasons why Secor files a message elsewhere than we do, each with its first case."""
    by_reason: dict[str, SecorCase] = {}
    for case in cases:
        by_reason.setdefault(case.why, case)
    by_reason.pop("")
    lines = ["reason | parser and message | Secor | here", "---|---|---|---"]
    for why, case in by_reason.items():
        more = [f"{label}`{case.properties[name]}`" for name, label in _SHOWN.items() if name in case.properties]
        shown = repr(case.value)[2:-1].replace("\\'", "'").replace("|", "\\|")
        shown = shown if len(shown) < 70 else f"{shown[:60]}…"
        cells = [why, " ".join([case.parser, *more, f"`{shown}`"]), _cell(case.secor), _cell(case.ours)]
        lines.append(" | ".join(cells))
    return "\n".join(lines)


def _cell(directory: str | None) -> str:
    if directory == REFUSED:
        return "refused"
    return f"`{directory[:40]}`" if directory else "bad"
