"""Table of severities and finding kinds in ``docs/how-to/verify.md``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tieredstore.ops.verification.findings import FindingKind, Severity

_MEANINGS: Final[Mapping[Severity, str]] = {
    Severity.DAMAGE: "Bytes are there and wrong, or half a segment is there.",
    Severity.MISSING: "A segment is not where a reader looks for it.",
    Severity.GAP: "No segment has these offsets, though later ones exist.",
    Severity.NOTICE: "Readers notice nothing.",
}


def kinds_table() -> str:
    """Return a row for each severity, with its kinds."""
    rows = [
        f"`{severity.value}` | {meaning} | {severity.exit_code} | "
        + ", ".join(f"`{kind.value}`" for kind in FindingKind if kind.severity is severity)
        for severity, meaning in _MEANINGS.items()
    ]
    return "\n".join(["severity | meaning | exit code | kinds", "---|---|---|---", *rows])
