"""Table of finding kinds in ``docs/how-to/verify.md``."""

from __future__ import annotations

from tieredstore.ops.verification import FindingKind
from tieredstore.ops.verification.findings import COPY_AGAIN


def kinds_table() -> str:
    """Return the advice that most kinds share, and a row for each kind."""
    rows = [
        f"| `{kind.value}` | {kind.facts.severity.value} | {kind.facts.meaning} |"
        f" {kind.facts.advice.replace(COPY_AGAIN, '*copy again*')} |"
        for kind in FindingKind
    ]
    head = ["| kind | severity | meaning for readers | advice |", "|---|---|---|---|"]
    return "\n".join([f"*Copy again* means: {COPY_AGAIN}.", "", *head, *rows])
